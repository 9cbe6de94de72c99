// Rounds weights to groups of four-bit integers, and back. Every class uses this one
// implementation, compiled once, so all get the same bits. Thread safety: pure functions.
#pragma once

#include "kernels/api/gemm.h"

namespace tandem::kernels {

// `count` ≤ kInt4GroupSize weights as one group, padded with 0. The smallest and the largest weight
// become 0 and 15, except for the rounding of scale and offset to fp16. NaN weights and weights
// beyond fp16's range become finite.
Int4Group RoundToInt4(const float* weights, int64_t count);

// Element i of the group, as products use it.
float Int4Value(const Int4Group& group, int64_t i);

// The same group with finite scale and offset: infinities and NaN become ±65504.
Int4Group FiniteInt4(const Int4Group& group);

// The same for a Q4_K block: scale and offset of its group g, element i of that group, and the
// block with finite scales.
struct Int4Factors {
  float scale, offset;
};
Int4Factors Q4KFactors(const Q4KBlock& block, int64_t g);
float Q4KValue(const Q4KBlock& block, int64_t g, int64_t i);
Q4KBlock FiniteQ4K(const Q4KBlock& block);

// An fp16 value, exactly.
float HalfToFloat(uint16_t half);
// To nearest even; values beyond fp16's range become ±65504.
uint16_t FloatToHalf(float value);

}  // namespace tandem::kernels
