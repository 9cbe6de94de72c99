// The host's version of hopper.h: each function as the PTX manual describes the instruction,
// executed by an emulated thread block. Included through hopper.h only.
//
// Stricter than a GPU on purpose: a bulk copy makes its panel NaN when it starts and lands when
// nothing else in the block can move, in any order; products read their operands at the start or at
// the wait, and only what bulk copies or FenceProxyAsync showed them; accumulators are NaN until
// the wait. A phase that nobody ends, a barrier used before it was initialised and fenced, a
// product without its fence, an operand in registers that changes before the wait, registers that
// nobody gives back, and copies or products that outlive the block end the process.
#pragma once

#include <cstdint>

#include "kernels/cuda/emulator/simt_host.h"

namespace tandem::kernels::emulated {

inline constexpr bool kCompilesForHopper = true;
inline void Trap() {}

using Barrier = uint64_t;

inline uint32_t SharedAddress(const void* shared) {
  const Block& block = *CurrentThread().block;
  return block.window_address +
         static_cast<uint32_t>(static_cast<const char*>(shared) - block.shared);
}

void InitBarrier(Barrier* barrier, int arrivals);
void FenceBarrierInit();
void FenceProxyAsync();
void Arrive(Barrier* barrier);
void ArriveExpecting(Barrier* barrier, int bytes);
void WaitPhase(Barrier* barrier, int parity);

struct PanelMap {
  PanelSource source;
};
PanelMap DescribePanels(const PanelSource& source, DeviceStream& stream);
inline void PrefetchMap(const PanelMap&) {}
void CopyPanel(char* panel, const PanelMap& map, int row, int column, Barrier* barrier);

struct RunMap {
  RunSource source;
};
RunMap DescribeRuns(const RunSource& source, DeviceStream& stream);
inline void PrefetchMap(const RunMap&) {}
void CopyRun(float* run, const RunMap& map, int row, int column, Barrier* barrier);

struct CacheMap {
  KvLayer layer;
  int tokens;
};
CacheMap DescribeCache(const KvLayer& layer, int tokens_max, DeviceStream& stream);
inline void PrefetchMap(const CacheMap&) {}
void CopyCachePanel(char* panel, const CacheMap& map, const CachePlace& place, Barrier* barrier);

inline int WarpgroupIndex() { return ThreadIndex() / kWarpgroupSize; }
inline void SyncWarpgroup() { WarpgroupBarrier(); }
// Any one lane of the warp, the same one all through a block.
inline bool ElectOne() {
  WarpBarrier();
  return ThreadIndex() % 32 == CurrentThread().block->elected_lane;
}
// Takes wait until as many were given back.
void MoveRegistersTo(int count, bool giving);
template <int kCount>
void GiveRegisters() {
  static_assert(kCount == 0 || IsRegisterCount(kCount));
  if constexpr (kCount != 0) MoveRegistersTo(kCount, true);
}
template <int kCount>
void TakeRegisters() {
  static_assert(kCount == 0 || IsRegisterCount(kCount));
  if constexpr (kCount != 0) MoveRegistersTo(kCount, false);
}

inline void HoldOperand(const uint32_t (&)[4]) {}
template <int kCount>
void FenceProducts(float (&)[kCount]) {
  CurrentThread().products.Fence();
}
template <int kCount>
void StartProduct(float (&d)[kCount], uint64_t a, uint64_t b, bool accumulate) {
  CurrentThread().products.Start({d, 2 * kCount, accumulate, b, false, a});
}
template <int kCount>
void StartFp8Product(float (&d)[kCount], uint64_t a, uint64_t b, bool accumulate) {
  Product product = {d, 2 * kCount, accumulate, b, false, a};
  product.fp8 = true;
  CurrentThread().products.Start(product);
}
void AddRegisterProductOf(float* d, int columns, const uint32_t a[4], uint64_t b);
template <int kCount>
void AddRegisterProduct(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b) {
  AddRegisterProductOf(d, 2 * kCount, a, b);
}
inline void CommitProducts() { CurrentThread().products.Commit(); }
// Others may get ahead before operands are read; the whole warp has its results before any of its
// threads goes on.
template <int kPending, int kCount>
void WaitProducts(float (&)[kCount]) {
  WarpBarrier();
  CurrentThread().products.Wait(kPending);
  WarpBarrier();
}

}  // namespace tandem::kernels::emulated
