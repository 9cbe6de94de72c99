// The GPU's version of kernels/cuda/simt/hopper.h: one function for each instruction (PTX ISA 8.0,
// sm_90a). Kernels include it through simt/hopper.h only.
// Thread safety: as kernels/cuda/simt/hopper.h states.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/api/device.h"
#include "kernels/api/kv_cache.h"
#include "kernels/cuda/gpu/simt_gpu.h"
#include "kernels/cuda/gpu/wgmma_gpu.h"
#include "kernels/cuda/hopper_types.h"

namespace tandem::kernels::cuda {

// Whether this pass compiles for Hopper. In other passes these kernels contain only a trap: the
// host launches them on Hopper alone.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kCompilesForHopper = true;
#else
inline constexpr bool kCompilesForHopper = false;
#endif
TANDEM_DEVICE void Trap() { __trap(); }

// ---- shared memory and barriers

using Barrier = uint64_t;

TANDEM_DEVICE uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// A phase of `barrier` ends after `arrivals` arrivals and all bytes expected in it. One thread
// calls this, then FenceBarrierInit; then all threads call SyncThreads.
TANDEM_DEVICE void InitBarrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}
// Makes initialised barriers visible to bulk copies.
TANDEM_DEVICE void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Makes this thread's ordinary stores to shared memory visible to bulk copies and matrix products
// that start after the next barrier.
TANDEM_DEVICE void FenceProxyAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
TANDEM_DEVICE void Arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
// Arrives, and makes the phase wait for `bytes` of bulk copies too.
TANDEM_DEVICE void ArriveExpecting(Barrier* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
// Waits until the phase of parity `parity` has ended.
TANDEM_DEVICE void WaitPhase(Barrier* barrier, int parity) {
  uint32_t ended = 0;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(ended)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  } while (ended == 0);
}
// Whether the phase of parity `parity` has ended, without waiting. Where it has, what happened
// before its end is visible, as behind WaitPhase.
TANDEM_DEVICE bool HasEnded(Barrier* barrier, int parity) {
  uint32_t ended = 0;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(ended)
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
  return ended != 0;
}

// ---- clusters: blocks that run at the same time and reach each other's shared memory

// This block's place among those of its cluster.
TANDEM_DEVICE int ClusterRank() {
  int rank = 0;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// How many blocks it has.
TANDEM_DEVICE int ClusterBlocks() {
  int blocks = 0;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
// A barrier of all threads of all blocks of the cluster. One after initialising barriers comes
// before what other blocks do with them. One at the end keeps a block's shared memory alive until
// no block arrives at its barriers or copies into it.
TANDEM_DEVICE void SyncCluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// The word that lies at the same place of shared memory in block `rank` of the cluster. SyncCluster
// separates this from the store there before, and from the next store there or that block's end.
TANDEM_DEVICE uint32_t LoadFromBlock(int rank, const uint32_t* shared) {
  uint32_t word = 0;
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.u32 %0, [remote];\n}"
      : "=r"(word)
      : "r"(SharedAddress(shared)), "r"(rank)
      : "memory");
  return word;
}
TANDEM_DEVICE float LoadFromBlock(int rank, const float* shared) {
  return BitsToFloat(LoadFromBlock(rank, reinterpret_cast<const uint32_t*>(shared)));
}
TANDEM_DEVICE uint64_t LoadFromBlock(int rank, const uint64_t* shared) {
  uint64_t word = 0;
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.u64 %0, [remote];\n}"
      : "=l"(word)
      : "r"(SharedAddress(shared)), "r"(rank)
      : "memory");
  return word;
}
// Arrives at the barrier that lies at the same place in block `rank` of the cluster. What this
// thread and the products that it waited for have read may then be overwritten. Nothing that it
// wrote is published to that block: release at the cluster's scope would wait for all of its stores
// to device memory (MEMBAR.GPU), at every stage.
TANDEM_DEVICE void ArriveIn(int rank, Barrier* barrier) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(SharedAddress(barrier)),
      "r"(rank)
      : "memory");
}

