// Packs weight matrices in the form that device products read (kernels/api/device_weight_type.h):
// the host rounds them and lays them out row by row, once, when it loads a model. Thread safety:
// pure functions; rows may be packed by different threads at once.
//
// kBf16   values [n][k] bf16; no scales.
// kInt8   values [n][PaddedColumns(k)] int8; scales [n] fp32.
// kInt4   values [n][groups][16 bytes], groups = PaddedColumns(k) / 32; scales [n][groups] of {s,
//         o}, fp16. Word t of a group holds what lane t of four has of it in the fragments of two
//         mma.m16n8k16: nibbles 0 and 4 are elements 2t and 2t + 1, nibbles 1 and 5 those + 8,
//         nibbles 2 and 6 those + 16, nibbles 3 and 7 those + 24.
// kFp8    values [n][groups][32 bytes] e4m3; scales [n] fp32. Words 2t and 2t + 1 of a group are
//         lane t's: of the first, bytes 1 and 3 are elements 2t and 2t + 1, bytes 0 and 2 those
//         + 8; of the second the same + 16.
// kFp8Rows values [n][PaddedColumns(k)] e4m3; scales [n] fp32. The numbers of kFp8, in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/bf16.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/api/gemm.h"

namespace tandem::kernels {

// "bf16", "int8", "int4", "fp8", "fp8a8".
const char* DeviceWeightTypeName(DeviceWeightType type);

// Bytes of one row's values and of its scales.
struct DeviceRowBytes {
  size_t values = 0, scales = 0;
};
DeviceRowBytes RowBytesOf(DeviceWeightType type, int32_t k);

// One row of w, to be packed.
struct DevicePackArgs {
  DeviceWeightType type = DeviceWeightType::kBf16;
  int32_t k = 0;
  const float* row = nullptr;  // [k]
  // kInt4: [ceil(k / 32)] groups instead of `row`. Infinite and NaN scales become finite ones.
  const Int4Group* groups = nullptr;
  // kFp8 and kFp8Rows: [k] e4m3 codes instead of `row`, and their scale. They are laid out as they
  // are, without rounding. REQUIRES: no code is NaN (0x7f or 0xff).
  const uint8_t* codes = nullptr;
  float code_scale = 1.0f;
  void* values = nullptr;  // [RowBytesOf.values]
  void* scales = nullptr;  // [RowBytesOf.scales]
};
void PackDeviceRow(const DevicePackArgs& args);

// The groups of a Q4_K block. It rounds scales and offsets to fp16, with a smaller error than the
// later rounding of weights to bf16.
void GroupsOf(const Q4KBlock& block, Int4Group groups[8]);

// The row as products see it, in fp32; tests compare with it.
void UnpackDeviceRow(const DevicePackArgs& args, float* row);

// To e4m3, which has no infinities and 448 as its largest magnitude: to nearest even; larger
// magnitudes and NaN become ±448.
uint8_t FloatToE4m3(float value);
float E4m3ToFloat(uint8_t bits);

// bf16, to nearest even; NaN stays NaN.
Bf16Bits FloatToBf16(float value);

}  // namespace tandem::kernels
