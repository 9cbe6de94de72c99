// Rounds rows of activations to int8 when a product begins, group by group along k. Each group is
// scaled by its own largest magnitude, so a large activation costs the other groups of its row no
// precision, and a row depends on itself alone. Thread safety: one worker writes one row.
#pragma once

#include "kernels/cpu/gemm_plan.h"
#include "kernels/cpu/int8_dot.h"

namespace tandem::kernels::TANDEM_ISA {

// A row of weights: its scale, and one of its elements as an integer of [-127, 127]. NaN becomes an
// integer of that range, too.
TANDEM_INLINE Int8Scale ScaleOfWeights(const float* row, int64_t k_count) {
  float most = 0;
  for (int64_t k = 0; k < k_count; ++k) {
    const float magnitude = __builtin_fabsf(row[k]);
    most = magnitude > most ? magnitude : most;
  }
  return ScaleFor(most);
}
TANDEM_INLINE int RoundWeight(float w, const Int8Scale& scale) {
  const float rounded = __builtin_nearbyintf(w * scale.factor);
  return static_cast<int>(rounded > -127.0f ? (rounded < 127.0f ? rounded : 127.0f) : -127.0f);
}

// One group of a row: x ≈ scale · q, and Σ q.
struct RoundedGroup {
  float scale;
  int32_t total;
};

// Up to kGroup values as bytes, zeros behind them up to a multiple of kPad.
template <int64_t kPad>
TANDEM_INLINE RoundedGroup RoundGroup(const float* x, int64_t count, uint8_t* bytes) {
  V16 most = Zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    most = Max(most, Magnitude(LoadMasked(LaneRange(0, count - i), x + i)));
  }
  const Int8Scale found = ScaleFor(ReduceMax(most));
  const V16 factor = Set1(found.factor);
  V16 total = Zero();  // of integers: exact
  const int64_t padded = CeilDiv(count, kPad) * kPad;
  for (int64_t i = 0; i < padded; i += kLanes) {
    const V16 value = LoadMasked(LaneRange(0, count - i), x + i);
    const V16 rounded = RoundToInt8(Mul(value, factor));
    total = Add(total, rounded);
    const int64_t left = padded - i;
    if (left >= kLanes) {
      StoreBytes(bytes + i, ToInt(rounded));
      continue;
    }
    alignas(64) uint8_t tail[kLanes];
    StoreBytes(tail, ToInt(rounded));
    __builtin_memcpy(bytes + i, tail, static_cast<size_t>(left));
  }
  return {found.scale, static_cast<int32_t>(ReduceAdd(total))};
}

// A whole group, the same; it stays in registers from its largest magnitude to its bytes.
template <int64_t kGroup>
TANDEM_INLINE RoundedGroup RoundWholeGroup(const float* x, uint8_t* bytes) {
  constexpr int kVectors = kGroup / kLanes;
  V16 values[kVectors];
  V16 most = Zero();
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    values[v] = Load(x + v * kLanes);
    most = Max(most, Magnitude(values[v]));
  }
  const Int8Scale found = ScaleFor(ReduceMax(most));
  const V16 factor = Set1(found.factor);
  V16 total = Zero();  // of integers: exact
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const V16 rounded = RoundToInt8(Mul(values[v], factor));
    total = Add(total, rounded);
    StoreBytes(bytes + v * kLanes, ToInt(rounded));
  }
  return {found.scale, static_cast<int32_t>(ReduceAdd(total))};
}

// All rows of a call, in its scratch. `Scale` is the type that a kernel keeps for a group: it has
// From(const RoundedGroup&).
template <typename Scale, int64_t kGroup, int64_t kPad>
struct QuantisedRows {
  uint8_t* bytes;
  // A multiple of kPad, and not of 1 KiB, whose rows would compete for the same cache sets.
  int64_t stride;
  Scale* scales;  // [rows][groups]
  int64_t groups;

  explicit QuantisedRows(const GemmArgs& args)
      : stride(CeilDiv(args.w.shape.k, kPad) * kPad),
        scales(static_cast<Scale*>(args.scratch)),
        groups(CeilDiv(args.w.shape.k, kGroup)) {
    if (stride % 1024 == 0) stride += 64;
    // On a cache line: rows that are read by whole lines then straddle none.
    const uintptr_t end = reinterpret_cast<uintptr_t>(scales + args.rows * groups);
    bytes = reinterpret_cast<uint8_t*>((end + 63) / 64 * 64);
  }

  void Fill(const GemmArgs& args, const ParallelFor& parallel) const {
    const int64_t k = args.w.shape.k;
    parallel(args.rows, [&](int64_t row, int) {
      const float* x = args.x + row * args.x_stride;
      Scale* scale = scales + row * groups;
      uint8_t* out = bytes + row * stride;
      int64_t begin = 0;
      for (; begin + kGroup <= k; begin += kGroup) {
        *scale++ = Scale::From(RoundWholeGroup<kGroup>(x + begin, out + begin));
      }
      if (begin < k) *scale = Scale::From(RoundGroup<kPad>(x + begin, k - begin, out + begin));
    });
  }
};

}  // namespace tandem::kernels::TANDEM_ISA
