// A sampler without shortcuts, compiled for AVX2 (full_pass_sampler.cc): the oracle of the samplers
// that have them. Thread safety: pure functions.
#pragma once

#include "kernels/api/sampling.h"

namespace tandem::kernels::full_pass {

// REQUIRES: the class avx2.
SamplingResult SampleInFullPasses(const SamplingArgs& args);

}  // namespace tandem::kernels::full_pass