// ---- bulk tensor copies

// The copy engine's description of a PanelSource; a kernel's parameter.
struct PanelMap {
  CUtensorMap map;
};
// Failures go to the stream's status.
PanelMap DescribePanels(const PanelSource& source, DeviceStream& stream);

TANDEM_DEVICE void PrefetchMap(const PanelMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map.map) : "memory");
}
// The first element of a copy in its matrix.
struct MatrixPlace {
  int row, column;
};
TANDEM_DEVICE void CopyFromMatrix(void* shared, const CUtensorMap& map, const MatrixPlace& place,
                                  Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(SharedAddress(shared)),
      "l"(&map), "r"(SharedAddress(barrier)), "r"(place.column), "r"(place.row)
      : "memory");
}
// Starts copying the panel of the matrix whose first element is (row, column); what lies beyond the
// matrix becomes 0. Counts panel_rows · 128 bytes on `barrier`. By one thread.
TANDEM_DEVICE void CopyPanel(char* panel, const PanelMap& map, int row, int column,
                             Barrier* barrier) {
  CopyFromMatrix(panel, map.map, {row, column}, barrier);
}

// CopyPanel into the blocks of the cluster whose bits are set, at the same place in each, counting
// on the barrier at the same place in each. The copy may arrive before a thread there expects it.
TANDEM_DEVICE void CopyPanelToBlocks(uint32_t blocks, char* panel, const PanelMap& map,
                                     const MatrixPlace& place, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(SharedAddress(panel)),
      "l"(&map.map), "r"(SharedAddress(barrier)), "r"(place.column), "r"(place.row),
      "h"(static_cast<uint16_t>(blocks))
      : "memory");
}

// The same for the numbers [column, column + count) of a row: counts 4 · count bytes on `barrier`.
struct RunMap {
  CUtensorMap map;
};
RunMap DescribeRuns(const RunSource& source, DeviceStream& stream);
TANDEM_DEVICE void PrefetchMap(const RunMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map.map) : "memory");
}
TANDEM_DEVICE void CopyRun(float* run, const RunMap& map, int row, int column, Barrier* barrier) {
  CopyFromMatrix(run, map.map, {row, column}, barrier);
}

// The same for a layer of the cache: panels of the lesser of `tokens_max` and a block's tokens.
struct CacheMap {
  CUtensorMap map;
};
CacheMap DescribeCache(const KvLayer& layer, int tokens_max, DeviceStream& stream);
TANDEM_DEVICE void PrefetchMap(const CacheMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map.map) : "memory");
}
TANDEM_DEVICE void CopyCachePanel(char* panel, const CacheMap& map, const CachePlace& place,
                                  Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(SharedAddress(panel)),
      "l"(&map.map), "r"(SharedAddress(barrier)), "r"(place.column), "r"(place.token),
      "r"(place.slab), "r"(place.block)
      : "memory");
}

// ---- bulk tensor copies back to device memory

struct StripMap {
  CUtensorMap map;
};
StripMap DescribeStrips(const StripTarget& target, DeviceStream& stream);
// Starts to store a strip whose first element is (row, column) of the matrix; what lies beyond the
// matrix is dropped. The threads that wrote it have called FenceProxyAsync, and then a barrier. By
// one thread, which calls CommitStores after its last strip, and WaitForStores before the strips
// are overwritten and before it ends.
TANDEM_DEVICE void StoreStrip(const StripMap& map, const void* strip, int row, int column) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map.map),
      "r"(SharedAddress(strip)), "r"(column), "r"(row)
      : "memory");
}
TANDEM_DEVICE void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until this thread's committed strips have been read.
TANDEM_DEVICE void WaitForStores() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// ---- sums in global memory

// Adds to what `to` holds, without waiting for it: the memory rounds each sum to the nearest, and
// reads and leaves zeros instead of subnormals. The successor sees the sums, as it sees stores.
// REQUIRES: no other thread of the grid accesses these places.
TANDEM_DEVICE void AddInMemory(float* to, float x) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

