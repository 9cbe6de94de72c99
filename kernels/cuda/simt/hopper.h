// What kernels use of Hopper (sm_90a) beyond simt.h: barriers in shared memory, bulk tensor copies
// (TMA), warpgroup matrix products and the exchange of registers between warpgroups. Like simt.h,
// it has two versions: the GPU's instructions (kernels/cuda/gpu/hopper_gpu.h, which documents each
// function), and a stricter emulation of them (kernels/cuda/emulator/hopper_host.h).
// kernels/cuda/hopper_types.h defines the vocabulary: warpgroup, panel, phase.
//
// Thread safety: functions without a stream are called by threads of a block; each function says
// which threads must call it together. Describe* are called by the host thread that owns the
// stream. Errors: Describe* report to the stream's status.
#pragma once

#include <cstdint>

#include "kernels/cuda/hopper_types.h"
#include "kernels/cuda/simt/simt.h"

#if defined(__CUDACC__)
#include "kernels/cuda/gpu/hopper_gpu.h"  // IWYU pragma: export
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

// The descriptor of what lies `bytes` behind: one addition. The address's bits do not overflow into
// others, because a block's shared memory ends below 2^18. REQUIRES: bytes is a multiple of 16.
TANDEM_DEVICE uint64_t DescriptorBehind(uint64_t descriptor, int bytes) {
  const uint32_t low = static_cast<uint32_t>(descriptor) + static_cast<uint32_t>(bytes) / 16;
  return descriptor >> 32 << 32 | low;
}

}  // namespace tandem::kernels::TANDEM_SIMT
