// Goal: every request that cannot be served gets a status whose code is right and whose message
// names the field, the value and what was expected; it affects no other request: the cluster
// answers an ordinary request afterwards and holds nothing.
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>

#include "tests/integration/bad_input/bad_cluster.h"

namespace tandem::testing {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct BadRequest {
  std::function<void(v1::GenerateRequest&)> spoil;  // of an ordinary request
  StatusCode code;
  std::vector<std::string> named;  // what the message must contain
};

class RequestErrors : public BadCluster {
 protected:
  void ExpectRefused(const std::vector<BadRequest>& cases) {
    for (size_t i = 0; i < cases.size(); ++i) {
      v1::GenerateRequest request = TokensRequest(40, 4);
      cases[i].spoil(request);
      const Answer answer = cluster_->Generate(request);
      EXPECT_EQ(answer.status.code(), cases[i].code) << "case " << i << ": " << answer.status;
      for (const std::string& text : cases[i].named)
        EXPECT_THAT(std::string(answer.status.message()), HasSubstr(text)) << "case " << i;
      EXPECT_EQ(answer.tokens.size(), 0) << "case " << i;
    }
  }
};

BadRequest Sampling(std::function<void(v1::SamplingParams&)> spoil,
                    std::vector<std::string> named) {
  return {[spoil](v1::GenerateRequest& request) { spoil(*request.mutable_sampling()); },
          StatusCode::kInvalidArgument, std::move(named)};
}
BadRequest Stop(std::function<void(v1::StopParams&)> spoil, std::vector<std::string> named) {
  return {[spoil](v1::GenerateRequest& request) { spoil(*request.mutable_stop()); },
          StatusCode::kInvalidArgument, std::move(named)};
}

TEST_F(RequestErrors, SamplingParametersOutOfRange) {
  using S = v1::SamplingParams;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  ExpectRefused({
      Sampling([](S& s) { s.set_temperature(-0.5); }, {"temperature", "-0.5", "[0, "}),
      Sampling([&](S& s) { s.set_temperature(nan); }, {"temperature", "nan", "[0, "}),
      Sampling([&](S& s) { s.set_temperature(infinity); }, {"temperature", "inf", "[0, "}),
      Sampling([](S& s) { s.set_top_k(-2); }, {"top_k", "-2", ">= 1", "0 or -1"}),
      Sampling([](S& s) { s.set_top_p(-0.5); }, {"top_p", "-0.5", "[0, 1]"}),
      Sampling([](S& s) { s.set_top_p(1.5); }, {"top_p", "1.5", "[0, 1]"}),
      Sampling([&](S& s) { s.set_top_p(nan); }, {"top_p", "nan", "[0, 1]"}),
      Sampling([](S& s) { s.set_min_p(-0.25); }, {"min_p", "-0.25", "[0, 1]"}),
      Sampling([](S& s) { s.set_min_p(1.25); }, {"min_p", "1.25", "[0, 1]"}),
      Sampling([](S& s) { s.set_repetition_penalty(0); }, {"repetition_penalty", "0", "(0, "}),
      Sampling([](S& s) { s.set_repetition_penalty(-1); }, {"repetition_penalty", "-1", "(0, "}),
      Sampling([](S& s) { s.set_presence_penalty(2.5); }, {"presence_penalty", "2.5", "[-2, 2]"}),
      Sampling([](S& s) { s.set_presence_penalty(-2.5); }, {"presence_penalty", "-2.5", "[-2, 2]"}),
      Sampling([](S& s) { s.set_frequency_penalty(3); }, {"frequency_penalty", "3", "[-2, 2]"}),
      Sampling([](S& s) { s.set_frequency_penalty(-3); }, {"frequency_penalty", "-3", "[-2, 2]"}),
      Sampling([](S& s) { (*s.mutable_logit_bias())[259] = 1; },
               {"logit_bias", "token 259", "[0, 259)"}),
      Sampling([](S& s) { (*s.mutable_logit_bias())[-1] = 1; },
               {"logit_bias", "token -1", "[0, 259)"}),
      Sampling([](S& s) { (*s.mutable_logit_bias())[65] = 101; },
               {"logit_bias of token 65", "101", "[-100, 100]"}),
      Sampling([](S& s) { s.add_allowed_token_ids(300); },
               {"allowed_token_ids", "token 300", "[0, 259)"}),
      Sampling([](S& s) { s.add_allowed_token_ids(-7); },
               {"allowed_token_ids", "token -7", "[0, 259)"}),
      Sampling([](S& s) { s.set_logprobs(21); }, {"logprobs", "21", "[0, 20]"}),
      Sampling([](S& s) { s.set_logprobs(-1); }, {"logprobs", "-1", "[0, 20]"}),
  });
}

TEST_F(RequestErrors, StopParametersOutOfRange) {
  using S = v1::StopParams;
  ExpectRefused({
      Stop([](S& s) { s.set_max_tokens(0); }, {"max_tokens", "0", ">= 1"}),
      Stop([](S& s) { s.set_max_tokens(-3); }, {"max_tokens", "-3", ">= 1"}),
      Stop([](S& s) { s.set_max_tokens(32768); }, {"max_tokens", "32768", "40", "context", "hash"}),
      Stop([](S& s) { s.set_max_tokens(std::numeric_limits<int32_t>::max()); },
           {"max_tokens", "2147483647", "context"}),
      Stop([](S& s) { s.set_min_tokens(-1); }, {"min_tokens", "-1", "[0, max_tokens = 4]"}),
      Stop([](S& s) { s.set_min_tokens(5); }, {"min_tokens", "5", "[0, max_tokens = 4]"}),
      Stop(
          [](S& s) {
            for (int i = 0; i < 65; ++i) s.add_stop("x");
          },
          {"stop", "65 strings", "at most 64"}),
      Stop([](S& s) { s.add_stop("fine"), s.add_stop(""); }, {"stop[1]", "0 bytes", "1 to 1024"}),
      Stop([](S& s) { s.add_stop(std::string(1025, 'x')); },
           {"stop[0]", "1025 bytes", "1 to 1024"}),
      Stop([](S& s) { s.add_stop_token_ids(259); }, {"stop_token_ids", "token 259", "[0, 259)"}),
      Stop([](S& s) { s.add_stop_token_ids(-1); }, {"stop_token_ids", "token -1", "[0, 259)"}),
  });
}

TEST_F(RequestErrors, EnvelopeOfTheRequest) {
  using R = v1::GenerateRequest;
  const auto bad = StatusCode::kInvalidArgument;
  ExpectRefused({
      {[](R& r) { r.set_model("gpt-9"); }, StatusCode::kNotFound, {"model", "gpt-9", "\"hash\""}},
      // Too long to be repeated: the error must reach the client, with what is served.
      {[](R& r) { r.set_model(std::string(100'000, 'm')); },
       StatusCode::kNotFound,
       {"model: a text of 100000 bytes", "\"hash\""}},
      {[](R& r) { r.set_n(129); }, bad, {"n: 129", "128"}},
      {[](R& r) { r.set_n(3), r.set_best_of(2); }, bad, {"best_of: 2", "n = 3"}},
      {[](R& r) { r.set_best_of(0); }, bad, {"best_of: 0"}},
      {[](R& r) { r.mutable_beam_search(); }, bad, {"beam_search.width: 0", "64"}},
      {[](R& r) {
         r.mutable_beam_search()->set_width(4);
         r.mutable_sampling()->set_temperature(0.5);
       },
       bad,
       {"beam_search", "temperature"}},
      {[](R& r) { r.mutable_beam_search()->set_width(4), r.set_n(5); }, bad, {"n: 5", "4]"}},
      {[](R& r) { r.set_prompt_logprobs(21); }, bad, {"prompt_logprobs: 21", "20"}},
      {[](R& r) { r.set_deadline_s(0); }, bad, {"deadline_s: 0"}},
      {[](R& r) { r.set_deadline_s(std::nan("")); }, bad, {"deadline_s: nan"}},
      {[](R& r) { r.add_bad_words(""); }, bad, {"bad_words[0]"}},
      {[](R& r) {
         for (int i = 0; i < 257; ++i) r.add_bad_words("x");
       },
       bad,
       {"bad_words: 257"}},
      {[](R& r) { r.set_n(0); }, bad, {"n: 0", "[1, 128]"}},
      {[](R& r) { r.set_n(-4); }, bad, {"n: -4", "[1, 128]"}},
      {[](R& r) { r.set_request_id(std::string(129, 'i')); },
       bad,
       {"request_id", "129 bytes", "at most 128"}},
      {[](R& r) { r.set_cache_salt(std::string(1025, 's')); },
       bad,
       {"cache_salt", "1025 bytes", "at most 1024"}},
  });
}

TEST_F(RequestErrors, PlacesToResumeFrom) {
  using R = v1::GenerateRequest;
  const auto bad = StatusCode::kInvalidArgument;
  ExpectRefused({
      {[](R& r) { r.set_resume_from_token(-1); }, bad, {"resume_from_token: -1"}},
      {[](R& r) {
         r.set_resume_from_token(3);
         r.mutable_sampling()->clear_seed();
         r.mutable_sampling()->set_temperature(1);
       },
       bad,
       {"resume_from_token", "seed"}},
      {[](R& r) { r.add_resume_from_tokens(1), r.set_n(2); },
       bad,
       {"resume_from_tokens: 1 given", "n = 2"}},
      {[](R& r) { r.add_resume_from_tokens(-1); }, bad, {"resume_from_tokens[0]: -1"}},
      {[](R& r) { r.add_resume_from_tokens(1), r.set_resume_from_token(1); },
       bad,
       {"resume_from_tokens", "expected one of them"}},
      {[](R& r) { r.add_resume_from_tokens(1), r.set_best_of(2); },
       bad,
       {"resume_from_tokens", "best_of"}},
      {[](R& r) { r.add_resume_from_tokens(1), r.mutable_beam_search()->set_width(2); },
       bad,
       {"resume_from_tokens", "beam_search"}},
      {[](R& r) {
         r.add_resume_from_tokens(3);
         r.mutable_sampling()->clear_seed();
         r.mutable_sampling()->set_temperature(1);
       },
       bad,
       {"resume_from_tokens", "seed"}},
  });
}

TEST_F(RequestErrors, PromptsThatAreNone) {
  using R = v1::GenerateRequest;
  const auto bad = StatusCode::kInvalidArgument;
  const auto chat = [](R& r) -> v1::ChatMessages& {
    v1::ChatMessage& message = *r.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content("hi");
    return *r.mutable_chat();
  };
  constexpr size_t kDeep = 500'000;  // more levels than a stack holds
  const std::string deep = std::string(kDeep, '[') + std::string(kDeep, ']');
  ExpectRefused({
      {[](R& r) { r.clear_prompt(); }, bad, {"prompt", "missing", "text, chat or tokens"}},
      {[](R& r) { r.set_text(""); }, bad, {"prompt", "empty", "at least 1 token"}},
      {[](R& r) { r.mutable_tokens()->clear_ids(); }, bad, {"prompt", "empty", "at least 1 token"}},
      {[](R& r) { r.mutable_chat(); }, bad, {"chat.messages", "at least one", "none"}},
      {[&](R& r) { chat(r).set_tools_json("{not json"); }, bad, {"chat.tools_json", "JSON array"}},
      {[&](R& r) { chat(r).set_tools_json("{}"); }, bad, {"chat.tools_json", "JSON array"}},
      {[&](R& r) { chat(r).set_tools_json(deep); }, bad, {"chat.tools_json", "JSON array"}},
      {[](R& r) { r.mutable_tokens()->set_ids(17, 259); },
       bad,
       {"prompt", "token 17 is 259", "[0, 259)"}},
      {[](R& r) { r.mutable_tokens()->set_ids(0, -1); },
       bad,
       {"prompt", "token 0 is -1", "[0, 259)"}},
  });
}

TEST_F(RequestErrors, PromptsThatAreTooLong) {
  using R = v1::GenerateRequest;
  const auto bad = StatusCode::kInvalidArgument;
  ExpectRefused({
      // Beyond the context of the model.
      {[](R& r) { r = TokensRequest(32768, 1); },
       bad,
       {"prompt", "32768 tokens", "context", "hash"}},
      {[](R& r) { r.set_text(std::string(1 << 20, 'a')); },
       bad,
       {"prompt", "1048576 tokens", "context", "32768"}},
      // So long that it is refused before it is tokenized.
      {[](R& r) { r.set_text(std::string(3 << 20, 'a')); },
       bad,
       {"prompt", "3145728 bytes", "context", "32768"}},
      // Within it, beyond every node's 64 blocks of 32 tokens.
      {[](R& r) { r = TokensRequest(3000, 1); },
       bad,
       {"3001 tokens", "largest decode node", "2048"}},
      {[](R& r) { r = TokensRequest(2000, 49); },
       bad,
       {"2049 tokens", "largest decode node", "2048"}},
  });
  // The largest that fits is served, and without max_tokens the answer ends where the pool does.
  EXPECT_OK(cluster_->Generate(TokensRequest(2000, 48)).status);
  v1::GenerateRequest open_ended = TokensRequest(2000, 1);
  open_ended.mutable_stop()->clear_max_tokens();
  const Answer answer = cluster_->Generate(open_ended);
  ASSERT_OK(answer.status);
  EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.tokens.size(), 48);
}

TEST_F(RequestErrors, ARequestBeyondTheMessageLimit) {
  v1::GenerateRequest request = TokensRequest(1, 1);
  request.set_text(std::string(17 << 20, 'a'));
  const Answer answer = cluster_->Generate(request);
  EXPECT_THAT(answer.status, StatusIs(StatusCode::kResourceExhausted,
                                      AllOf(HasSubstr("larger than max"), HasSubstr("16777216"))));
}

class RunningRequests : public BadCluster {
 protected:
  std::vector<std::string> Flags() const override {
    std::vector<std::string> flags = BadCluster::Flags();
    flags.push_back("--hash-step-time=5ms");  // an answer that still runs when looked at
    return flags;
  }
};

TEST_F(RunningRequests, ADuplicateIdIsRefusedWhileItsNamesakeRuns) {
  v1::GenerateRequest request = TokensRequest(100, 1500);
  request.set_request_id("the-one");
  absl::Status duplicate;
  int deltas = 0;
  ASSERT_OK(client().Generate(request, [&](const v1::GenerateResponse& part) {
    if (!part.has_delta()) return true;
    if (++deltas == 1) duplicate = cluster_->Generate(request).status;
    return deltas < 10;  // the first answer goes on
  }));
  EXPECT_EQ(deltas, 10);
  EXPECT_THAT(duplicate, StatusIs(StatusCode::kAlreadyExists,
                                  AllOf(HasSubstr("the-one"), HasSubstr("running"))));
  // Once that one is over its name is free.
  ASSERT_OK(AwaitQuiet(client(), absl::Seconds(20)));
  request.mutable_stop()->set_max_tokens(3);
  EXPECT_OK(cluster_->Generate(request).status);
}

}  // namespace
}  // namespace tandem::testing