// ---- warpgroups

// This thread's warpgroup, computed so that the compiler knows that it is the same in a whole warp.
TANDEM_DEVICE int WarpgroupIndex() {
  return __shfl_sync(0xffffffffu, ThreadIndex() / kWarpgroupSize, 0);
}
// A barrier of this warpgroup's threads alone, called in the first kWarpgroups warpgroups only. The
// barrier's number is in the instruction: one in a register reserves all sixteen.
template <int kWarpgroups>
TANDEM_DEVICE void SyncWarpgroup() {
  static_assert(kWarpgroups == 1 || kWarpgroups == 2);
  if (kWarpgroups == 1 || WarpgroupIndex() == 0) {
    asm volatile("bar.sync 1, %0;" ::"n"(kWarpgroupSize) : "memory");
  } else {
    asm volatile("bar.sync 2, %0;" ::"n"(kWarpgroupSize) : "memory");
  }
}
// True in one thread of a converged warp.
TANDEM_DEVICE bool ElectOne() {
  uint32_t elected = 0;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
}
// Gives registers back, or takes registers that other warpgroups gave; all warps of a warpgroup
// call it. Each thread then has kCount registers, a multiple of 8 from 24 to 240; 0: as many as
// before.
template <int kCount>
TANDEM_DEVICE void GiveRegisters() {
  static_assert(kCount == 0 || IsRegisterCount(kCount));
  if constexpr (kCount != 0) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
TANDEM_DEVICE void TakeRegisters() {
  static_assert(kCount == 0 || IsRegisterCount(kCount));
  if constexpr (kCount != 0) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// ---- matrix products: kN columns, kN / 2 accumulators a thread. Thread t of a warpgroup holds in
// d[4j + 2h + e] row 16·(t / 32) + t % 32 / 4 + 8h, column 8j + 2·(t % 4) + e.

// Keeps the compiler from moving accesses of accumulators across this point.
template <int kCount>
TANDEM_DEVICE void HoldRegisters(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// Keeps the compiler from moving accesses of a product's operand across this point.
TANDEM_DEVICE void HoldOperand(uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[i])::"memory");
}
// Before the first product and after each wait: orders accesses of `d` before products on it.
template <int kCount>
TANDEM_DEVICE void FenceProducts(float (&d)[kCount]) {
  HoldRegisters(d);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Starts d[64×kN] (+)= a[64×16] · b[kN×16]ᵀ on panels' rows.
template <int kCount>
TANDEM_DEVICE void StartProduct(float (&d)[kCount], uint64_t a, uint64_t b, bool accumulate) {
  WgmmaInstruction(d, a, b, accumulate ? 1u : 0u);
}
// StartProduct on panels of e4m3: d[64×kN] (+)= a[64×32] · b[kN×32]ᵀ, added in fewer bits than fp32
// has.
template <int kCount>
TANDEM_DEVICE void StartFp8Product(float (&d)[kCount], uint64_t a, uint64_t b, bool accumulate) {
  WgmmaFp8Instruction(d, a, b, accumulate ? 1u : 0u);
}
// Starts d[64×kN] += a[64×16] · b[16×kN], a in the registers of mma.m16n8k16's fragments, 16 rows a
// warp; b as TransposedDescriptor tells. `a` stays unchanged until the wait.
template <int kCount>
TANDEM_DEVICE void AddRegisterProduct(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b) {
  WgmmaRegisterInstruction(d, a, b);
}
TANDEM_DEVICE void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups are unfinished. Of finished ones panels may be
// overwritten; accumulators may be read once no product on them is unfinished.
template <int kPending, int kCount>
TANDEM_DEVICE void WaitProducts(float (&d)[kCount]) {
  HoldRegisters(d);
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  HoldRegisters(d);
}

}  // namespace tandem::kernels::cuda
