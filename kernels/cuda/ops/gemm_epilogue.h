// The last step of every GEMM kernel, once a tile's sums are fp32: y = sum (+ bias) (+ y). Where
// rows of a gate and of an up projection alternate in w, it is act(gate) · up in bf16 instead.
//
// Most functions handle two neighbouring columns, which is what an accumulator of mma.sync gives a
// thread: columns 2·(lane % 4) and the next of every eight. So a gate and its up projection meet in
// one thread, and stores of sums are 8 bytes. Gates' values are 2 bytes: kernels bring neighbours
// together before they store them. Hopper's kernels store sums one by one (gemm_wgmma_tile.h).
// Thread safety: device functions; each thread writes its own columns.
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

// The bias of column n. Where there is none it is −0, which changes no number that it is added to.
TANDEM_DEVICE float BiasOf(const DeviceGemmArgs& p, int n) {
  return p.bias == nullptr || n >= p.n ? NegativeZero() : p.bias[n];
}
TANDEM_DEVICE FloatPair WithBias(const DeviceGemmArgs& p, int n, const FloatPair& sum) {
  return {Add(sum.first, BiasOf(p, n)), Add(sum.second, BiasOf(p, n + 1))};
}

// The gate's value of the sums of columns n and n + 1; 0 outside of y. REQUIRES: n is even.
TANDEM_DEVICE uint32_t GateBits(const DeviceGemmArgs& p, int n, const FloatPair& sum) {
  if (n >= p.n) return 0;
  const FloatPair biased = WithBias(p, n, sum);
  return ToBf16(Gate(p.activation, biased.first, biased.second)).bits;
}

// Four neighbouring bf16 values.
struct alignas(8) FourBf16 {
  uint32_t low, high;
};

// Of four neighbouring lanes, lane q gets value[q] of each, in the order of the lanes. Called by
// all lanes of a warp together.
TANDEM_DEVICE FourBf16 ExchangeFours(const uint32_t (&value)[4]) {
  const bool second = LaneIndex() % 2 != 0, upper = LaneIndex() % 4 >= 2;
  // Two lanes away: of values 0 and 1, or 2 and 3, this lane's and the other's.
  const uint32_t first_two = value[0] | value[1] << 16, last_two = value[2] | value[3] << 16;
  const uint32_t own = upper ? last_two : first_two;
  const uint32_t across = ShuffleXor(upper ? first_two : last_two, 2);
  // One lane away: a half of both words.
  const uint32_t halves[2] = {(own & 0xffff) | across << 16, own >> 16 | (across & 0xffff0000u)};
  const uint32_t kept = second ? halves[1] : halves[0];
  const uint32_t other = ShuffleXor(second ? halves[0] : halves[1], 1);
  // `kept` is of this lane and of the one two away, `other` of their neighbours.
  const uint32_t left = second ? other : kept, right = second ? kept : other;
  const uint32_t near = (left & 0xffff) | right << 16, far = left >> 16 | (right & 0xffff0000u);
  return {upper ? far : near, upper ? near : far};
}

// Stores the sums of columns n and n + 1 of row m, and drops those outside of y. Where they are
// added to y, `before` is what LoadPair gave. REQUIRES: n is even, and there is no gate.
TANDEM_DEVICE void StorePair(const DeviceGemmArgs& p, int m, int n, FloatPair sum,
                             const FloatPair& before) {
  if (m >= p.rows || n >= p.n) return;
  const bool both = n + 1 < p.n;
  sum = WithBias(p, n, sum);
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
