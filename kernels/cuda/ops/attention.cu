// Causal grouped-query attention over the paged cache, for prompt and generated rows alike
// (kernels/api/device_attention.h).
//
// Grid: x walks the items of the batch (a persistent loop, so that a captured graph serves any
// number of them), y = KV heads. An item is a tile of query vectors and a range of 256-token
// partitions; a narrow tile (16 vectors) belongs to one warp, a wide one (64) to four that share K
// and V. With head_dim 256 two warps share a tile, each with half of V's columns, and both compute
// the scores. Items that walk all partitions of their tile merge them as they go; others write each
// partition's (o, m, l) as a record, and attention_merge.cu does the same merges in the same order:
// Flash-Decoding with fixed partitions.
// Bound: bytes of K and V for narrow tiles, tensor cores for wide ones.
#include <algorithm>

#include "kernels/api/device_attention.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/attention_kernel.h"
#include "kernels/cuda/ops/launchers.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

// The system takes a kilobyte of shared memory for each block.
constexpr int64_t kSystemSharedBytes = 1024;

template <typename Kernel>
int64_t BlocksAtOnce(int64_t shared_bytes) {
  return std::clamp<int64_t>(shared_bytes / (Kernel::kSharedBytes + kSystemSharedBytes), 1,
                             Kernel::kBlocksPerMultiprocessor);
}

template <KvType kType>
int64_t NarrowBlocksAtOnce(int32_t head_dim, int64_t shared_bytes) {
  switch (head_dim) {
    case 16:
      return BlocksAtOnce<AttentionKernel<16, 1, kType>>(shared_bytes);
    case 32:
      return BlocksAtOnce<AttentionKernel<32, 1, kType>>(shared_bytes);
    case 64:
      return BlocksAtOnce<AttentionKernel<64, 1, kType>>(shared_bytes);
    case 128:
      return BlocksAtOnce<AttentionKernel<128, 1, kType>>(shared_bytes);
    default:
      return BlocksAtOnce<AttentionKernel<256, 1, kType>>(shared_bytes);
  }
}

}  // namespace

int32_t NarrowItemsAtOnce(const KvShape& shape, int64_t shared_bytes) {
  const int64_t blocks = shape.type == KvType::kBf16
                             ? NarrowBlocksAtOnce<KvType::kBf16>(shape.head_dim, shared_bytes)
                         : shape.type == KvType::kInt8
                             ? NarrowBlocksAtOnce<KvType::kInt8>(shape.head_dim, shared_bytes)
                             : NarrowBlocksAtOnce<KvType::kFp8>(shape.head_dim, shared_bytes);
  return static_cast<int32_t>(blocks);
}

void AttendBf16(const AttentionParams& params, DeviceStream& stream) {
  LaunchItemsOf<KvType::kBf16>(params, stream);
}

void Attention(const DeviceAttentionArgs& args, DeviceStream& stream) {
  const KvShape& shape = args.layer.shape;
  AttentionParams params = {args, 0};
  while (1 << params.block_shift < shape.block_tokens) ++params.block_shift;
  KERNEL_REQUIRE(1 << params.block_shift == shape.block_tokens);
  KERNEL_REQUIRE(IsDeviceHeadDim(shape.head_dim));
  KERNEL_REQUIRE(shape.type != KvType::kF32);
  if (shape.type == KvType::kBf16) AttendBf16(params, stream);
  if (shape.type == KvType::kInt8) AttendInt8(params, stream);
  if (shape.type == KvType::kFp8) AttendFp8(params, stream);
  MergeRecords(args, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
