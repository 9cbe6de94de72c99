// Goal: what an answer may come to hold is known before work begins. Log-probabilities of answers
// count, by how the client gets them; a batch of prompts counts as a whole until its answer is
// over; and what is counted covers what the formats hold.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "router/front_end/http/batch_budget.h"
#include "router/front_end/http/chat_format.h"
#include "router/front_end/http/completion_format.h"
#include "router/front_end/http/response_request.h"
#include "tests/testing/http_client.h"
#include "tests/testing/resident_memory.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/http/front_end_parts.h"

namespace tandem::router {
namespace {

using ::tandem::testing::Ask;
using ::tandem::testing::HttpAnswer;
using ::tandem::testing::PostOf;
using ::tandem::testing::ResidentBytes;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

// A front end whose requests fail once they have reached the core, which keeps what they were.
class AnswerBytes : public ::testing::Test {
 protected:
  void Serve(int64_t batch_bytes_max) {
    HttpApiOptions options;
    options.batch_bytes_max = batch_bytes_max;
    ASSERT_OK_AND_ASSIGN(
        http_, StartHttp(parts_.Session(inbox_, constraints_, long_work_), status_, options));
  }
  void TearDown() override { http_->Stop(); }

  HttpAnswer Post(const std::string& path, const std::string& body) {
    return Ask(http_->address(), PostOf(path, body));
  }
  // The request that the core gets. REQUIRES: one prompt, and a body that is not refused.
  RequestInput Submitted(const std::string& path, const std::string& body) {
    const HttpAnswer answer = Post(path, body);
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(inputs_.empty()) << answer.body;
    RequestInput input = inputs_.empty() ? RequestInput() : inputs_.back();
    inputs_.clear();
    return input;
  }
  size_t submitted() {
    absl::MutexLock lock(&mutex_);
    return inputs_.size();
  }

