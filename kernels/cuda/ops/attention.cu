// Causal grouped-query attention over the paged cache, for prompt and generated rows alike
// (kernels/api/device_attention.h).
//
// Grid: x walks the items of the batch (a persistent loop, so that a captured graph serves any
// number of them), y = KV heads. An item is a tile of query vectors and a range of 256-token
// partitions; a narrow tile (16 vectors) belongs to one warp, a wide one (64) to four that share K
// and V. With head_dim 256 two warps share a tile, each with half of V's columns, and both compute
// the scores. Items that walk all partitions of their tile merge them as they go; others write each
// partition's (o, m, l) as a record, and the merge kernel does the same merges in the same order:
// Flash-Decoding with fixed partitions.
// Bound: bytes of K and V for narrow tiles, tensor cores for wide ones.
#include "kernels/api/device_attention.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/attention_kernel.h"
#include "kernels/cuda/ops/attention_tile.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

// Merges the records of split tiles in index order. Same grid; a thread for each column of a
// vector.
template <int kHeadDim>
struct AttentionMergeKernel {
  using Params = AttentionParams;
  static constexpr const char* kName = "attention merge kernel";
  static constexpr int kThreads = 256;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kRecordFloats = kHeadDim + 2;

  TANDEM_KERNEL void RunMerge(const Params& p, const AttentionMerge& merge) {
    const int kv_heads = p.args.layer.shape.num_kv_heads;
    const int heads_per_kv = p.args.num_heads / kv_heads;
    const int num_vectors = merge.num_rows * heads_per_kv;
    for (int i = ThreadIndex(); i < 16 * kHeadDim; i += kThreads) {
      const int vector = merge.first_vector + i / kHeadDim, column = i % kHeadDim;
      if (vector >= num_vectors) continue;
      float m = MinusInfinity(), l = 0, o = 0;
      for (int partition = 0; partition < merge.num_partitions; ++partition) {
        const int64_t record = int64_t{merge.first_record + partition} * kv_heads + BlockY();
        const float* from = p.args.records + (record * 16 + i / kHeadDim) * kRecordFloats;
        const MergeFactors f = FactorsOf(m, from[kHeadDim]);
        m = f.m;
        l = MergeValue(f, l, from[kHeadDim + 1]);
        o = MergeValue(f, o, from[column]);
      }
      const int64_t row = merge.first_row + vector / heads_per_kv;
      const int64_t head = BlockY() * heads_per_kv + vector % heads_per_kv;
      const int64_t at = (row * p.args.num_heads + head) * kHeadDim + column;
      p.args.out[at] = ToBf16(Mul(o, 1.0f / l)).bits;
    }
  }

  TANDEM_KERNEL void Run(const Params& p) {
    for (int i = BlockX(); i < p.args.counts->merges; i += GridX()) RunMerge(p, p.args.merges[i]);
  }
};

template <int kHeadDim>
void LaunchMerge(const AttentionParams& params, DeviceStream& stream) {
  using Merge = AttentionMergeKernel<kHeadDim>;
  Launch<Merge>({.x = params.args.launch.merges,
                 .y = params.args.layer.shape.num_kv_heads,
                 .threads = Merge::kThreads},
                params, stream);
}

}  // namespace

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
  if (shape.head_dim == 16) LaunchMerge<16>(params, stream);
  if (shape.head_dim == 32) LaunchMerge<32>(params, stream);
  if (shape.head_dim == 64) LaunchMerge<64>(params, stream);
  if (shape.head_dim == 128) LaunchMerge<128>(params, stream);
  if (shape.head_dim == 256) LaunchMerge<256>(params, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
