// Goal: n answers of one request are each what the request with that sequence index alone gives,
// bit for bit in every topology; the prompt's KV is computed and travels once; the prompt is
// counted once; a group that is cancelled leaves nothing behind.
#include <gmock/gmock.h>

#include "common/engine/hash/hash_engine.h"
#include "tests/integration/sequences/answers.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

struct Shape {
  const char* name;
  int prompt_tokens;
  double temperature;
  int max_tokens;
};
constexpr int kLocalPrefillTokens = 32;  // the default; also the tokens of a block
constexpr Shape kShapes[] = {{"many blocks, sampled", 150, 0.8, 20},
                             {"many blocks, greedy", 150, 0.0, 20},
                             {"whole blocks", 128, 0.8, 20},
                             {"less than a block", 5, 0.8, 20},
                             {"one token", 1, 0.8, 20},
                             {"one token of answer", 150, 0.8, 1}};

v1::GenerateRequest RequestOf(const Shape& shape, int n, const std::string& salt) {
  v1::GenerateRequest request;
  for (int i = 0; i < shape.prompt_tokens; ++i) request.mutable_tokens()->add_ids(i * 7 % 256);
  request.mutable_sampling()->set_temperature(shape.temperature);
  request.mutable_sampling()->set_seed(77);
  request.mutable_sampling()->set_logprobs(2);
  request.mutable_stop()->set_max_tokens(shape.max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_cache_salt(salt);
  request.set_n(n);
  return request;
}

// What the hash engine answers as sequence `index`.
std::vector<int32_t> Expected(const v1::GenerateRequest& request, int index) {
  request::SamplingParams sampling;
  sampling.temperature = request.sampling().temperature();
  sampling.seed = request.sampling().seed();
  std::vector<TokenId> all(request.tokens().ids().begin(), request.tokens().ids().end());
  const size_t prompt = all.size();
  for (int i = 0; i < request.stop().max_tokens(); ++i)
    all.push_back(engine::HashEngineNextToken({}, all, sampling, index));
  return {all.begin() + prompt, all.end()};
}

void ExpectOneWhole(const AnswersOf& answers, const v1::GenerateRequest& request) {
  ASSERT_OK(answers.status);
  ASSERT_EQ(static_cast<int>(answers.by_index.size()), request.n());
  int64_t prompt_tokens = 0;
  for (const auto& [index, answer] : answers.by_index) {
    EXPECT_EQ(answer.tokens, Expected(request, index)) << "sequence " << index;
    EXPECT_EQ(answer.ends, 1);
    EXPECT_EQ(answer.finished.usage().output_tokens(), request.stop().max_tokens());
    prompt_tokens += answer.finished.usage().prompt_tokens();
  }
  EXPECT_EQ(prompt_tokens, request.tokens().ids_size());
}

TEST(SeveralAnswers, AreTheSameEverywhereAndMoveThePromptOnce) {
  const std::vector<std::vector<std::string>> topologies = {
      {"--single-process", "--prefill=0", "--decode=1"},
      {"--prefill=1", "--decode=1", "--local-prefill-tokens=0"},
      {"--single-process", "--prefill=2", "--decode=3", "--max-batch-tokens=40"},
  };
  std::vector<std::string> reference;
  for (std::vector<std::string> flags : topologies) {
    SCOPED_TRACE(flags[1] + flags[2]);
    flags.insert(flags.end(), {"--engine=hash", "--kv-blocks=512"});
    ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start(flags));
    std::vector<std::string> bits;
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(shape.name);
      const v1::GenerateRequest request = RequestOf(shape, 4, absl::StrCat("four ", shape.name));
      const AnswersOf four = AskAll(cluster->client(), request);
      ExpectOneWhole(four, request);
      for (int follower = 1; follower < request.n(); ++follower) {
        EXPECT_EQ(four.by_index.at(follower).finished.route().decode_tokens().computed(), 1)
            << "sequence " << follower << " did not copy the prompt's last block";
      }
      bits.push_back(four.Bits());
      const AnswersOf one =
          AskAll(cluster->client(), RequestOf(shape, 1, absl::StrCat("one ", shape.name)));
      ASSERT_OK(one.status);
      EXPECT_EQ(one.by_index.at(0).bits, four.by_index.at(0).bits);
      // A single answer that ends with its first token needs no decode node.
      if (shape.max_tokens > 1) {
        EXPECT_EQ(one.KvBytes(), four.KvBytes());
      }
      const bool moves = flags[0] == "--prefill=1" ||
                         (flags[1] == "--prefill=2" && shape.prompt_tokens > kLocalPrefillTokens);
      EXPECT_EQ(four.KvBytes() > 0, moves);
    }
    if (reference.empty()) reference = bits;
    EXPECT_EQ(bits, reference);
    EXPECT_OK(AwaitQuiet(cluster->client(), absl::Seconds(15)).status());
    EXPECT_EQ(cluster->Stop(), "exit code 0");
  }
}

TEST(SeveralAnswers, ThatAreCancelledOrTooLateLeaveNothingBehind) {
  ASSERT_OK_AND_ASSIGN(auto cluster,
                       TestCluster::Start({"--engine=hash", "--prefill=1", "--decode=2",
                                           "--kv-blocks=256", "--hash-step-time=5ms"}));
  v1::GenerateRequest request = RequestOf({"", 300, 0.8, 2000}, 8, "");
  for (const int tokens : {1, 9, 60}) {
    request.set_cache_salt(absl::StrCat(tokens));
    EXPECT_OK(AskAll(cluster->client(), request, tokens).status);
    EXPECT_OK(AwaitQuiet(cluster->client(), absl::Seconds(15)).status()) << tokens;
  }
  request.set_deadline_s(0.3);
  const AnswersOf late = AskAll(cluster->client(), request);
  EXPECT_EQ(late.status.code(), absl::StatusCode::kDeadlineExceeded) << late.status;
  EXPECT_THAT(std::string(late.status.message()), ::testing::HasSubstr("300ms"));
  EXPECT_OK(AwaitQuiet(cluster->client(), absl::Seconds(15)).status());
}

// Blocks for few sequences at once: the group is placed and preempted piecemeal, and still whole.
TEST(SeveralAnswers, ThatDoNotFitTogetherComeOneAfterAnother) {
  ASSERT_OK_AND_ASSIGN(auto cluster,
                       TestCluster::Start({"--engine=hash", "--single-process", "--prefill=1",
                                           "--decode=1", "--kv-blocks=12"}));
  const v1::GenerateRequest request = RequestOf({"", 150, 0.8, 120}, 6, "");
  ExpectOneWhole(AskAll(cluster->client(), request), request);
  EXPECT_OK(AwaitQuiet(cluster->client(), absl::Seconds(15)).status());
}

}  // namespace
}  // namespace tandem::testing
