// Goal: a top_p of 0 takes the likeliest token, at any temperature and seed.
#include <gmock/gmock.h>

#include <vector>

#include "common/engine/token_sampler.h"
#include "common/request/sampling_params.h"

namespace tandem::engine {
namespace {

TEST(TokenSampler, ATopPOfZeroTakesTheLikeliestToken) {
  constexpr int32_t kVocab = 300;
  constexpr TokenId kLikeliest = 271;
  std::vector<float> logits(kVocab, 1.0f);
  logits[kLikeliest] = 1.001f;
  AlignedBuffer scratch(kernels::SamplingScratchBytes(kVocab));
  const std::vector<TokenId> tokens = {1, 2};
  request::SamplingParams sampling;
  sampling.top_p = 0;
  sampling.temperature = 5;
  SequenceSlice slice;
  slice.tokens = tokens;
  slice.prompt_tokens = 2;
  slice.sampling = &sampling;
  for (sampling.seed = 0; sampling.seed < 20; ++sampling.seed) {
    const SampledToken sampled =
        SampleToken(slice, logits, kernels::BestPortableBackend(), scratch.data());
    EXPECT_EQ(sampled.token, kLikeliest);
  }
}

}  // namespace
}  // namespace tandem::engine
