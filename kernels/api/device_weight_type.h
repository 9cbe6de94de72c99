// The types of weight matrices in device memory. kernels/api/device_matrix.h packs rows in these
// forms; kernels/api/device_gemm.h multiplies with them (docs/adr/0018). Thread safety: constants.
#pragma once

#include <cstdint>

namespace tandem::kernels {

// kBf16: [n][k] bf16.
// kInt8: the numbers and bits of kernels::WeightType::kInt8 on a CPU: integers and a scale for each
// row, activations rounded to int8 in groups of 64, exact sums of a group, one chain of FMAs.
// kInt4: groups of 32 as Int4Group; each weight scale · q + offset is rounded to bf16 on its way
// into the product with bf16 activations. kFp8: e4m3 and a scale for each row, multiplied like
// kInt4 (bf16 holds an e4m3 number exactly). kFp8Rows: the numbers of kFp8, multiplied as e4m3 with
// activations rounded to e4m3 in groups of 128; one chain of FMAs scales the tensor core's sums of
// a group (docs/adr/0029). Only devices that multiply e4m3 have it (HasProducts).
enum class DeviceWeightType { kBf16, kInt8, kInt4, kFp8, kFp8Rows };

// Rows of quantised matrices are padded with zeros to a multiple of this many columns.
inline constexpr int32_t kQuantisedColumns = 128;
constexpr int32_t PaddedColumns(int32_t k) {
  return (k + kQuantisedColumns - 1) / kQuantisedColumns * kQuantisedColumns;
}

}  // namespace tandem::kernels
