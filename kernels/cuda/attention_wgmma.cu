// Causal grouped-query attention over the paged cache on Hopper, for prompt and generated rows
// alike.
//
// Grid and items as in attention.cu; every tile, narrow or wide, is computed as 64 query vectors,
// of which a narrow one has 16. A block is one warpgroup; one of its threads starts the bulk tensor
// copies of K and V, block by block of the cache, into stages of 64 tokens, some sub-tiles ahead.
// Two blocks share a multiprocessor, so that one's products and the other's exponentials overlap.
// The schedule, partitions of 256 tokens, records and their merge are those of attention.cu; the
// bits are not. Shared memory: q's panels, then stages: K's panels [head_dim / 64][64 tokens], then
// V's; the merged o; barriers. Bound: bytes of K and V for narrow tiles, tensor cores and
// exponentials for wide ones.
#include "kernels/api/require.h"
#include "kernels/cuda/attention_wgmma_tile.h"
#include "kernels/cuda/device/swizzle.h"
#include "kernels/cuda/kernels.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr int kTilePanelBytes = 64 * kPanelRowBytes;  // of 64 vectors, or of 64 tokens

// How head_dim is laid out in a block.
struct AttentionLayout {
  int head_dim;

  constexpr int panels() const { return head_dim / kPanelColumns; }
  constexpr int stages() const { return head_dim == 64 ? 4 : 2; }

  constexpr int query_bytes() const { return panels() * kTilePanelBytes; }
  constexpr int stage_bytes() const { return 2 * panels() * kTilePanelBytes; }
  constexpr int total_at() const { return query_bytes() + stages() * stage_bytes(); }
  constexpr int barriers_at() const { return total_at() + head_dim / 2 * kWarpgroupSize * 4; }
  constexpr size_t shared_bytes() const {
    return static_cast<size_t>(barriers_at() + stages() * 16 + kPanelSlack);
  }
};

struct Chunk {
  alignas(16) uint32_t words[4];
};

template <int kHeadDim, bool kNarrow>
struct WgmmaAttentionKernel {
  struct Params {
    CacheMap cache;
    DeviceAttentionArgs args;
    int block_shift;  // log₂ of block_tokens
  };
  static constexpr const char* kName = "wgmma attention kernel";
  static constexpr AttentionLayout kLayout = {kHeadDim};
  static constexpr int kThreads = kWarpgroupSize;
  static constexpr int kBlocksPerMultiprocessor = 2;
  using Tile = WarpgroupTile<kHeadDim>;
  using Total = WarpgroupTotal<kHeadDim>;

  // Where a thread is in the ring of stages.
  struct Turn {
    int stage = 0;
    int parity = 0;

    TANDEM_DEVICE void Next() {
      if (++stage == kLayout.stages()) {
        stage = 0;
        parity ^= 1;
      }
    }
  };

  TANDEM_KERNEL char* StageOf(int stage) {
    return PanelMemory() + kLayout.query_bytes() + stage * kLayout.stage_bytes();
  }
  TANDEM_KERNEL char* ValuesOf(int stage) {
    return StageOf(stage) + kLayout.panels() * kTilePanelBytes;
  }
  TANDEM_KERNEL Barrier* FullBarrier(int stage) {
    return reinterpret_cast<Barrier*>(PanelMemory() + kLayout.barriers_at()) + stage;
  }
  TANDEM_KERNEL Barrier* EmptyBarrier(int stage) { return FullBarrier(kLayout.stages() + stage); }

  // Starts the copies of K and V of one sub-tile, leaving out pieces of blocks that no vector of
  // the tile attends to: their table entries may be anything.
  TANDEM_KERNEL void CopySubTile(const Params& p, const AttentionWork& work, int sub_tile,
                                 int stage) {
    const int block_tokens = 1 << p.block_shift;
    const int box = block_tokens < kWarpgroupTokens ? block_tokens : kWarpgroupTokens;
    const int first_token = sub_tile * kWarpgroupTokens;
    const int from = work.begin_token > first_token ? (work.begin_token - first_token) / box : 0;
    const int tokens = work.end_token - first_token;
    const int end = tokens < kWarpgroupTokens ? (tokens + box - 1) / box : kWarpgroupTokens / box;
    ArriveExpecting(FullBarrier(stage), (end - from) * 2 * kLayout.panels() * PanelBytes(box));
    for (int i = from; i < end; ++i) {
      const int token = first_token + i * box;
      const int block = p.args.tables[work.item.table_offset + (token >> p.block_shift)];
      CachePlace place = {0, token & (block_tokens - 1), work.kv_head * 2, block};
      for (int panel = 0; panel < kLayout.panels(); ++panel) {
        const int at = panel * kTilePanelBytes + PanelBytes(i * box);
        place.column = panel * kPanelColumns;
        place.slab = work.kv_head * 2;
        CopyCachePanel(StageOf(stage) + at, p.cache, place, FullBarrier(stage));
        place.slab = work.kv_head * 2 + 1;
        CopyCachePanel(ValuesOf(stage) + at, p.cache, place, FullBarrier(stage));
      }
    }
  }

