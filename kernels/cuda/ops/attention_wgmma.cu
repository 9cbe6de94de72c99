// Causal grouped-query attention over the paged cache on Hopper, for prompt and generated rows
// alike (kernels/api/device_attention.h). docs/kernels/attention_hopper.md derives it.
//
// Consumers are warpgroups of 64 query vectors each: of a narrow item's tile 16, of a wide one's
// all; with head_dim 64 and 128 two consumers take two neighbouring wide items and share K and V.
// One more thread, of a warpgroup or warp of its own, starts the bulk tensor copies of K and V,
// block by block of the cache, into stages of 64 tokens; it walks the block's work items
// (attention_walk.h: a persistent grid), posts each for the consumers and runs ahead through the
// sub-tiles and into the next work item. It starts before the kernel before it in the stream has
// ended, with K and V of tokens that lie before the item's rows; only what is behind them waits for
// the kernel that wrote it. Barriers of a stage: K's and V's full end when their bytes
// have arrived, K's and V's empty when each consumer warp has finished with them. A consumer's
// exponentials run beside its last product with V and all of the other consumer's. Partitions of
// 256 tokens, records and their merge are those of attention.cu; the bits are not. Shared memory:
// q's panels of each consumer, then stages: K's panels [head_dim / 64][64 tokens], then V's; the
// merged o where registers do not hold it; barriers; posted work items. Bound: bytes of K and V for
// narrow tiles and head_dim 256, tensor cores and exponentials for wide ones.
#include <type_traits>

#include "kernels/api/bf16.h"
#include "kernels/api/device_attention.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/attention_walk.h"
#include "kernels/cuda/ops/attention_wgmma_layout.h"
#include "kernels/cuda/ops/attention_wgmma_queries.h"
#include "kernels/cuda/ops/attention_wgmma_tile.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/ops/ring_cursor.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

template <int kHeadDim, bool kNarrow>
struct WgmmaAttentionKernel : EarlyStart {
  struct Params {
    CacheMap cache;
    DeviceAttentionArgs args;
    int block_shift;  // log₂ of block_tokens
  };
  static constexpr const char* kName = "wgmma attention kernel";
  static constexpr AttentionLayout kLayout = {kHeadDim, kNarrow};
  static constexpr int kThreads = kLayout.threads();
  static constexpr int kBlocksPerMultiprocessor = kLayout.blocks_per_multiprocessor();
  // The system adds a kilobyte to what each block asks for.
  static_assert(kBlocksPerMultiprocessor * (kLayout.shared_bytes() + 1024) <= size_t{228} << 10);
  [[maybe_unused]] static constexpr AttentionTile kTile = {
      kNarrow ? kNarrowTileVectors : kWarpgroupVectors, kWarpgroupTokens};
  using Tile = WarpgroupTile<kHeadDim>;
  using TotalValues = std::conditional_t<kLayout.moves_registers(), RegisterValues<kHeadDim / 2>,
                                         SharedValues<kLayout.total_threads()>>;
  using Total = WarpgroupTotal<kHeadDim, TotalValues>;
  using Walk = AttentionWalk<kLayout.consumers()>;

  // Where a thread is in the ring of stages, and in the ring of posted work items.
  using Cursor = RingCursor<kLayout.stages()>;
  using WorkCursor = RingCursor<kPostedWorks>;

  // K or V of a stage, and its barriers.
  enum Part { kKeys, kValues };
  TANDEM_KERNEL char* MemoryOf(Part part, int stage) {
    return PanelMemory() + kLayout.stages_at() + (stage * 2 + part) * kLayout.tile_bytes();
  }
  TANDEM_KERNEL Barrier* Full(Part part, int stage) {
    return reinterpret_cast<Barrier*>(PanelMemory() + kLayout.barriers_at()) + stage * 4 + part;
  }
  TANDEM_KERNEL Barrier* Empty(Part part, int stage) { return Full(part, stage) + 2; }
  // A posted work item. One without rows marks the end.
  TANDEM_KERNEL AttentionWork* WorkAt(int place) {
    return reinterpret_cast<AttentionWork*>(PanelMemory() + kLayout.works_at()) + place;
  }
  TANDEM_KERNEL Barrier* WorkPosted(int place) {
    return reinterpret_cast<Barrier*>(PanelMemory() + kLayout.work_barriers_at()) + place * 2;
  }
  TANDEM_KERNEL Barrier* WorkDone(int place) { return WorkPosted(place) + 1; }
  TANDEM_KERNEL char* QueriesOf(int consumer) {
    return PanelMemory() + consumer * kLayout.tile_bytes();
  }

