// The operators of one backend as tables: CUDA and the emulated device have the same kernels, so
// one header makes the tables of both. Thread safety: constants.
#pragma once

#include "kernels/api/device_ops.h"
#include "kernels/cuda/ops/gemm_wgmma_config.h"
#include "kernels/cuda/ops/launchers.h"

namespace tandem::kernels::TANDEM_SIMT {

// The kernels for compute capability 8.0 and later. `numerics` as in DeviceOps.
constexpr DeviceOps PortableOps(const char* numerics) {
  return {
      .numerics = numerics,
      .embed = Embed,
      .rms_norm = RmsNorm,
      .rope_kv = RopeKv,
      .gated = Gated,
      .quantise = Quantise,
      .gemm = Gemm,
      .gemm_tile = gemm::DescribeTile,
      .attention = Attention,
      .narrow_items_at_once = NarrowItemsAtOnce,
      .copy_blocks = CopyBlocks,
      .move_cells = MoveCells,
      .checksum = Checksum,
      .sample = Sample,
      .route_experts = RouteExperts,
      .sort_by_expert = SortByExpert,
      .grouped_gemm = GroupedGemm,
      .combine_experts = CombineExperts,
  };
}

// The kernels for compute capability 9.0: Hopper's own, and the portable ones for the operators
// that have none of their own.
constexpr DeviceOps HopperOps(const char* numerics) {
  DeviceOps ops = PortableOps(numerics);
  ops.gemm = WgmmaGemm;
  ops.gemm_tile = gemm::DescribeTileOnHopper;
  ops.attention = WgmmaAttention;
  ops.narrow_items_at_once = NarrowItemsAtOnceOnHopper;
  ops.sample = SampleOnHopper;
  return ops;
}

}  // namespace tandem::kernels::TANDEM_SIMT
