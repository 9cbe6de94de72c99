// Goal: the core's thread formats for a client only what takes little time. What takes longer, such
// as a whole answer with log-probabilities, is left to the client's I/O thread. A stream begins
// with its first text, so that a request that fails before it gets a status of its own.
#include <gtest/gtest.h>
#include <malloc.h>

#include "absl/strings/match.h"
#include "common/runtime/clock.h"
#include "router/front_end/http/api_answer.h"
#include "router/front_end/http/response_request.h"
#include "tests/testing/resident_memory.h"
#include "tests/unit/http/front_end_parts.h"

namespace tandem::router {
namespace {

// An idle I/O thread: other threads may run its work. Counts who does.
class IdleExchange final : public HttpExchange {
 public:
  void Post(absl::AnyInvocable<void()> work) override { posted.push_back(std::move(work)); }
  void RunOrPost(absl::AnyInvocable<void()> work) override {
    ++ran_inline;
    work();
  }
  void Wait(std::shared_ptr<PendingAnswer> answer) override { pending_ = std::move(answer); }
  void Reply(HttpReply reply) override {
    written += reply.body;
    status = reply.status;
  }
  void BeginStream(const HttpReply& reply) override {
    written += reply.body;
    status = reply.status;
  }
  void WriteStream(absl::string_view bytes) override { written.append(bytes.data(), bytes.size()); }
  void EndStream(bool, absl::string_view bytes) override { WriteStream(bytes); }
  bool writing() const override { return false; }

  void LoseClient() { std::exchange(pending_, nullptr)->OnGone(); }
  // As a connection does: the answer holds its exchange.
  void Forget() { pending_ = nullptr; }

  std::vector<absl::AnyInvocable<void()>> posted;
  int ran_inline = 0;
  std::string written;
  int status = 0;  // 0: no head was written

 private:
  std::shared_ptr<PendingAnswer> pending_;
};

class InlineWrites : public ::testing::Test {
 protected:
  void TearDown() override { exchange_->Forget(); }
  void Start(ApiKind kind, bool stream, std::optional<int32_t> logprobs, std::string items = "") {
    ApiRequest api;
    api.kind = kind;
    api.stream = stream;
    api.logprobs = logprobs;
    if (kind == ApiKind::kResponse) {
      api.response = std::make_shared<ResponseParts>();
      api.response->settings["tools"] = std::move(items);
      api.response->PackSettings();
    }
    v1::GenerateRequest request;
    request.set_text("prompt");
    request.mutable_stop()->set_max_tokens(1000);
    if (logprobs.has_value()) request.mutable_sampling()->set_logprobs(*logprobs);
    api.requests.push_back(std::move(request));
    ApiAnswer::Start(std::move(api), exchange_, parts_.Session(inbox_, constraints_, long_work_),
                     {}, {RealClock().Now(), "", LoadShedder::FrontEndKind::kHttp},
                     /*on_long_work=*/false);
    ASSERT_NE(session_, nullptr);
    session_->Accepted();
    session_->Flush(/*inline_ok=*/true);
  }
  // The core's thread passes on `count` tokens, each with `tops` top ones.
  void Tokens(int count, int tops) {
    for (int i = 0; i < count; ++i) {
      TokensReady ready;
      v1::GeneratedToken& token = ready.tokens.emplace_back();
      token.set_token_id('x');
      for (int top = 0; top < tops; ++top) token.add_top_logprobs()->set_token_id('a' + top);
      session_->OnEvent(std::move(ready));
    }
    session_->Flush(/*inline_ok=*/true);
  }
  void End() {
    SequenceDone done;
    done.last = true;
    done.reason = request::FinishReason::kStop;
    session_->OnEvent(std::move(done));
    session_->Flush(/*inline_ok=*/true);
  }
  void RunPosted() {
    for (auto& work : std::exchange(exchange_->posted, {})) work();
  }

