// The last step of every GEMM kernel, once a tile's sums are fp32: y = sum (+ bias) (+ y). Where
// rows of a gate and of an up projection alternate in w, it is act(gate) · up in bf16 instead.
//
// A thread handles two neighbouring columns at a time, which is what an accumulator of mma.sync and
// of wgmma gives it: columns 2·(lane % 4) and the next of every eight. So a gate and its up
// projection meet in one thread, and stores are 8 bytes (4 in bf16). Thread safety: device
// functions; each thread writes its own columns.
#pragma once

#include "kernels/api/device_gemm.h"
#include "kernels/cuda/ops/activation.h"

namespace tandem::kernels::TANDEM_SIMT {

// What y holds in columns n and n + 1 of row m; 0 outside of y. Callers load several pairs before
// they store the first: a load behind a store to the same array waits for the one before it.
// REQUIRES: n is even.
TANDEM_DEVICE FloatPair LoadPair(const DeviceGemmArgs& p, int m, int n) {
  if (m >= p.rows || n >= p.n) return {0, 0};
  const float* y = p.y + int64_t{m} * p.n + n;
  if (p.n % 2 == 0) return *reinterpret_cast<const FloatPair*>(y);
  return {y[0], n + 1 < p.n ? y[1] : 0.0f};
}

// Stores the sums of columns n and n + 1 of row m, and drops those outside of y. Where they are
// added to y, `before` is what LoadPair gave. REQUIRES: n is even.
TANDEM_DEVICE void StorePair(const DeviceGemmArgs& p, int m, int n, FloatPair sum,
                             const FloatPair& before) {
  if (m >= p.rows || n >= p.n) return;
  const bool both = n + 1 < p.n;
  if (p.bias != nullptr) {
    sum.first = Add(sum.first, p.bias[n]);
    if (both) sum.second = Add(sum.second, p.bias[n + 1]);
  }
  if (p.gated != nullptr) {
    p.gated[int64_t{m} * (p.n / 2) + n / 2] =
        ToBf16(Gate(p.activation, sum.first, sum.second)).bits;
    return;
  }
  float* y = p.y + int64_t{m} * p.n + n;
  if (p.add_to_y) {
    sum.first = Add(before.first, sum.first);
    sum.second = Add(before.second, sum.second);
  }
  if (p.n % 2 == 0) {
    *reinterpret_cast<FloatPair*>(y) = sum;
  } else {
    y[0] = sum.first;
    if (both) y[1] = sum.second;
  }
}

}  // namespace tandem::kernels::TANDEM_SIMT
