// What kernels use of Hopper (sm_90a) beyond simt.h: barriers in shared memory, bulk tensor copies
// (TMA), warpgroup matrix products and the exchange of registers between warpgroups. In two
// versions like simt.h: the GPU's instructions, and an emulation that is stricter than they are
// (kernels/cuda/emulator/hopper_host.h).
//
// Vocabulary: a warpgroup is 128 threads from a multiple of 128. A panel is `rows` rows of 128
// bytes, 64 bf16 or 128 e4m3, in shared memory as a bulk copy with 128-byte swizzle lays them out:
// row r at byte 128·r, its 16-byte chunk c at place c ^ (r % 8). Panels begin on multiples of 1024
// bytes. A phase is one use of a barrier; phases are told apart by their parity, 0 for the first.
#pragma once

#include <cstdint>

#include "kernels/api/device_ops.h"
#include "kernels/api/kv_cache.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/simt.h"

namespace tandem::kernels::TANDEM_SIMT {

inline constexpr int kWarpgroupSize = 128;
inline constexpr int kWarpgroupWarps = kWarpgroupSize / kWarpSize;
inline constexpr int kPanelColumns = 64;  // of bf16
inline constexpr int kPanelRowBytes = kPanelColumns * 2;
// Of each row, what one product reads: 16 columns of bf16 or 32 of e4m3.
inline constexpr int kStepBytes = 32;
inline constexpr int kPanelAlignment = 1024;
// What a launch asks for beyond what it uses: shared memory begins on a multiple of 128.
inline constexpr int kPanelSlack = kPanelAlignment - 128;

// What setmaxnreg takes.
constexpr bool IsRegisterCount(int count) { return count >= 24 && count <= 240 && count % 8 == 0; }

// A row-major matrix in device memory of which panels are copied.
struct PanelSource {
  const void* base = nullptr;  // 16-byte boundary
  int64_t rows = 0;
  int64_t columns = 0;    // of a multiple of 16 bytes
  int panel_rows = 0;     // 1 to 256
  int element_bytes = 2;  // 1 or 2
};

// A row-major matrix of fp32 in device memory of which parts of rows are copied as they are.
struct RunSource {
  const float* base = nullptr;  // 16-byte boundary
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of 4
  int count = 0;        // of numbers in a run: a multiple of 4 up to 256
};
inline constexpr int kRunAlignment = 128;  // of a run's place in shared memory

// A place in a layer's region of the paged cache of bf16: slab 2·h is K of KV head h, 2·h + 1 its
// V.
struct CachePlace {
  int column, token, slab, block;
};

}  // namespace tandem::kernels::TANDEM_SIMT

#if defined(__CUDACC__)
#include "kernels/cuda/device/hopper_gpu.h"  // IWYU pragma: export
#else
#include "kernels/cuda/emulator/hopper_host.h"  // IWYU pragma: export
#endif

namespace tandem::kernels::TANDEM_SIMT {

TANDEM_DEVICE constexpr int PanelBytes(int rows) { return rows * kPanelRowBytes; }

// The block's dynamic shared memory from its first multiple of 1024 bytes: a launch asks for
// kPanelSlack bytes more than it uses.
TANDEM_DEVICE char* PanelMemory() {
  const uint32_t beyond = SharedAddress(SharedMemory()) % kPanelAlignment;
  return SharedMemory() + (kPanelAlignment - beyond) % kPanelAlignment;
}

// What a matrix product reads: bytes [32·step, 32·step + 32) of `panel`'s rows. Bits (PTX ISA,
// "Matrix descriptor"): 0-13 address / 16, 16-29 leading offset / 16 (unused by swizzled layouts
// with K in rows), 32-45 bytes between groups of eight rows / 16, 62-63 swizzle, 1 = 128 bytes.
TANDEM_DEVICE uint64_t PanelDescriptor(const char* panel, int step) {
  const uint64_t address = SharedAddress(panel) + static_cast<uint32_t>(step) * kStepBytes;
  return (address & 0x3ffff) >> 4 | uint64_t{1} << 16 | uint64_t{8 * kPanelRowBytes / 16} << 32 |
         uint64_t{1} << 62;
}

// What a product with K in columns reads of B, [K][N]: rows 16·step of neighbouring panels of
// `rows` rows, N counting on from panel to panel. Bits as above; the leading offset is from panel
// to panel.
TANDEM_DEVICE uint64_t TransposedDescriptor(const char* panels, int step, int rows) {
  const uint64_t address =
      SharedAddress(panels) + static_cast<uint32_t>(step) * 16 * kPanelRowBytes;
  return (address & 0x3ffff) >> 4 |
         uint64_t{static_cast<uint32_t>(rows * kPanelRowBytes / 16)} << 16 |
         uint64_t{8 * kPanelRowBytes / 16} << 32 | uint64_t{1} << 62;
}

}  // namespace tandem::kernels::TANDEM_SIMT