  FrontEndParts parts_;
  std::shared_ptr<AnswerSession> session_;
  Inbox inbox_{64, [this](std::vector<InboxItem>& items) {
                 for (InboxItem& item : items) {
                   auto* submit = std::get_if<SubmitRequest>(&item);
                   if (submit != nullptr) session_ = std::move(submit->session);
                 }
               }};
  guided::CompileQueue constraints_{[](const request::GuidedParams&) {}};
  LongWork long_work_;
  const std::shared_ptr<IdleExchange> exchange_ = std::make_shared<IdleExchange>();
};

TEST_F(InlineWrites, AStreamsTokenIsWrittenAtOnce) {
  Start(ApiKind::kChat, /*stream=*/true, std::nullopt);
  for (int i = 0; i < 1000; ++i) Tokens(1, 0);
  End();
  EXPECT_TRUE(exchange_->posted.empty()) << "what was written counts no more";
  EXPECT_GE(exchange_->ran_inline, 1000);
  EXPECT_TRUE(absl::StrContains(exchange_->written, "[DONE]"));
}

TEST_F(InlineWrites, AShortWholeAnswerIsWrittenAtOnce) {
  Start(ApiKind::kChat, /*stream=*/false, std::nullopt);
  Tokens(20, 0);
  End();
  EXPECT_TRUE(exchange_->posted.empty());
  EXPECT_TRUE(absl::StrContains(exchange_->written, "xxxxx"));
}

// 500 parts with 21 log-probabilities each: some 10,000 objects of JSON.
TEST_F(InlineWrites, AWholeAnswerWithLogProbabilitiesIsLeftToTheIoThread) {
  for (const ApiKind kind : {ApiKind::kCompletion, ApiKind::kChat}) {
    exchange_->written.clear();
    exchange_->ran_inline = 0;
    Start(kind, /*stream=*/false, 20);
    exchange_->ran_inline = 0;
    Tokens(500, 20);
    End();
    EXPECT_EQ(exchange_->ran_inline, 0);
    EXPECT_EQ(exchange_->written, "");
    ASSERT_EQ(exchange_->posted.size(), 1u);
    RunPosted();
    EXPECT_GT(exchange_->written.size(), 50'000u);
  }
}

TEST_F(InlineWrites, ManyPartsOfAStreamAreLeftToTheIoThread) {
  Start(ApiKind::kChat, /*stream=*/true, 20);
  exchange_->ran_inline = 0;
  Tokens(500, 20);
  EXPECT_EQ(exchange_->ran_inline, 0);
  ASSERT_EQ(exchange_->posted.size(), 1u);
  RunPosted();
  Tokens(1, 20);
  EXPECT_EQ(exchange_->ran_inline, 1) << "the next ones are few";
  End();
  RunPosted();
}

// The last event of a response's stream repeats the whole answer, and all its first ones do what
// the request said.
TEST_F(InlineWrites, EventsThatRepeatMuchAreLeftToTheIoThread) {
  Start(ApiKind::kResponse, /*stream=*/true, std::nullopt, std::string(10'000, 't'));
  EXPECT_EQ(exchange_->ran_inline, 0);
  EXPECT_EQ(exchange_->posted.size(), 1u);
  RunPosted();
  Tokens(1, 0);
  EXPECT_EQ(exchange_->ran_inline, 0);
  RunPosted();
  EXPECT_TRUE(absl::StrContains(exchange_->written, "response.created"));
  End();
  RunPosted();
  Start(ApiKind::kResponse, /*stream=*/true, 20);
  exchange_->ran_inline = 0;
  for (int i = 0; i < 10; ++i) Tokens(1, 20);
  EXPECT_EQ(exchange_->ran_inline, 10);
  exchange_->ran_inline = 0;
  End();
  EXPECT_EQ(exchange_->ran_inline, 0) << "the end repeats all ten tokens";
  RunPosted();
}

TEST_F(InlineWrites, AStreamThatIsRefusedInTheQueueHasAStatusOfItsOwn) {
  for (const ApiKind kind : {ApiKind::kCompletion, ApiKind::kChat, ApiKind::kResponse,
                             ApiKind::kMessage, ApiKind::kOllamaChat}) {
    exchange_->written.clear();
    exchange_->status = 0;
    Start(kind, /*stream=*/true, std::nullopt);
    RunPosted();
    EXPECT_EQ(exchange_->status, 0) << exchange_->written;
    session_->Fail(absl::ResourceExhaustedError("waited too long"));
    session_->Flush(/*inline_ok=*/true);
    RunPosted();
    EXPECT_EQ(exchange_->status, 429);
    EXPECT_TRUE(absl::StrContains(exchange_->written, "waited too long"));
    EXPECT_FALSE(absl::StrContains(exchange_->written, "data: ")) << exchange_->written;
  }
}

TEST_F(InlineWrites, WhatAnnouncesAnAnswerComesWithItsFirstText) {
  const std::pair<ApiKind, const char*> announced[] = {
      {ApiKind::kChat, R"("role":"assistant","content":"")"},
      {ApiKind::kResponse, "response.created"},
      {ApiKind::kMessage, "message_start"}};
  for (const auto& [kind, event] : announced) {
    exchange_->written.clear();
    exchange_->status = 0;
    Start(kind, /*stream=*/true, std::nullopt);
    EXPECT_EQ(exchange_->written, "");
    Tokens(1, 0);
    EXPECT_EQ(exchange_->status, 200);
    const size_t at = exchange_->written.find(event);
    ASSERT_NE(at, std::string::npos) << exchange_->written;
    EXPECT_NE(exchange_->written.find("\"x\"", at), std::string::npos) << exchange_->written;
    session_->Fail(absl::ResourceExhaustedError("lost"));
    session_->Flush(/*inline_ok=*/true);
    EXPECT_EQ(exchange_->status, 200) << "its head was out";
    EXPECT_TRUE(absl::StrContains(exchange_->written, "lost"));
  }
}

// The core holds its session, and through it the answer, for a while longer.
TEST_F(InlineWrites, WhatAClientThatLeftWouldHaveGotIsFreedByTheIoThread) {
  if (!testing::kResidentBytesTell) GTEST_SKIP() << "the allocator is a sanitizer's";
  Start(ApiKind::kChat, /*stream=*/false, 20);
  Tokens(1024, 20);
  RunPosted();
  const auto allocated = [] {
    const struct mallinfo2 heap = ::mallinfo2();
    return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
  };
  const int64_t before = allocated();
  exchange_->LoseClient();
  EXPECT_LT(allocated(), before - 1024 * 21 * 300);
  session_ = nullptr;
}

}  // namespace
}  // namespace tandem::router
