// Operators without a reduction: gated activation, residual add, scale. Every element is computed
// on its own, so no cut into tasks changes a bit. Thread safety: the calling thread and the threads
// of `parallel`. Owner: the caller owns all memory. Errors: none; a broken REQUIRES ends the
// process (require.h).
#pragma once

#include <cstdint>

#include "kernels/api/parallel.h"

namespace tandem::kernels {

// y = act(gate) · up, element by element. kSilu: g·sigmoid(g). kGeluTanh: the tanh approximation of
// GELU, 0.5·g·(1 + tanh(√(2/π)·(g + 0.044715·g³))).
enum class GateActivation { kSilu, kGeluTanh };

struct GatedActivationArgs {
  GateActivation activation = GateActivation::kSilu;
  const float* gate = nullptr;  // [rows][gate_stride]
  int64_t gate_stride = 0;
  const float* up = nullptr;  // [rows][up_stride]
  int64_t up_stride = 0;
  int64_t rows = 0;
  int64_t size = 0;
  float* y = nullptr;  // [rows][y_stride]; y == gate or y == up is allowed
  int64_t y_stride = 0;
};
using GatedActivationFn = void (*)(const GatedActivationArgs& args, const ParallelFor& parallel);

// y[i] += x[i] for `size` elements.
using AddFn = void (*)(const float* x, float* y, int64_t size, const ParallelFor& parallel);
// x[i] *= factor for `size` elements.
using ScaleFn = void (*)(float* x, float factor, int64_t size, const ParallelFor& parallel);

}  // namespace tandem::kernels
