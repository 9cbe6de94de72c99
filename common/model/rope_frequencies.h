// The frequencies of rotary position embedding (RoPE) under the checkpoint's scaling. Engines build
// their cosine and sine tables from them. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model_config.h"

namespace tandem::model {

// [head_dim / 2] radians per position: position t turns the pair (i, i + head_dim / 2) by
// t * result[i]. Computed in double. The scalings follow the Llama 3.1 release (smooth
// interpolation between wavelengths) and "YaRN: Efficient Context Window Extension of Large
// Language Models", Peng et al. 2023, section 3.2; YaRN's attention_factor multiplies the cosines
// and sines and is left to the caller. REQUIRES: head_dim is even and positive.
std::vector<double> RopeInverseFrequencies(const LayerConfig& layer, int32_t head_dim);

// Whether both layers have the same theta and scaling, hence the same cosines and sines.
bool SameRope(const LayerConfig& a, const LayerConfig& b);

}  // namespace tandem::model
