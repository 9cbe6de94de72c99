// From a sequence's sampling parameters to the sampling kernel's arguments.
// Thread safety: a pure function of its arguments.
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/aligned_buffer.h"
#include "common/engine/engine.h"
#include "kernels/api/backend.h"

namespace tandem::engine {

// Chooses the token after slice.tokens from `logits`. `scratch` has SamplingScratchBytes.
// Errors: kInternal when no token can be chosen (every logit is NaN or not allowed).
absl::StatusOr<SampledToken> SampleToken(const SequenceSlice& slice, absl::Span<const float> logits,
                                         const kernels::Backend& backend, void* scratch);

// The raw log-probability of `token` in `logits`, and the `num_top` highest ones.
SampledToken ScoreToken(TokenId token, int32_t num_top, absl::Span<const float> logits,
                        const kernels::Backend& backend, void* scratch);

}  // namespace tandem::engine
