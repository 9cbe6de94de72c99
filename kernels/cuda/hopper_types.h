// The plain values that kernels and both machines (the GPU in kernels/cuda/gpu, the emulated thread
// block in kernels/cuda/emulator) share when they use Hopper's instructions. The functions that
// take these values are in kernels/cuda/simt/hopper.h.
//
// Vocabulary: a warpgroup is 128 threads from a multiple of 128. A panel is `rows` rows of 128
// bytes (64 bf16 or 128 e4m3) in shared memory, as a bulk copy with 128-byte swizzle lays them out:
// row r at byte 128·r, its 16-byte chunk c at place c ^ (r % 8). Panels begin on multiples of 1024
// bytes. A phase is one use of a barrier; its parity, 0 for the first, tells it from its
// neighbours.
//
// A kernel's predecessor is the kernel before it in its stream. From Hopper on a kernel's blocks
// start as soon as all blocks of the predecessor have started or ended (programmatic dependent
// launch), and wait for its results themselves.
//
// A cluster is blocks that run at the same time and reach each other's shared memory. Their ranks
// count from 0.
//
// Thread safety: constants and plain values. Owner: the kernel's launcher; a source borrows `base`.
#pragma once

#include <cstdint>

namespace tandem::kernels {

inline constexpr int kWarpgroupSize = 128;
inline constexpr int kWarpgroupWarps = kWarpgroupSize / 32;
inline constexpr int kPanelColumns = 64;  // in bf16 elements
inline constexpr int kPanelRowBytes = kPanelColumns * 2;
// The part of each row that one matrix product reads: 16 columns of bf16 or 32 of e4m3.
inline constexpr int kStepBytes = 32;
inline constexpr int kPanelAlignment = 1024;
// Extra bytes that a launch requests to align its first panel: shared memory begins on a multiple
// of 128.
inline constexpr int kPanelSlack = kPanelAlignment - 128;

// A kernel with kStartsEarly, as this base gives it, calls WaitForPredecessor itself, in every
// thread that goes on to read what an earlier kernel wrote, or to write. Before that it may read
// only what no kernel since the stream's last copy writes, such as weights: a copy waits for all
// kernels before it, and the kernel after it for the copy. At least one thread of each block waits,
// so that kernels end in order. Launch lets all other kernels wait before they run.
struct EarlyStart {
  static constexpr bool kStartsEarly = true;
};
template <typename Kernel>
concept StartsEarly = requires {
  requires Kernel::kStartsEarly;
};

// Whether setmaxnreg accepts this number of registers a thread.
constexpr bool IsRegisterCount(int count) { return count >= 24 && count <= 240 && count % 8 == 0; }

// A row-major matrix in device memory from which bulk copies take panels.
struct PanelSource {
  const void* base = nullptr;  // 16-byte boundary
  int64_t rows = 0;
  int64_t columns = 0;    // in elements; a row's bytes are a multiple of 16
  int panel_rows = 0;     // 1 to 256
  int element_bytes = 2;  // 1 or 2
};

// A row-major matrix of fp32 in device memory from which bulk copies take runs: `count` consecutive
// numbers of one row, copied without swizzle.
struct RunSource {
  const float* base = nullptr;  // 16-byte boundary
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of 4
  int count = 0;        // numbers in a run: a multiple of 4, at most 256
};
inline constexpr int kRunAlignment = 128;  // bytes; where a run may begin in shared memory

// A row-major bf16 matrix in device memory into which bulk copies store strips: `strip_rows` rows
// of kStripColumns columns, one after the other in shared memory, from a multiple of kRunAlignment
// bytes. A strip's rows are two whole sectors of memory.
struct StripTarget {
  void* base = nullptr;  // 16-byte boundary
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of 8
  int strip_rows = 0;   // 1 to 256
};
inline constexpr int kStripColumns = 32;
inline constexpr int kStripRowBytes = kStripColumns * 2;

// Where a panel begins in one layer's region of the paged bf16 cache. Slab 2·h is K of KV head h,
// slab 2·h + 1 its V.
struct CachePlace {
  int column, token, slab, block;
};

}  // namespace tandem::kernels
