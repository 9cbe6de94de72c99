// Goal: beam search gives transformers' sequences, in its order and with its scores, on a small
// checkpoint: widths, length penalties, early stopping, with and without stop tokens that are
// likely (scripts/make_goldens/generation.py).
#include <algorithm>

#include "nlohmann/json.hpp"
#include "router/core/beam_search.h"
#include "tests/golden/cpu_engine/engine_driver.h"

namespace tandem::router {
namespace {

constexpr int kThreads = 1;
// Both sides compute in fp32, in different orders.
constexpr double kScoreTolerance = 2e-4;

// The likeliest continuations of `tokens`, from a whole prefill: what a step's leg answers.
v1::GeneratedToken Continue(engine::Engine& engine, std::vector<TokenId> tokens, int32_t top) {
  engine::DrivenSequence sequence;
  sequence.prompt_tokens = static_cast<int64_t>(tokens.size());
  sequence.tokens = std::move(tokens);
  sequence.blocks = engine::TakeBlocks(engine.spec(), 0, sequence.prompt_tokens);
  sequence.sampling.temperature = 0;
  sequence.sampling.logprobs = top;
  const auto sampled = engine::ComputeRest(&engine, &sequence, sequence.prompt_tokens);
  EXPECT_OK(sampled.status());
  v1::GeneratedToken token;
  for (const engine::TopLogprob& entry : sampled->top_logprobs) {
    token.add_top_logprobs()->set_token_id(entry.token);
    token.mutable_top_logprobs()->rbegin()->set_logprob(entry.logprob);
  }
  return token;
}

BeamSearch Search(engine::Engine& engine, const nlohmann::json& golden) {
  BeamParams params;
  params.width = golden["width"];
  params.length_penalty = golden.value("length_penalty", 1.0);
  params.early_stopping = golden.value("early_stopping", false);
  const std::vector<TokenId> prompt = golden["prompt"];
  BeamSearch search(params, golden["tokens"], golden["stops"].get<std::vector<TokenId>>(), 1);
  bool over = false;
  while (!over) {
    for (size_t b = 0; b < search.running().size(); ++b) {
      std::vector<TokenId> tokens = prompt;
      for (const TokenId token : search.TokenIds(search.running()[b])) tokens.push_back(token);
      search.Offer(static_cast<int32_t>(b), Continue(engine, tokens, search.candidates()));
    }
    over = search.Advance();
  }
  return search;
}

TEST(BeamSearch, AgreesWithTransformers) {
  ASSERT_OK_AND_ASSIGN(const auto checkpoint,
                       model::Checkpoint::Open(testing::GoldenPath("tiny/smollm2")));
  engine::CpuEngineOptions options;
  options.threads = kThreads;
  options.kv_type = "f32";
  options.numerics = "portable";
  ASSERT_OK_AND_ASSIGN(const auto engine, engine::NewCpuEngine(*checkpoint, options));
  ASSERT_OK(engine->AllocateKv(16));
  const nlohmann::json goldens =
      nlohmann::json::parse(testing::ReadFileOrEmpty(testing::GoldenPath("generation/beams.json")));
  ASSERT_EQ(goldens.size(), 24u);
  int stopped = 0, cut = 0;
  for (const nlohmann::json& golden : goldens) {
    SCOPED_TRACE(golden.dump());
    const BeamSearch search = Search(*engine, golden);
    const nlohmann::json& sequences = golden["sequences"];
    ASSERT_EQ(search.complete().size(), sequences.size());
    for (size_t i = 0; i < sequences.size(); ++i) {
      const BeamSearch::Beam& beam = search.complete()[i];
      std::vector<TokenId> tokens;
      for (const auto& token : search.Tokens(beam)) {
        EXPECT_EQ(token.index(), static_cast<int>(tokens.size()));
        EXPECT_EQ(token.top_logprobs_size(), 1);
        tokens.push_back(token.token_id());
      }
      EXPECT_EQ(tokens, sequences[i]["tokens"].get<std::vector<TokenId>>()) << i;
      if (sequences[i].contains("score")) {
        EXPECT_NEAR(beam.score, sequences[i]["score"].get<double>(), kScoreTolerance) << i;
      }
      ++(beam.reason == request::FinishReason::kStop ? stopped : cut);
    }
  }
  // The goldens hold both kinds of end.
  EXPECT_GT(stopped, 10);
  EXPECT_GT(cut, 10);
}

// Ties: the lower parent, then the lower token.
TEST(BeamSearch, BreaksTiesByParentAndToken) {
  BeamSearch search({.width = 2}, 2, {}, 0);
  const auto offer = [&](int beam, const std::vector<int>& tokens) {
    v1::GeneratedToken token;
    for (const int id : tokens) token.add_top_logprobs()->set_token_id(id);
    search.Offer(beam, token);  // all with log-probability 0
  };
  offer(0, {7, 3});
  EXPECT_FALSE(search.Advance());
  offer(0, {9, 8});
  offer(1, {1, 2});
  EXPECT_TRUE(search.Advance());
  ASSERT_EQ(search.complete().size(), 2u);
  EXPECT_EQ(search.TokenIds(search.complete()[0])[0], 3);
  EXPECT_EQ(search.TokenIds(search.complete()[0])[1], 8);
  EXPECT_EQ(search.TokenIds(search.complete()[1])[0], 3);
  EXPECT_EQ(search.TokenIds(search.complete()[1])[1], 9);
}

}  // namespace
}  // namespace tandem::router
