// Causal grouped-query attention over the paged cache, for prompt and generated rows alike.
//
// Grid: x walks the items of the batch (a persistent loop, so that a captured graph serves any
// number of them), y = KV heads. An item is a tile of query vectors and a range of 256-token
// partitions; a narrow tile (16 vectors) belongs to one warp, a wide one (64) to four that share K
// and V. With head_dim 256 two warps share a tile, each with half of V's columns, and both compute
// the scores. Items that walk all partitions of their tile merge them as they go; others write each
// partition's (o, m, l) as a record, and the merge kernel does the same merges in the same order:
// Flash-Decoding with fixed partitions.
// Shared memory: q's tile, then stages of 32 tokens: K, then V; rows of head_dim, chunks swizzled.
// Bound: bytes of K and V for narrow tiles, tensor cores for wide ones.
#include "kernels/api/require.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/kernels.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

struct AttentionParams {
  DeviceAttentionArgs args;
  int block_shift;  // log₂ of block_tokens
};

template <int kHeadDim, int kRowTiles>
struct AttentionKernel {
  using Params = AttentionParams;
  static constexpr const char* kName = "attention kernel";
  static constexpr int kHalves = kHeadDim == 256 ? 2 : 1;
  static constexpr int kColumns = kHeadDim / kHalves;
  static constexpr int kThreads = kRowTiles * kHalves * kWarpSize;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kVectors = kRowTiles * 16;
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kQueryBytes = kVectors * kRowBytes;
  static constexpr int kTileBytes = kSubTileTokens * kRowBytes;  // of K or of V
  static constexpr int kStages = kHeadDim == 256 ? 2 : 3;
  static constexpr int kSharedBytes = kQueryBytes + kStages * 2 * kTileBytes;
  static constexpr int kRecordFloats = kHeadDim + 2;
  using Tile = WarpTile<kHeadDim, kColumns>;

  // One item on its way, the same in all threads of the block.
  struct Work {
    AttentionItem item;
    int kv_head;
    int heads_per_kv;
    int num_vectors;  // of the sequence
    int begin_token;  // lowest that any vector of the tile attends to
    int end_token;    // one beyond the highest
    int first_sub_tile, end_sub_tile;
  };

  TANDEM_KERNEL TokenRange RangeOf(const Params& p, const Work& work, int vector) {
    if (vector >= work.num_vectors) return {0, 0};
    const int position = work.item.first_position + vector / work.heads_per_kv;
    const int window = p.args.sliding_window;
    const int begin = window > 0 && position + 1 > window ? position + 1 - window : 0;
    return {begin, position + 1};
  }

  TANDEM_KERNEL Work Plan(const Params& p, const AttentionItem& item) {
    Work work;
    work.item = item;
    work.kv_head = BlockY();
    work.heads_per_kv = p.args.num_heads / p.args.layer.shape.num_kv_heads;
    work.num_vectors = item.num_rows * work.heads_per_kv;
    const int last = item.first_vector + kVectors < work.num_vectors
                         ? item.first_vector + kVectors - 1
                         : work.num_vectors - 1;
    work.begin_token = RangeOf(p, work, item.first_vector).begin;
    work.end_token = RangeOf(p, work, last).end;
    const int begin = item.first_partition * kPartitionTokens;
    const int end = item.end_partition * kPartitionTokens;
    if (work.begin_token < begin) work.begin_token = begin;
    if (work.end_token > end) work.end_token = end;
    work.first_sub_tile = work.begin_token / kSubTileTokens;
    work.end_sub_tile = (work.end_token + kSubTileTokens - 1) / kSubTileTokens;
    return work;
  }

  // Row of q (and of out) of a vector: an index of head_dim elements.
  TANDEM_KERNEL int64_t RowOf(const Params& p, const Work& work, int vector) {
    const int64_t row = work.item.first_row + vector / work.heads_per_kv;
    return row * p.args.num_heads + work.kv_head * work.heads_per_kv + vector % work.heads_per_kv;
  }

