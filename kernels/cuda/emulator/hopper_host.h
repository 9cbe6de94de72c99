// The host's version of kernels/cuda/simt/hopper.h: each function does what the PTX manual says of
// the instruction, inside an emulated thread block. Kernels include it through simt/hopper.h only;
// kernels/cuda/gpu/hopper_gpu.h documents each function.
//
// Stricter than a GPU on purpose: a bulk copy fills its panel with NaN when it starts and lands
// when no other thread of the block can proceed, in any order; products read their operands at the
// start or at the wait, and see only what bulk copies or FenceProxyAsync made visible; accumulators
// are NaN until the wait; bulk stores read shared memory at the start or at the wait. These
// mistakes end the process: a phase that no thread ends, a barrier used before it was initialised
// and fenced, a product without its fence, a register operand that changes before the wait,
// registers that no thread gives back, copies, stores or products that outlive the block, and an
// arrival or a copy in a block of the cluster that has not initialised its barriers or has ended,
// and a load from one that has ended.
//
// Thread safety: threads of the emulated block, which run one at a time on one host thread.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/api/device.h"
#include "kernels/api/kv_cache.h"
#include "kernels/api/require.h"
#include "kernels/cuda/emulator/simt_host.h"
#include "kernels/cuda/hopper_types.h"

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
bool HasEnded(Barrier* barrier, int parity);

inline int ClusterRank() { return CurrentThread().block->rank; }
inline int ClusterBlocks() { return CurrentThread().block->cluster_blocks; }
inline void SyncCluster() { ClusterBarrier(); }
template <typename T>
T LoadFromBlock(int rank, const T* shared) {
  const Block& mine = *CurrentThread().block;
  const size_t at = static_cast<size_t>(reinterpret_cast<const char*>(shared) - mine.shared);
  KERNEL_REQUIRE(at + sizeof(T) <= mine.shared_bytes && at % sizeof(T) == 0);
  T word;
  std::memcpy(&word, BlockOfCluster(rank).shared + at, sizeof(T));
  return word;
}
void ArriveIn(int rank, Barrier* barrier);

struct PanelMap {
  PanelSource source;
};
PanelMap DescribePanels(const PanelSource& source, DeviceStream& stream);
inline void PrefetchMap(const PanelMap&) {}
void CopyPanel(char* panel, const PanelMap& map, int row, int column, Barrier* barrier);
struct MatrixPlace {
  int row, column;
};
void CopyPanelToBlocks(uint32_t blocks, char* panel, const PanelMap& map, const MatrixPlace& place,
                       Barrier* barrier);

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

struct StripMap {
  StripTarget target;
};
StripMap DescribeStrips(const StripTarget& target, DeviceStream& stream);
void StoreStrip(const StripMap& map, const void* strip, int row, int column);
inline void CommitStores() { CurrentThread().stores.Commit(); }
inline void WaitForStores() { CurrentThread().stores.Wait(); }

inline float WithoutSubnormal(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}
inline void AddInMemory(float* to, float x) {
  *to = WithoutSubnormal(WithoutSubnormal(*to) + WithoutSubnormal(x));
}

inline int WarpgroupIndex() { return ThreadIndex() / kWarpgroupSize; }
template <int kWarpgroups>
void SyncWarpgroup() {
  KERNEL_REQUIRE(WarpgroupIndex() < kWarpgroups);
  WarpgroupBarrier();
}
// True in one lane of the warp, which stays the same throughout a block.
inline bool ElectOne() {
  WarpBarrier();
  return ThreadIndex() % 32 == CurrentThread().block->elected_lane;
}
// A take waits until other warps have given back enough registers.
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
// Other warps may get ahead before operands are read. The whole warp has its results before any of
// its threads continues.
template <int kPending, int kCount>
void WaitProducts(float (&)[kCount]) {
  WarpBarrier();
  CurrentThread().products.Wait(kPending);
  WarpBarrier();
}

}  // namespace tandem::kernels::emulated