  TANDEM_KERNEL void LoadQueries(const Params& p, const AttentionWork& work) {
    // Nobody multiplies with the last item's any more.
    SyncThreads();
    constexpr int kChunks = kHeadDim / 8;
    for (int i = ThreadIndex(); i < kWarpgroupVectors * kChunks; i += kWarpgroupSize) {
      const int r = i / kChunks, chunk = i % kChunks;
      const int vector = work.item.first_vector + r;
      Chunk value = {{0, 0, 0, 0}};
      if (vector < work.end_vector) {
        value = *reinterpret_cast<const Chunk*>(p.args.q + work.RowOf(p.args, vector) * kHeadDim +
                                                chunk * 8);
      }
      *reinterpret_cast<Chunk*>(PanelMemory() + chunk / 8 * kTilePanelBytes +
                                SwizzledOffset<8>(r, chunk % 8)) = value;
    }
    FenceProxyAsync();
    SyncThreads();
  }

  // Makes V zero for tokens that no vector of the tile attends to: their places in the cache may
  // hold anything, and p = 0 does not undo a NaN.
  TANDEM_KERNEL void ClearValues(const AttentionWork& work, int sub_tile, char* values) {
    const int first_token = sub_tile * kWarpgroupTokens;
    if (first_token >= work.begin_token && first_token + kWarpgroupTokens <= work.end_token) return;
    constexpr int kChunks = kHeadDim / 8;
    for (int i = ThreadIndex(); i < kWarpgroupTokens * kChunks; i += kWarpgroupSize) {
      const int t = i / kChunks, chunk = i % kChunks;
      const int token = first_token + t;
      if (token >= work.begin_token && token < work.end_token) continue;
      *reinterpret_cast<Chunk*>(values + chunk / 8 * kTilePanelBytes + t * kPanelRowBytes +
                                chunk % 8 * 16) = {{0, 0, 0, 0}};
    }
    FenceProxyAsync();
    SyncThreads();
  }

  // One sub-tile's arithmetic.
  TANDEM_KERNEL void Attend(const Params& p, const AttentionWork& work, int sub_tile, int stage,
                            const TokenRange range[2], Tile* tile) {
    char* values = ValuesOf(stage);
    float s[kWarpgroupTokens / 2];
    FenceProducts(s);
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const int at = step / 4 * kTilePanelBytes;
      StartProduct(s, PanelDescriptor(PanelMemory() + at, step % 4),
                   PanelDescriptor(StageOf(stage) + at, step % 4), step > 0);
    }
    CommitProducts();
    ClearValues(work, sub_tile, values);
    WaitProducts<0>(s);
    tile->Softmax(sub_tile * kWarpgroupTokens, p.args.scale * kLog2OfE, range, s);
    tile->AddValues(values, s);
  }

  // o, m and l of one partition, for the merge kernel: a narrow tile's 16 vectors, which the first
  // warp has.
  TANDEM_KERNEL void StoreRecord(const Params& p, const AttentionWork& work, int partition,
                                 const Tile& tile) {
    if (WarpIndex() != 0) return;
    const int record = work.item.first_record + partition - work.item.first_partition;
    const int64_t first =
        (int64_t{record} * p.args.layer.shape.num_kv_heads + work.kv_head) * kNarrowTileVectors;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float* to = p.args.records + (first + LaneIndex() / 4 + 8 * h) * (kHeadDim + 2);
#pragma unroll
      for (int g = 0; g < kHeadDim / 8; ++g) {
        const int column = g * 8 + LaneIndex() % 4 * 2;
        to[column] = tile.o[g * 4 + 2 * h];
        to[column + 1] = tile.o[g * 4 + 2 * h + 1];
      }
      if (LaneIndex() % 4 == 0) {
        to[kHeadDim] = tile.m[h];
        to[kHeadDim + 1] = tile.l[h];
      }
    }
  }

  TANDEM_KERNEL void StoreOutput(const Params& p, const AttentionWork& work, int first_vector,
                                 const Total& total) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int vector = first_vector + 8 * h;
      if (vector >= work.end_vector) continue;
      const float inverse = 1.0f / total.l[h];
      Bf16Bits* to = p.args.out + work.RowOf(p.args, vector) * kHeadDim;
      const float* from = total.o + 2 * h * kWarpgroupSize;
