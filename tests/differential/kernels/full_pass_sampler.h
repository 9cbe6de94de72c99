// A sampler without shortcuts, compiled for AVX2: see full_pass_sampler.cc.
#pragma once

#include "kernels/api/sampling.h"

namespace tandem::kernels::full_pass {

// REQUIRES: the class avx2.
SamplingResult SampleInFullPasses(const SamplingArgs& args);

}  // namespace tandem::kernels::full_pass
