// Translates a sequence's sampling parameters into the sampling kernel's arguments, and chooses a
// token with a backend of the host. Thread safety: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/aligned_buffer.h"
#include "common/engine/engine.h"
#include "common/engine/token_counts.h"
#include "kernels/api/backend.h"

namespace tandem::engine {

// Lower temperatures are greedy: quotients of ordinary logits would come near the largest float,
// and likelier tokens would tie with others there. Nearly equal logits alone could be drawn
// otherwise.
inline constexpr double kGreedyBelow = 0x1p-64;

// Bit i says whether token i may be chosen; empty = all may.
using TokenMask = std::vector<uint32_t>;

// All inputs of a slice's next token except the logits.
struct SamplingInputs {
  // Points into the members below and to the slice's counts; no logits, top_logprobs or scratch
  // yet.
  kernels::SamplingArgs args;
  std::vector<kernels::TokenBias> biases;
  TokenCounts counts;  // of a slice that has none
  TokenMask mask;
  bool banned = false;  // `mask` excludes banned tokens, which may be chosen if no other is left
  TokenMask unbanned;   // the mask without that exclusion
  TokenId only = -1;    // ≥ 0: the only possible token, when the slice wants no log-probabilities

  SamplingInputs() = default;
  SamplingInputs(SamplingInputs&&) = default;
  SamplingInputs& operator=(SamplingInputs&&) = default;
};
// `slice.counts` outlives the result.
SamplingInputs InputsOf(const SequenceSlice& slice, int32_t vocab_size);

// Chooses the token after slice.tokens from `logits`, or says that there is none
// (SampledToken::no_choice). `scratch` has SamplingScratchBytes.
SampledToken SampleToken(const SequenceSlice& slice, absl::Span<const float> logits,
                         const kernels::Backend& backend, void* scratch);

// The same, from inputs that InputsOf made. `logits` has inputs.args.vocab_size elements.
SampledToken SampleToken(const SamplingInputs& inputs, const float* logits,
                         const kernels::Backend& backend, void* scratch);

SampledToken ToSampled(TokenId token, float logprob, absl::Span<const kernels::TokenLogprob> top);

// The raw log-probability of `token` in `logits`, and the `num_top` highest ones.
SampledToken ScoreToken(TokenId token, int32_t num_top, absl::Span<const float> logits,
                        const kernels::Backend& backend, void* scratch);

}  // namespace tandem::engine