#pragma unroll
      for (int g = 0; g < kHeadDim / 8; ++g) {
        *reinterpret_cast<uint32_t*>(to + g * 8 + LaneIndex() % 4 * 2) =
            PackBf16(Mul(from[g * 4 * kWarpgroupSize], inverse),
                     Mul(from[(g * 4 + 1) * kWarpgroupSize], inverse));
      }
    }
  }

  TANDEM_KERNEL void AttendItem(const Params& p, const AttentionItem& item, bool copies,
                                Turn* turn) {
    constexpr int kItemVectors = kNarrow ? kNarrowTileVectors : kWarpgroupVectors;
    const AttentionWork work = AttentionWork::Of(p.args, item, kItemVectors, kWarpgroupTokens);
    LoadQueries(p, work);
    const int first_vector = item.first_vector + WarpIndex() * 16 + LaneIndex() / 4;
    const TokenRange range[2] = {work.RangeOf(first_vector), work.RangeOf(first_vector + 8)};
    Tile tile;
    Total total;
    tile.Reset();
    total.Reset(PanelMemory() + kLayout.total_at());
    Turn ahead = *turn;
    int next = work.first_sub_tile;
    for (int i = work.first_sub_tile; i < work.end_sub_tile; ++i) {
      // All stages are filled at first; then each that the whole block is done with.
      for (; next < work.end_sub_tile && next < i + kLayout.stages(); ++next) {
        if (copies) {
          WaitPhase(EmptyBarrier(ahead.stage), ahead.parity ^ 1);
          CopySubTile(p, work, next, ahead.stage);
        }
        ahead.Next();
      }
      SyncWarp();
      WaitPhase(FullBarrier(turn->stage), turn->parity);
      Attend(p, work, i, turn->stage, range, &tile);
      if (LaneIndex() == 0) Arrive(EmptyBarrier(turn->stage));
      turn->Next();
      if ((i + 1) % kWarpgroupTilesPerPartition != 0 && i + 1 != work.end_sub_tile) continue;
      tile.FinishPartition();
      if (item.first_record >= 0) {
        StoreRecord(p, work, i / kWarpgroupTilesPerPartition, tile);
      } else {
        total.Merge(tile);
      }
      tile.Reset();
    }
    if (item.first_record < 0) StoreOutput(p, work, first_vector, total);
  }

  TANDEM_KERNEL void Run(const Params& p) {
    if constexpr (!kCompilesForHopper) {
      Trap();
    } else {
      if (ThreadIndex() == 0) {
        for (int stage = 0; stage < kLayout.stages(); ++stage) {
          InitBarrier(FullBarrier(stage), 1);
          InitBarrier(EmptyBarrier(stage), kWarpgroupWarps);
        }
        FenceBarrierInit();
      }
      SyncThreads();
      const AttentionItem* items = kNarrow ? p.args.narrow_items : p.args.wide_items;
      const int count = kNarrow ? p.args.counts->narrow_items : p.args.counts->wide_items;
      const bool copies = WarpIndex() == 0 && ElectOne();
      Turn turn;
      for (int i = BlockX(); i < count; i += GridX()) AttendItem(p, items[i], copies, &turn);
    }
  }
};

template <int kHeadDim, bool kNarrow>
void LaunchItems(const DeviceAttentionArgs& args, int block_shift, DeviceStream& stream) {
  using Kernel = WgmmaAttentionKernel<kHeadDim, kNarrow>;
  const int blocks = kNarrow ? args.launch.narrow_items : args.launch.wide_items;
  if (blocks == 0) return;
  Launch<Kernel>({.x = blocks,
                  .y = args.layer.shape.num_kv_heads,
                  .threads = Kernel::kThreads,
                  .shared_bytes = Kernel::kLayout.shared_bytes()},
                 {DescribeCache(args.layer, kWarpgroupTokens, stream), args, block_shift}, stream);
}

template <int kHeadDim>
void LaunchAttention(const DeviceAttentionArgs& args, int block_shift, DeviceStream& stream) {
  LaunchItems<kHeadDim, false>(args, block_shift, stream);
  LaunchItems<kHeadDim, true>(args, block_shift, stream);
}

}  // namespace

void WgmmaAttention(const DeviceAttentionArgs& args, DeviceStream& stream) {
  const KvShape& shape = args.layer.shape;
  if (shape.type != KvType::kBf16 || (shape.head_dim != 64 && shape.head_dim != 128)) {
    Attention(args, stream);
    return;
  }
  int block_shift = 0;
  while (1 << block_shift < shape.block_tokens) ++block_shift;
  KERNEL_REQUIRE(1 << block_shift == shape.block_tokens);

  if (shape.head_dim == 64) LaunchAttention<64>(args, block_shift, stream);
  if (shape.head_dim == 128) LaunchAttention<128>(args, block_shift, stream);

  // Records are alike, so the merge is too.
  DeviceAttentionArgs merges = args;
  merges.launch.narrow_items = merges.launch.wide_items = 0;
  Attention(merges, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
