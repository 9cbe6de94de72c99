// Rounds weights to groups of four-bit integers, and back. Every class uses this one
// implementation, compiled once, so all get the same bits. Thread safety: pure functions.
#pragma once

#include "kernels/api/gemm.h"

namespace tandem::kernels {

// `count` ≤ kInt4GroupSize weights as one group; what is behind them in it is 0. The least and the
// largest weight become 0 and 15, but for the rounding of scale and offset to fp16. Weights that
// are no numbers, or beyond fp16's range, become some that are.
Int4Group RoundToInt4(const float* weights, int64_t count);

// Element i of the group, as products see it.
float Int4Value(const Int4Group& group, int64_t i);

// The same group with scale and offset that are numbers: what is infinite or none becomes ±65504.
Int4Group FiniteInt4(const Int4Group& group);

// Group g of a block, element i of it, and the block with numbers, in the same way.
struct Int4Factors {
  float scale, offset;
};
Int4Factors Q4KFactors(const Q4KBlock& block, int64_t g);
float Q4KValue(const Q4KBlock& block, int64_t g, int64_t i);
Q4KBlock FiniteQ4K(const Q4KBlock& block);

// fp16, exactly.
float HalfToFloat(uint16_t half);
// To nearest even; beyond the range: ±65504.
uint16_t FloatToHalf(float value);

}  // namespace tandem::kernels