  TANDEM_KERNEL void WaitFull(Part part, const Cursor& cursor) {
    WaitPhase(Full(part, cursor.stage), cursor.parity);
  }
  // All threads of a consumer call this.
  TANDEM_KERNEL void Release(Part part, const Cursor& cursor) {
    if (LaneIndex() == 0) Arrive(Empty(part, cursor.stage));
  }

  // ---- the producer: one thread

  // The pieces of one sub-tile, each of one block of the cache: [from, end) of at most four, those
  // that some vector of the tile attends to. Table entries of others may be anything.
  struct Pieces {
    int box;  // tokens of a piece
    int from, end;
    int block[kPiecesMax];
  };
  TANDEM_KERNEL Pieces LookUp(const Params& p, const AttentionWork& work, int sub_tile) {
    Pieces pieces;
    const int block_tokens = 1 << p.block_shift;
    const int box = block_tokens < kWarpgroupTokens ? block_tokens : kWarpgroupTokens;
    const int first_token = sub_tile * kWarpgroupTokens;
    const int tokens = work.end_token - first_token;
    pieces.box = box;
    pieces.from = work.begin_token > first_token ? (work.begin_token - first_token) / box : 0;
    pieces.end = tokens < kWarpgroupTokens ? (tokens + box - 1) / box : kWarpgroupTokens / box;
    const int* table = p.args.tables + work.item.table_offset;
#pragma unroll
    for (int i = 0; i < kPiecesMax; ++i) {
      const bool needed = i >= pieces.from && i < pieces.end;
      pieces.block[i] = needed ? table[(first_token + i * box) >> p.block_shift] : 0;
    }
    return pieces;
  }

  // Starts the copies of K or V of one sub-tile.
  TANDEM_KERNEL void CopyPart(const Params& p, const AttentionWork& work, int sub_tile,
                              const Pieces& pieces, Part part, int stage) {
    Barrier* full = Full(part, stage);
    ArriveExpecting(full, (pieces.end - pieces.from) * kLayout.panels() * PanelBytes(pieces.box));
#pragma unroll
    for (int i = 0; i < kPiecesMax; ++i) {
      if (i < pieces.from || i >= pieces.end) continue;
      const int token = sub_tile * kWarpgroupTokens + i * pieces.box;
      CachePlace place = {0, token & ((1 << p.block_shift) - 1), work.kv_head * 2 + part,
                          pieces.block[i]};
      for (int panel = 0; panel < kLayout.panels(); ++panel) {
        place.column = panel * kPanelColumns;
        CopyCachePanel(MemoryOf(part, stage) + panel * kTilePanelBytes + PanelBytes(i * pieces.box),
                       p.cache, place, full);
      }
    }
  }

  TANDEM_KERNEL void CopyWorks(const Params& p) {
    PrefetchMap(p.cache);
    const AttentionItem* items = kNarrow ? p.args.narrow_items : p.args.wide_items;
    const int count = kNarrow ? p.args.counts->narrow_items : p.args.counts->wide_items;
    Walk walk({items, count, kTile});
    WorkCursor place;
    Cursor cursor;
    bool waited = false;  // for the kernel that wrote K and V of the batch's rows
    for (;; place.Next()) {
      // In the first round, the phase before the first counts as ended.
      WaitPhase(WorkDone(place.stage), place.parity ^ 1);
      AttentionWork* work = WorkAt(place.stage);
      if (!walk.Next(p.args, work)) break;
      Arrive(WorkPosted(place.stage));
      // The next sub-tile's blocks are looked up before the wait for room.
      Pieces next = LookUp(p, *work, work->first_sub_tile);
      for (int i = work->first_sub_tile; i < work->end_sub_tile; ++i) {
        const Pieces pieces = next;
        if (i + 1 < work->end_sub_tile) next = LookUp(p, *work, i + 1);
        if (!waited && (i + 1) * kWarpgroupTokens > work->item.first_position) {
          WaitForPredecessor();
          waited = true;
        }
        WaitPhase(Empty(kKeys, cursor.stage), cursor.parity ^ 1);
        CopyPart(p, *work, i, pieces, kKeys, cursor.stage);
        WaitPhase(Empty(kValues, cursor.stage), cursor.parity ^ 1);
        CopyPart(p, *work, i, pieces, kValues, cursor.stage);
        cursor.Next();
      }
    }
    WorkAt(place.stage)->item.num_rows = 0;
    Arrive(WorkPosted(place.stage));
  }