  FrontEndParts parts_;
  absl::Mutex mutex_;
  std::vector<RequestInput> inputs_ ABSL_GUARDED_BY(mutex_);
  Inbox inbox_{4096, [this](std::vector<InboxItem>& items) {
                 for (InboxItem& item : items) {
                   auto* submit = std::get_if<SubmitRequest>(&item);
                   if (submit == nullptr) continue;
                   {
                     absl::MutexLock lock(&mutex_);
                     inputs_.push_back(std::move(submit->input));
                   }
                   submit->session->Fail(absl::AbortedError("reached the core"));
                   submit->session->Flush(/*inline_ok=*/false);
                 }
               }};
  guided::CompileQueue constraints_{[](const request::GuidedParams&) {}};
  LongWork long_work_;
  StatusBoard status_{inbox_};
  std::unique_ptr<HttpApi> http_;
};

TEST_F(AnswerBytes, LogProbabilitiesOfAnswersCount) {
  Serve(int64_t{8} << 30);
  const auto chat = [&](const std::string& members) {
    return Submitted("/v1/chat/completions",
                     absl::StrCat(R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":50)",
                                  members, "}"))
        .LogprobBytesMax();
  };
  EXPECT_EQ(chat(""), 0);
  EXPECT_EQ(chat(R"(,"logprobs":true)"), 50 * kAnswerLogprobBytes);
  EXPECT_EQ(chat(R"(,"logprobs":true,"top_logprobs":20,"n":8)"), 8 * 50 * 21 * kAnswerLogprobBytes);
  // A stream does not keep them.
  EXPECT_EQ(chat(R"(,"logprobs":true,"top_logprobs":3,"stream":true)"),
            50 * (kStreamedTokenBytes + 3 * kStreamedLogprobBytes));
  // The router asks for some by itself, and does not keep them.
  EXPECT_EQ(chat(R"(,"best_of":4)"), 0);
  EXPECT_EQ(chat(R"(,"best_of":4,"logprobs":true,"stream":true)"), 4 * 50 * kAnswerLogprobBytes);
}

TEST_F(AnswerBytes, AStreamOfAResponseKeepsItsLogProbabilities) {
  Serve(int64_t{8} << 30);
  const RequestInput input =
      Submitted("/v1/responses", R"({"input":"hi","max_output_tokens":50,"stream":true,
          "include":["message.output_text.logprobs"],"top_logprobs":2})");
  EXPECT_EQ(input.LogprobBytesMax(), 50 * 3 * kAnswerLogprobBytes);
}

// What the response object repeats of the request, and the conversation that is kept with it.
TEST_F(AnswerBytes, WhatAResponseRepeatsOfItsRequestCounts) {
  Serve(int64_t{8} << 30);
  const auto bytes = [&](size_t instructions, size_t tools, const char* store) {
    const RequestInput input = Submitted(
        "/v1/responses",
        absl::StrCat(R"({"input":"hi","store":)", store, R"(,"instructions":")",
                     std::string(instructions, 'i'), R"(","tools":[{"type":"function","name":"f",)",
                     R"("description":")", std::string(tools, 't'), R"("}]})"));
    RequestInput without = input;
    without.front_end_bytes = 0;
    EXPECT_EQ(input.HeldBytesMax(), without.HeldBytesMax() + input.front_end_bytes);
    return input.front_end_bytes;
  };
  const int64_t least = bytes(1, 1, "false");
  EXPECT_GT(least, 100);
  EXPECT_LT(least, 1000);
  EXPECT_EQ(bytes(1001, 1, "false"), least + 1000);
  EXPECT_EQ(bytes(1, 501, "false"), least + 500);
  // The item, and "true" instead of "false".
  const int64_t with_items = bytes(1, 1, "true");
  EXPECT_EQ(
      with_items,
      least - 1 +
          static_cast<int64_t>(
              absl::string_view(R"([{"type":"message","role":"user","content":"hi"}])").size()));
}

// A schema's values take many times as much as their text.
TEST_F(AnswerBytes, SettingsAreKeptAsText) {
  Serve(int64_t{8} << 30);
  std::string values;
  for (int i = 0; i < 10'000; ++i) absl::StrAppend(&values, i == 0 ? "" : ",", "[1]");
  const Json body =
      ParseJsonBody(absl::StrCat(R"({"input":"hi","tools":[{"type":"function","name":"f",)",
                                 R"("parameters":{"enum":[)", values, "]}}]}"))
          .value();
  const ApiRequest api = ReadResponse(body, *parts_.assets, absl::UnixEpoch(), {}).value();
  EXPECT_EQ(api.response->settings["tools"].size(), 1u);
  api.response->PackSettings();
  EXPECT_TRUE(api.response->settings.is_null());
  EXPECT_GT(api.response->held_bytes(), static_cast<int64_t>(values.size()));
  EXPECT_LT(api.response->held_bytes(), static_cast<int64_t>(values.size()) + 1000);
}

// As large as the bounds of a batch allow: 1,024 prompts.
TEST_F(AnswerBytes, ABatchIsBoundedAsAWholeBeforeItBegins) {
  const auto body = [](int prompts) {
    std::string list;
    for (int i = 0; i < prompts; ++i) {
      absl::StrAppend(&list, i == 0 ? "" : ",", "\"", std::string(100, 'x'), "\"");
    }
    return absl::StrCat(R"({"max_tokens":1,"prompt_logprobs":20,"prompt":[)", list, "]}");
  };
  Serve(int64_t{1} << 40);
  RequestInput one =
      Submitted("/v1/completions", absl::StrCat(R"({"max_tokens":1,"prompt_logprobs":20,)",
                                                R"("prompt":")", std::string(100, 'x'), "\"}"));
  EXPECT_EQ(one.LogprobBytesMax(), 100 * 21 * kPromptLogprobBytes);
  http_->Stop();
  Serve(1023 * one.HeldBytesMax());
  const HttpAnswer refused = Post("/v1/completions", body(1024));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("prompt: the answers to 1024 of 1024 prompts may come to"));
  EXPECT_THAT(refused.body, HasSubstr(absl::StrCat("expected at most ", 1023 * one.HeldBytesMax(),
                                                   " for all prompts")));
  EXPECT_EQ(submitted(), 0u) << "some of its prompts began";
  Post("/v1/completions", body(1023));
  EXPECT_GT(submitted(), 0u) << "what was refused must not stay charged";
}

