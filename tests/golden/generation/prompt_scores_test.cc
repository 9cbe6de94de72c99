// Goal: the engine's log-probabilities of a prompt are the same bits for every chunking of it and
// beside other sequences, and each is what sampling at that position says of the token: none is
// shifted, lost or taken from another row.
#include <cstring>

#include "tests/golden/cpu_engine/engine_driver.h"

namespace tandem::engine {
namespace {

constexpr int kTokens = 75, kTop = 3;  // more than the rows scored at a time, more than two blocks

class PromptScores : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(const auto checkpoint,
                         model::Checkpoint::Open(testing::GoldenPath("tiny/smollm2")));
    CpuEngineOptions options;
    options.threads = 2;
    ASSERT_OK_AND_ASSIGN(engine_, NewCpuEngine(*checkpoint, options));
    ASSERT_OK(engine_->AllocateKv(32));
    for (int i = 0; i < kTokens; ++i) tokens_.push_back((i * 37 + 11) % 144);
  }
  DrivenSequence Driven(int32_t first_block) {
    DrivenSequence driven;
    driven.tokens = tokens_;
    driven.prompt_tokens = kTokens;
    driven.blocks = TakeBlocks(engine_->spec(), first_block, kTokens);
    driven.sampling.temperature = 0;
    return driven;
  }
  // Scores of the whole prompt in chunks of `chunk` rows, with `neighbours` others in each step.
  std::vector<SampledToken> Score(int64_t chunk, int neighbours) {
    std::vector<DrivenSequence> others;
    for (int i = 0; i < neighbours; ++i) others.push_back(Driven(8 * (i + 1)));
    DrivenSequence driven = Driven(0);
    std::vector<SampledToken> scores;
    while (driven.computed < kTokens) {
      const int64_t rows = std::min<int64_t>(chunk, kTokens - driven.computed);
      std::vector<SequenceSlice> slices;
      for (DrivenSequence& other : others) {
        other.computed = driven.computed;
        slices.push_back(SliceOf(other, rows));
      }
      SequenceSlice& slice = slices.emplace_back(SliceOf(driven, rows));
      slice.prompt_logprobs = kTop;
      slice.prompt_scores = &scores;
      EXPECT_OK(engine_->Step(slices, [](int) {}).status());
      driven.computed += rows;
    }
    return scores;
  }

  std::unique_ptr<Engine> engine_;
  std::vector<TokenId> tokens_;
};

bool SameBits(const SampledToken& a, const SampledToken& b) {
  bool same = a.token == b.token && std::memcmp(&a.logprob, &b.logprob, sizeof(float)) == 0 &&
              a.top_logprobs.size() == b.top_logprobs.size();
  for (size_t i = 0; same && i < a.top_logprobs.size(); ++i)
    same = a.top_logprobs[i].token == b.top_logprobs[i].token &&
           std::memcmp(&a.top_logprobs[i].logprob, &b.top_logprobs[i].logprob, sizeof(float)) == 0;
  return same;
}

TEST_F(PromptScores, DoNotDependOnChunksOrNeighbours) {
  const std::vector<SampledToken> whole = Score(kTokens, 0);
  ASSERT_EQ(static_cast<int>(whole.size()), kTokens - 1);
  for (const int64_t chunk : {1, 2, 7, 31, 33, 74}) {
    for (const int neighbours : {0, 2}) {
      const std::vector<SampledToken> scores = Score(chunk, neighbours);
      ASSERT_EQ(scores.size(), whole.size()) << chunk;
      for (size_t i = 0; i < whole.size(); ++i)
        EXPECT_TRUE(SameBits(scores[i], whole[i])) << "token " << i + 1 << ", chunk " << chunk;
    }
  }
}

TEST_F(PromptScores, AreWhatSamplingThereSays) {
  const std::vector<SampledToken> whole = Score(kTokens, 0);
  for (int position = 1; position < kTokens; ++position) {
    DrivenSequence driven = Driven(0);
    driven.tokens.resize(static_cast<size_t>(position));
    driven.sampling.logprobs = engine_->spec().vocab_size;
    ASSERT_OK_AND_ASSIGN(const SampledToken sampled, ComputeRest(engine_.get(), &driven, position));
    const SampledToken& scored = whole[static_cast<size_t>(position - 1)];
    EXPECT_EQ(scored.token, tokens_[static_cast<size_t>(position)]);
    for (const TopLogprob& top : sampled.top_logprobs) {
      if (top.token == scored.token) {
        EXPECT_EQ(std::memcmp(&top.logprob, &scored.logprob, sizeof(float)), 0) << position;
      }
    }
    for (size_t i = 0; i < kTop; ++i)
      EXPECT_EQ(scored.top_logprobs[i].token, sampled.top_logprobs[i].token) << position;
  }
}

}  // namespace
}  // namespace tandem::engine