  TANDEM_KERNEL void LoadQueries(const Params& p, const Work& work) {
    for (int i = ThreadIndex(); i < kVectors * kChunks; i += kThreads) {
      const int r = i / kChunks, chunk = i % kChunks;
      const int vector = work.item.first_vector + r;
      const bool valid = vector < work.num_vectors;
      const int64_t row = valid ? RowOf(p, work, vector) : 0;
      CopyAsync16(SharedMemory() + SwizzledOffset<kChunks>(r, chunk),
                  p.args.q + row * kHeadDim + chunk * 8, valid);
    }
  }

  // Starts the copies of K and V of one sub-tile. Tokens that no vector of the tile attends to
  // become zeros: their places in the cache may hold anything, their table entries too.
  TANDEM_KERNEL void LoadSubTile(const Params& p, const Work& work, int sub_tile) {
    char* stage = SharedMemory() + kQueryBytes + sub_tile % kStages * 2 * kTileBytes;
    const int64_t slab_bytes = int64_t{p.args.layer.shape.block_tokens} * kRowBytes;
    const char* base = static_cast<const char*>(p.args.layer.base);
    for (int i = ThreadIndex(); i < kSubTileTokens * kChunks; i += kThreads) {
      const int t = i / kChunks, chunk = i % kChunks;
      const int token = sub_tile * kSubTileTokens + t;
      const bool valid = token >= work.begin_token && token < work.end_token;
      const char* keys = base;
      if (valid) {
        const int64_t block = p.args.tables[work.item.table_offset + (token >> p.block_shift)];
        const int in_block = token & ((1 << p.block_shift) - 1);
        keys += block * p.args.layer.block_stride_bytes + work.kv_head * 2 * slab_bytes +
                in_block * kRowBytes + chunk * 16;
      }
      const int at = SwizzledOffset<kChunks>(t, chunk);
      CopyAsync16(stage + at, keys, valid);
      CopyAsync16(stage + kTileBytes + at, valid ? keys + slab_bytes : keys, valid);
    }
  }

  // o, m and l of one partition, for the merge kernel. Narrow tiles only.
  TANDEM_KERNEL void StoreRecord(const Params& p, const Work& work, int partition,
                                 const Tile& tile) {
    const int record = work.item.first_record + partition - work.item.first_partition;
    const int64_t first =
        (int64_t{record} * p.args.layer.shape.num_kv_heads + work.kv_head) * kNarrowRows;
    const int half = WarpIndex() % kHalves;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float* to = p.args.records + (first + LaneIndex() / 4 + 8 * h) * kRecordFloats;
#pragma unroll
      for (int g = 0; g < Tile::kGroups; ++g) {
        const int column = half * kColumns + g * 8 + LaneIndex() % 4 * 2;
        to[column] = tile.o[g][2 * h];
        to[column + 1] = tile.o[g][2 * h + 1];
      }
      if (half == 0 && LaneIndex() % 4 == 0) {
        to[kHeadDim] = tile.m[h];
        to[kHeadDim + 1] = tile.l[h];
      }
    }
  }
  static constexpr int kNarrowRows = 16;

  TANDEM_KERNEL void StoreOutput(const Params& p, const Work& work, const Tile& tile) {
    const int half = WarpIndex() % kHalves;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int vector =
          work.item.first_vector + WarpIndex() / kHalves * 16 + LaneIndex() / 4 + 8 * h;
      if (vector >= work.num_vectors) continue;
      const float inverse = 1.0f / tile.l[h];
      Bf16Bits* to = p.args.out + RowOf(p, work, vector) * kHeadDim + half * kColumns;
#pragma unroll
      for (int g = 0; g < Tile::kGroups; ++g) {
        const int column = g * 8 + LaneIndex() % 4 * 2;
        *reinterpret_cast<uint32_t*>(to + column) =
            PackBf16(Mul(tile.o[g][2 * h], inverse), Mul(tile.o[g][2 * h + 1], inverse));
      }
    }
  }

  // One sub-tile's arithmetic by one warp.
  TANDEM_KERNEL void Attend(const Params& p, int sub_tile, Tile* tile) {
    const char* stage = SharedMemory() + kQueryBytes + sub_tile % kStages * 2 * kTileBytes;
    const char* q = SharedMemory() + WarpIndex() / kHalves * 16 * kRowBytes;
    float s[4][4], factor[2];
    tile->Score(q, stage, s);
    tile->Softmax(sub_tile * kSubTileTokens, p.args.scale * kLog2E, s, factor);
    tile->AddValues(stage + kTileBytes, WarpIndex() % kHalves * (kColumns / 8), s, factor);
  }

  TANDEM_KERNEL void RunItem(const Params& p, const AttentionItem& item) {
    const Work work = Plan(p, item);
    LoadQueries(p, work);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      if (work.first_sub_tile + i < work.end_sub_tile)
        LoadSubTile(p, work, work.first_sub_tile + i);
      CommitCopies();
    }
    Tile tile, total;
    tile.Reset();
    total.Reset();
    const int first = item.first_vector + WarpIndex() / kHalves * 16 + LaneIndex() / 4;
    tile.range[0] = RangeOf(p, work, first);
    tile.range[1] = RangeOf(p, work, first + 8);
    for (int i = work.first_sub_tile; i < work.end_sub_tile; ++i) {
      WaitCopies<kStages - 2>();
      SyncThreads();
      const int next = i + kStages - 1;
      if (next < work.end_sub_tile) LoadSubTile(p, work, next);
      CommitCopies();
      Attend(p, i, &tile);
      if ((i + 1) % kSubTilesPerPartition != 0 && i + 1 != work.end_sub_tile) continue;
      tile.FinishPartition();
      if (item.first_record >= 0) {
        StoreRecord(p, work, i / kSubTilesPerPartition, tile);
      } else {
        total.Merge(tile);
      }
      tile.Reset();
    }
    if (item.first_record < 0) StoreOutput(p, work, total);
    WaitCopies<0>();
    SyncThreads();
  }

  TANDEM_KERNEL void Run(const Params& p) {
    const bool narrow = kRowTiles == 1;
    const AttentionItem* items = narrow ? p.args.narrow_items : p.args.wide_items;
    const int count = narrow ? p.args.counts->narrow_items : p.args.counts->wide_items;
    for (int i = BlockX(); i < count; i += GridX()) RunItem(p, items[i]);
  }
};

