// The host functions that launch each operator's kernels: what the tables of DeviceOps point to.
// Each operator's header in kernels/api documents its arguments. They are compiled once for CUDA
// and once for the emulated thread block (namespace TANDEM_SIMT). Thread safety: the stream's.
// Errors: the stream's status; a broken REQUIRES ends the process.
#pragma once

#include "kernels/api/device_ops.h"
#include "kernels/cuda/simt/simt.h"

namespace tandem::kernels::TANDEM_SIMT {

void Embed(const DeviceEmbedArgs& args, DeviceStream& stream);
void RmsNorm(const DeviceRmsNormArgs& args, DeviceStream& stream);
void RopeKv(const DeviceRopeKvArgs& args, DeviceStream& stream);
void Gated(const DeviceGatedArgs& args, DeviceStream& stream);
void CopyBlocks(const DeviceCopyBlocksArgs& args, DeviceStream& stream);
void MoveCells(const DeviceMoveCellsArgs& args, DeviceStream& stream);
void Quantise(const DeviceQuantiseArgs& args, DeviceStream& stream);
void Gemm(const DeviceGemmArgs& args, DeviceStream& stream);
// Gemm for some types of weights. REQUIRES: args.type is one of them.
void GemmInt8(const DeviceGemmArgs& args, DeviceStream& stream);
void GemmWeightOnly(const DeviceGemmArgs& args, DeviceStream& stream);  // kInt4, kFp8
// Gemm on Hopper, for kFp8Rows too, with numerics of its own. It passes weights that are neither
// bf16 nor kFp8Rows on to Gemm.
void WgmmaGemm(const DeviceGemmArgs& args, DeviceStream& stream);
void WgmmaGemmFp8(const DeviceGemmArgs& args, DeviceStream& stream);  // kFp8Rows
void Attention(const DeviceAttentionArgs& args, DeviceStream& stream);
// Attention on Hopper, for bf16 caches and head_dim 64, 128 and 256. It passes other calls on to
// Attention.
void WgmmaAttention(const DeviceAttentionArgs& args, DeviceStream& stream);
// Folds the records of split tiles in index order: both end with it.
void MergeRecords(const DeviceAttentionArgs& args, DeviceStream& stream);
// DeviceOps::narrow_items_at_once of both.
int32_t NarrowItemsAtOnce(const KvShape& shape, int64_t shared_bytes);
int32_t NarrowItemsAtOnceOnHopper(const KvShape& shape, int64_t shared_bytes);
void Checksum(const DeviceChecksumArgs& args, DeviceStream& stream);
void Sample(const DeviceSampleArgs& args, DeviceStream& stream);
void SampleOnHopper(const DeviceSampleArgs& args, DeviceStream& stream);
void RouteExperts(const DeviceRouteArgs& args, DeviceStream& stream);
void SortByExpert(const DeviceSortByExpertArgs& args, DeviceStream& stream);
void GroupedGemm(const DeviceGroupedGemmArgs& args, DeviceStream& stream);
void CombineExperts(const DeviceCombineArgs& args, DeviceStream& stream);

}  // namespace tandem::kernels::TANDEM_SIMT