  // ---- consumers

  // Zeroes V of tokens that no vector of the tile attends to: their places in the cache may hold
  // anything, and 0 · NaN is NaN. Two consumers write the same zeros.
  TANDEM_KERNEL void ClearValues(const TokenRange& attended, int sub_tile, char* values) {
    const int first_token = sub_tile * kWarpgroupTokens;
    if (attended.Has(first_token, kWarpgroupTokens)) return;
    constexpr int kChunks = kHeadDim / 8;
#pragma unroll 1  // registers are scarce
    for (int i = ThreadIndex() % kWarpgroupSize; i < kWarpgroupTokens * kChunks;
         i += kWarpgroupSize) {
      const int t = i / kChunks, chunk = i % kChunks;
      const int token = first_token + t;
      if (attended.Has(token, 1)) continue;
      *reinterpret_cast<Chunk*>(values + chunk / 8 * kTilePanelBytes + t * kPanelRowBytes +
                                chunk % 8 * 16) = {{0, 0, 0, 0}};
    }
    FenceProxyAsync();
    SyncWarpgroup<kLayout.consumers()>();
  }

  // Starts s = q·Kᵀ. REQUIRES: between FenceProducts and CommitProducts.
  TANDEM_KERNEL void StartScores(float (&s)[kWarpgroupTokens / 2], const char* queries,
                                 const char* keys) {
    const uint64_t q = PanelDescriptor(queries, 0), k = PanelDescriptor(keys, 0);
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const int at = step / 4 * kTilePanelBytes + step % 4 * kStepBytes;
      StartProduct(s, DescriptorBehind(q, at), DescriptorBehind(k, at), step > 0);
    }
  }

  // Whether this thread can have vectors: a narrow tile's are all in the first warp.
  TANDEM_KERNEL bool HasVectors() { return !kNarrow || WarpIndex() == 0; }

  // Writes o, m and l of one partition, for the merge kernel.
  TANDEM_KERNEL void StoreRecord(const Params& p, const AttentionWork& work, int partition,
                                 const RowSums& sums, const Tile& tile) {
    float* const first = work.RecordsOf(p.args, partition);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int vector = work.item.first_vector + LaneIndex() / 4 + 8 * h;
      if (vector >= work.end_vector) continue;
      float* to = first + work.PlaceOfRecord(p.args, vector) * (kHeadDim + 2);
#pragma unroll
      for (int g = 0; g < kHeadDim / 8; ++g) {
        const int column = g * 8 + LaneIndex() % 4 * 2;
        *reinterpret_cast<FloatPair*>(to + 2 + column) = {tile.o[g * 4 + 2 * h],
                                                          tile.o[g * 4 + 2 * h + 1]};
      }
      if (LaneIndex() % 4 == 0) {
        *reinterpret_cast<FloatPair*>(to) = {sums.m[h], sums.l[h]};
      }
    }
  }

  // `lanes`: m and l of the partition, each lane's own part of l.
  TANDEM_KERNEL void EndPartition(const Params& p, const AttentionWork& work, int partition,
                                  const RowSums& lanes, const Tile& tile, Total* total) {
    const RowSums sums = lanes.OverLanes();
    if (!HasVectors()) return;
    if (kNarrow && work.item.first_record >= 0) {
      StoreRecord(p, work, partition, sums, tile);
    } else {
      total->Merge(sums, tile.o);
    }
  }

  TANDEM_KERNEL void StoreOutput(const Params& p, const AttentionWork& work, int first_vector,
                                 Total* total) {
    if (!HasVectors() || (kNarrow && work.item.first_record >= 0)) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int vector = first_vector + 8 * h;
      if (vector >= work.end_vector) continue;
      const float inverse = 1.0f / total->l[h];
      Bf16Bits* to = p.args.out + work.RowOf(p.args, vector) * kHeadDim;
#pragma unroll
      for (int g = 0; g < kHeadDim / 8; ++g) {
        const int i = g * 4 + 2 * h;
        *reinterpret_cast<uint32_t*>(to + g * 8 + LaneIndex() % 4 * 2) =
            PackBf16(Mul(total->o.At(i), inverse), Mul(total->o.At(i + 1), inverse));
      }
    }
  }

  TANDEM_KERNEL Total EmptyTotal() {
    Total total;
    if constexpr (!kLayout.moves_registers()) {
      total.o.first = reinterpret_cast<float*>(PanelMemory() + kLayout.total_at()) +
                      ThreadIndex() % kLayout.total_threads();
    }
    if (HasVectors()) total.Reset();
    return total;
  }

  // Whether partitions follow one another without a break: others lack the registers for it.
  static constexpr bool kAcross = kLayout.moves_registers();

  // Sub-tiles [begin, end), at least one.
  struct SubTiles {
    int begin, end;
  };
  struct Vectors {  // a thread's view of its consumer's
    const char* queries;
    TokenRange range[2];
    TokenRange attended;  // by any vector of the work: read from there where registers lack
    float scale_log2;
  };

  // p of the first sub-tile, whose V is there then.
  TANDEM_KERNEL void BeginSubTiles(int sub_tile, const Vectors& vectors, const Cursor& cursor,
                                   Tile* tile, PackedWeights* weights) {
    float s[kWarpgroupTokens / 2], factor[2];
    tile->Reset();
    WaitFull(kKeys, cursor);
    FenceProducts(s);
    StartScores(s, vectors.queries, MemoryOf(kKeys, cursor.stage));
    CommitProducts();
    WaitProducts<0>(s);
    Release(kKeys, cursor);
    tile->Softmax(sub_tile * kWarpgroupTokens, vectors.scale_log2, vectors.range, s, factor);
    weights->Pack(s);
    WaitFull(kValues, cursor);
  }
  // The last sub-tile's product with V.
  TANDEM_KERNEL void EndSubTiles(Cursor* cursor, Tile* tile, PackedWeights* weights) {
    FenceProducts(tile->o);
    tile->StartValues(MemoryOf(kValues, cursor->stage), *weights);
    CommitProducts();
    WaitProducts<0>(tile->o);
    weights->Hold();
    Release(kValues, *cursor);
    cursor->Next();
  }

  // Adds up sub-tiles: of any partitions where kAcross, else of one. While one sub-tile's product
  // with V runs, the threads turn the next one's scores into p, also where the next one begins a
  // partition: the tile's m and l are the new partition's by then, and those of the one that ends
  // wait for its o. ptxas moves the exponentials behind the wait for that product, unless something
  // stands between that depends on them: so the threads wait for the next V there, which has nearly
  // always arrived.
  TANDEM_KERNEL void AttendSubTiles(const Params& p, const AttentionWork& work,
                                    const SubTiles& sub_tiles, const Vectors& vectors, Total* total,
                                    Cursor* cursor) {
    Tile tile;
    PackedWeights weights;
    float s[kWarpgroupTokens / 2], factor[2];
    const TokenRange attended = kAcross ? vectors.attended : work.Attended();
    BeginSubTiles(sub_tiles.begin, vectors, *cursor, &tile, &weights);
    // All tokens of sub-tiles between the first and the last are attended to.
    ClearValues(attended, sub_tiles.begin, MemoryOf(kValues, cursor->stage));
    Cursor ahead = *cursor;  // K is one sub-tile ahead of V
    ahead.Next();
    bool has_keys = false;
    for (int i = sub_tiles.begin; i + 1 < sub_tiles.end; ++i) {
      if (!has_keys) WaitFull(kKeys, ahead);
      FenceProducts(s);
      FenceProducts(tile.o);
      StartScores(s, vectors.queries, MemoryOf(kKeys, ahead.stage));
      CommitProducts();
      tile.StartValues(MemoryOf(kValues, cursor->stage), weights);
      CommitProducts();
      WaitProducts<1>(s);
      Release(kKeys, ahead);
      const bool ends = kAcross && (i + 1) % kWarpgroupTilesPerPartition == 0;
      const RowSums ended = tile.sums;
      if (ends) tile.sums.Reset();
      tile.Softmax((i + 1) * kWarpgroupTokens, vectors.scale_log2, vectors.range, s, factor);
      // The answer comes with the next wait's. It may be of another work.
      Cursor after = ahead;
      after.Next();
      has_keys = HasEnded(Full(kKeys, after.stage), after.parity);
      // Never 1, which ptxas cannot know: so all of p comes before this wait.
      const int negative = tile.sums.l[0] + tile.sums.l[1] < 0 ? 1 : 0;
      WaitPhase(Full(kValues, ahead.stage), ahead.parity ^ negative);
      WaitProducts<0>(tile.o);
      weights.Hold();
      Release(kValues, *cursor);
      *cursor = ahead;
      ahead = after;
      if (ends) {
        EndPartition(p, work, i / kWarpgroupTilesPerPartition, ended, tile, total);
        tile.ResetValues();
      } else {
        tile.Rescale(factor);
      }
      weights.Pack(s);
    }
    if (sub_tiles.end - sub_tiles.begin > 1) {
      ClearValues(attended, sub_tiles.end - 1, MemoryOf(kValues, cursor->stage));
    }
    EndSubTiles(cursor, &tile, &weights);
    EndPartition(p, work, (sub_tiles.end - 1) / kWarpgroupTilesPerPartition, tile.sums, tile,
                 total);
  }

  // The sub-tiles that this consumer's vectors attend to.
  TANDEM_KERNEL void Attend(const Params& p, const AttentionWork& work, const SubTiles& sub_tiles,
                            int consumer, Cursor* cursor) {
    char* const queries = QueriesOf(consumer);
    const int skipped = consumer * kWarpgroupVectors;
    LoadQueries<kHeadDim, kLayout.consumers()>(p.args, work, work.item.first_vector + skipped,
                                               queries);
    const int first_vector =
        work.item.first_vector + skipped + WarpIndex() % kWarpgroupWarps * 16 + LaneIndex() / 4;
    const Vectors vectors = {queries,
                             {work.RangeOf(first_vector), work.RangeOf(first_vector + 8)},
                             work.Attended(),
                             p.args.scale * kLog2OfE};
    Total total = EmptyTotal();
    for (int begin = sub_tiles.begin; begin < sub_tiles.end;) {
      int end = sub_tiles.end;
      if constexpr (!kAcross) {
        const int full = (begin / kWarpgroupTilesPerPartition + 1) * kWarpgroupTilesPerPartition;
        end = full < end ? full : end;
      }
      AttendSubTiles(p, work, {begin, end}, vectors, &total, cursor);
      begin = end;
    }
    StoreOutput(p, work, first_vector, &total);
  }

  // Releases, unread, the stages of `count` sub-tiles that only the other consumer needs.
  TANDEM_KERNEL void PassOver(int count, Cursor* cursor) {
    for (int i = 0; i < count; ++i) {
      WaitFull(kKeys, *cursor);
      Release(kKeys, *cursor);
      WaitFull(kValues, *cursor);
      Release(kValues, *cursor);
      cursor->Next();
    }
  }

  TANDEM_KERNEL void AttendWorks(const Params& p, int consumer) {
    WorkCursor place;
    Cursor cursor;
    while (true) {
      WaitPhase(WorkPosted(place.stage), place.parity);
      const AttentionWork& work = *WorkAt(place.stage);
      if (work.item.num_rows == 0) return;
      if constexpr (kLayout.consumers() == 1) {
        Attend(p, work, {work.first_sub_tile, work.end_sub_tile}, 0, &cursor);
      } else {
        const AttentionWork part = work.PartOf(p.args, consumer * kWarpgroupVectors, kTile);
        const SubTiles own = {part.first_sub_tile, part.end_sub_tile};
        PassOver(own.begin - work.first_sub_tile, &cursor);
        if (own.begin < own.end) Attend(p, work, own, consumer, &cursor);
        PassOver(work.end_sub_tile - own.end, &cursor);
      }
      SyncWarp();
      if (LaneIndex() == 0) Arrive(WorkDone(place.stage));
      place.Next();
    }
  }

  TANDEM_KERNEL void Run(const Params& p) {
    if constexpr (!kCompilesForHopper) {
      Trap();
    } else {
      if (ThreadIndex() == 0) {
        for (int stage = 0; stage < kLayout.stages(); ++stage) {
          for (const Part part : {kKeys, kValues}) {
            InitBarrier(Full(part, stage), 1);
            InitBarrier(Empty(part, stage), kLayout.consumers() * kWarpgroupWarps);
          }
        }
        for (int place = 0; place < kPostedWorks; ++place) {
          InitBarrier(WorkPosted(place), 1);
          InitBarrier(WorkDone(place), kLayout.consumers() * kWarpgroupWarps);
        }
        FenceBarrierInit();
      }
      SyncThreads();
      const int warpgroup = WarpgroupIndex();
      if (warpgroup == kLayout.consumers()) {
        GiveRegisters<kLayout.producer_registers()>();
        if (WarpIndex() == kLayout.consumers() * kWarpgroupWarps && ElectOne()) CopyWorks(p);
      } else {
        TakeRegisters<kLayout.consumer_registers()>();
        WaitForPredecessor();  // q is its result
        AttendWorks(p, warpgroup);
      }
    }
  }
};