// Merges the records of split tiles in index order. Grid as above; a thread for a vector's column.
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
void LaunchAttention(const AttentionParams& params, DeviceStream& stream) {
  using Narrow = AttentionKernel<kHeadDim, 1>;
  using Wide = AttentionKernel<kHeadDim, 4>;
  using Merge = AttentionMergeKernel<kHeadDim>;
  const AttentionCounts& launch = params.args.launch;
  const int kv_heads = params.args.layer.shape.num_kv_heads;
  Launch<Wide>({.x = launch.wide_items,
                .y = kv_heads,
                .threads = Wide::kThreads,
                .shared_bytes = Wide::kSharedBytes},
               params, stream);
  Launch<Narrow>({.x = launch.narrow_items,
                  .y = kv_heads,
                  .threads = Narrow::kThreads,
                  .shared_bytes = Narrow::kSharedBytes},
                 params, stream);
  Launch<Merge>({.x = launch.merges, .y = kv_heads, .threads = Merge::kThreads}, params, stream);
}

}  // namespace

void Attention(const DeviceAttentionArgs& args, DeviceStream& stream) {
  const KvShape& shape = args.layer.shape;
  KERNEL_REQUIRE(shape.type == KvType::kBf16);
  AttentionParams params = {args, 0};
  while (1 << params.block_shift < shape.block_tokens) ++params.block_shift;
  KERNEL_REQUIRE(1 << params.block_shift == shape.block_tokens);
  KERNEL_REQUIRE(IsDeviceHeadDim(shape.head_dim));
  if (shape.head_dim == 16) LaunchAttention<16>(params, stream);
  if (shape.head_dim == 32) LaunchAttention<32>(params, stream);
  if (shape.head_dim == 64) LaunchAttention<64>(params, stream);
  if (shape.head_dim == 128) LaunchAttention<128>(params, stream);
  if (shape.head_dim == 256) LaunchAttention<256>(params, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