TEST(BatchShare, WaitsForNoOther) {
  const auto budget = std::make_shared<BatchBudget>(100);
  BatchShare first(budget);
  EXPECT_OK(first.Add(30, 1, 2));
  EXPECT_OK(first.Add(30, 2, 2));
  {
    BatchShare second(budget);
    EXPECT_OK(second.Add(40, 1, 2));
    EXPECT_THAT(second.Add(1, 2, 2),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("may hold up to 60 bytes; 41 more would exceed its limit")));
    EXPECT_EQ(budget->used(), 60) << "a batch that is refused holds nothing";
    EXPECT_OK(second.Add(40, 1, 2));
    EXPECT_THAT(second.Add(61, 2, 2), StatusIs(absl::StatusCode::kInvalidArgument,
                                               HasSubstr("the answers to 2 of 2 prompts may")));
  }
  EXPECT_EQ(budget->used(), 60);
}

// ---- what is counted covers what is held

int64_t PeakBytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

v1::GeneratedToken TokenWithTops(int tops) {
  v1::GeneratedToken token;
  token.set_token_id('x');
  token.set_logprob(-1.2345678F);
  for (int i = 0; i < tops; ++i) {
    v1::TokenLogprob& top = *token.add_top_logprobs();
    top.set_token_id('a' + i);
    top.set_logprob(-2.3456789F);
    top.set_rank(i + 1);
  }
  return token;
}

constexpr int kTokens = 10'000;

// Lets a format write tokens of the answer or the prompt, and returns the most bytes held.
int64_t BytesOfWhole(AnswerFormat& format, bool of_prompt) {
  const int64_t before = ResidentBytes();
  for (int i = 0; i < kTokens; ++i) {
    v1::GenerateResponse part;
    *(of_prompt ? part.mutable_prompt_logprobs()->add_tokens()
                : part.mutable_delta()->add_tokens()) = TokenWithTops(20);
    format.Add(0, part, nullptr);
  }
  v1::GenerateResponse end;
  end.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
  format.Add(0, end, nullptr);
  const std::string text = format.ToJson();
  EXPECT_GT(text.size(), size_t{50} * 21 * kTokens);
  return PeakBytes() - before;
}

// Each is a test of its own, because a process has one peak.
TEST(AnswerBytesOfFormats, AreCountedForAnAnswersTokens) {
  if (!testing::kResidentBytesTell) GTEST_SKIP() << "a sanitizer's own memory would count";
  const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  RequestInput input;
  input.stop.Edit().max_tokens = kTokens;
  input.keeps_answers = true;
  input.answer_logprobs = 20;
  ApiRequest api;
  api.kind = ApiKind::kChat;
  api.prompts = 1;
  api.logprobs = 20;
  const auto chat = NewChatFormat(api, {"id", 0, "m", "f"}, *assets->tokenizer);
  EXPECT_LE(BytesOfWhole(*chat, /*of_prompt=*/false), input.LogprobBytesMax());
}

TEST(AnswerBytesOfFormats, AreCountedForAPromptsTokens) {
  if (!testing::kResidentBytesTell) GTEST_SKIP() << "a sanitizer's own memory would count";
  const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  RequestInput input;
  input.prompt = std::vector<TokenId>(kTokens);
  input.prompt_logprobs = 20;
  ApiRequest api;
  api.prompts = 1;
  const auto completion = NewCompletionFormat(api, {"id", 0, "m", "f"}, *assets->tokenizer);
  EXPECT_LE(BytesOfWhole(*completion, /*of_prompt=*/true), input.LogprobBytesMax());
}

}  // namespace
}  // namespace tandem::router