template <int kHeadDim, bool kNarrow>
void LaunchItems(const DeviceAttentionArgs& args, int block_shift, DeviceStream& stream) {
  using Kernel = WgmmaAttentionKernel<kHeadDim, kNarrow>;
  const int items = kNarrow ? args.launch.narrow_items : args.launch.wide_items;
  if (items == 0) return;
  KERNEL_REQUIRE(args.scale > 0);
  const int tiles = (items + Kernel::kLayout.consumers() - 1) / Kernel::kLayout.consumers();
  const int works = tiles * args.layer.shape.num_kv_heads;
  const int room = args.multiprocessors * Kernel::kBlocksPerMultiprocessor;
  Launch<Kernel>({.x = works < room ? works : room,
                  .threads = Kernel::kThreads,
                  .shared_bytes = Kernel::kLayout.shared_bytes()},
                 {DescribeCache(args.layer, kWarpgroupTokens, stream), args, block_shift}, stream);
}

template <int kHeadDim>
void LaunchAttention(const DeviceAttentionArgs& args, int block_shift, DeviceStream& stream) {
  LaunchItems<kHeadDim, false>(args, block_shift, stream);
  LaunchItems<kHeadDim, true>(args, block_shift, stream);
}

// Whether the kernels of this file serve such a cache.
bool Serves(const KvShape& shape) { return shape.type == KvType::kBf16 && shape.head_dim >= 64; }

}  // namespace

int32_t NarrowItemsAtOnceOnHopper(const KvShape& shape, int64_t shared_bytes) {
  if (!Serves(shape)) return NarrowItemsAtOnce(shape, shared_bytes);
  return AttentionLayout{shape.head_dim, true}.blocks_per_multiprocessor();
}

void WgmmaAttention(const DeviceAttentionArgs& args, DeviceStream& stream) {
  const KvShape& shape = args.layer.shape;
  if (!Serves(shape)) return Attention(args, stream);
  KERNEL_REQUIRE(IsDeviceHeadDim(shape.head_dim));
  int block_shift = 0;
  while (1 << block_shift < shape.block_tokens) ++block_shift;
  KERNEL_REQUIRE(1 << block_shift == shape.block_tokens && shape.block_tokens >= 16);

  if (shape.head_dim == 64) LaunchAttention<64>(args, block_shift, stream);
  if (shape.head_dim == 128) LaunchAttention<128>(args, block_shift, stream);
  if (shape.head_dim == 256) LaunchAttention<256>(args, block_shift, stream);

  MergeRecords(args, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
