// Rounds activations for products that read them rounded: x ≈ scale · value, each group of columns
// scaled by its largest magnitude. DeviceOps::quantise enqueues it, before the product.
//
// All pointers are device memory, except where a comment says otherwise; the caller owns that
// memory and keeps it unchanged until the enqueued work is done. Thread safety: the stream's.
// Errors: the stream's status; a broken REQUIRES ends the process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/bf16.h"
#include "kernels/api/device_weight_type.h"

namespace tandem::kernels {

// How many consecutive activations of a row share a scale.
inline constexpr int32_t kInt8GroupSize = 64;
inline constexpr int32_t kFp8GroupSize = 128;
// The group size of the activations that products with weights of `type` read; 0 where those
// products read bf16 activations, which have no scales.
constexpr int32_t ActivationGroup(DeviceWeightType type) {
  if (type == DeviceWeightType::kInt8) return kInt8GroupSize;
  return type == DeviceWeightType::kFp8Rows ? kFp8GroupSize : 0;
}
// Distance, in floats, from the scales of one group to those of the next: `rows` rounded up to 4.
constexpr int32_t ScaleStride(int32_t rows) { return (rows + 3) / 4 * 4; }
// Bytes that [rows][k] activations take once rounded for weights of `type`; zeros where they stay
// bf16.
struct DeviceRoundedBytes {
  size_t values = 0, scales = 0;
};
constexpr DeviceRoundedBytes RoundedBytesOf(DeviceWeightType type, int32_t rows, int32_t k) {
  if (ActivationGroup(type) == 0) return {};
  const int32_t groups = PaddedColumns(k) / ActivationGroup(type);
  return {static_cast<size_t>(rows) * static_cast<size_t>(PaddedColumns(k)),
          static_cast<size_t>(groups) * static_cast<size_t>(ScaleStride(rows)) * sizeof(float)};
}

// Rounds x to int8 for kInt8 and to e4m3 for kFp8Rows. In e4m3 a value that is not finite becomes
// NaN and does not count as a magnitude.
struct DeviceQuantiseArgs {
  const Bf16Bits* x = nullptr;  // [rows][k], 16-byte boundary
  int32_t rows = 0;
  int32_t k = 0;           // a multiple of 8
  void* values = nullptr;  // [rows][PaddedColumns(k)] one byte each, 16-byte boundary
  // [PaddedColumns(k) / ActivationGroup(type)][ScaleStride(rows)], 16-byte boundary
  float* scales = nullptr;
  DeviceWeightType type = DeviceWeightType::kInt8;
};

}  // namespace tandem::kernels
