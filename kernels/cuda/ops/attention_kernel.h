// The attention kernel for one head_dim, tile size and cache type. Each thread block (wide) or warp
// (narrow) computes one item: a tile of query vectors over a range of partitions. attention.cu
// holds the derivation and the launcher; one source compiles each cache type.
//
// Shared memory: q's tile, then stages of 32 tokens: K, then V, and for int8 and fp8 caches the
// tokens' scales of K and of V; chunks of rows are swizzled.
// Thread safety: launchers use the stream's thread; device functions run in threads of a block.
#pragma once

#include "kernels/api/bf16.h"
#include "kernels/api/device_attention.h"
#include "kernels/cuda/ops/attention_tile.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::TANDEM_SIMT {

inline constexpr float kLog2E = 1.4426950408889634f;

struct AttentionParams {
  DeviceAttentionArgs args;
  int block_shift;  // log₂ of block_tokens
};

template <int kHeadDim, int kRowTiles, KvType kType>
struct AttentionKernel {
  using Params = AttentionParams;
  static constexpr const char* kName = "attention kernel";
  static constexpr int kHalves = kHeadDim == 256 ? 2 : 1;
  static constexpr int kColumns = kHeadDim / kHalves;
  static constexpr int kThreads = kRowTiles * kHalves * kWarpSize;
  static constexpr int kVectors = kRowTiles * 16;
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kQueryRowBytes = kHeadDim * 2;
  static constexpr int kQueryBytes = kVectors * kQueryRowBytes;
  using Tile = WarpTile<kHeadDim, kColumns, kType>;
  static constexpr bool kCodes = Tile::kCodes;
  // As many as registers allow: each of a multiprocessor's four schedulers has 512 of them for a
  // lane, for two warps of up to 255 or three of 168. A wide tile's block may be alone.
  static constexpr int kWarpsPerMultiprocessor = kCodes && kHeadDim < 128 ? 12 : 8;
  static constexpr int kBlocksPerMultiprocessor =
      kRowTiles > 1 ? 1 : kWarpsPerMultiprocessor / kHalves;
  static constexpr int kKvChunks = Tile::kKvChunks;
  static constexpr int kRowBytes = kKvChunks * 16;               // of K or V of a token
  static constexpr int kTileBytes = kSubTileTokens * kRowBytes;  // of K or of V
  static constexpr int kScaleBytes = kCodes ? kSubTileTokens * 4 : 0;
  static constexpr int kStageBytes = 2 * (kTileBytes + kScaleBytes);
  static constexpr bool kNarrow = kRowTiles == 1;
  // Powers of two, so that the next stage's number costs no registers. Narrow tiles of codes have
  // few, so that more warps fit: instructions bound them, and a warp's next sub-tile arrives while
  // it computes one.
  static constexpr int kStages = (kCodes ? kNarrow : kHeadDim == 256) ? 2 : 4;
  static constexpr int kSharedBytes = kQueryBytes + kStages * kStageBytes;
  static constexpr int kSixteenBytes = 16 * (kCodes ? kHeadDim + 4 : kRowBytes);  // in a slab

  TANDEM_KERNEL void SyncTile() {
    if constexpr (kThreads == kWarpSize) {
      SyncWarp();
    } else {
      SyncThreads();
    }
  }

  // q's tile for a cache of bf16, copied like K and V.
  TANDEM_KERNEL void CopyQueries(const Params& p, const AttentionWork& work) {
    for (int i = ThreadIndex(); i < kVectors * kChunks; i += kThreads) {
      const int r = i / kChunks, chunk = i % kChunks;
      const int vector = work.item.first_vector + r;
      const bool valid = vector < work.end_vector;
      const int64_t row = valid ? work.RowOf(p.args, vector) : 0;
      CopyAsync16(SharedMemory() + SwizzledOffset<kChunks>(r, chunk),
                  p.args.q + row * kHeadDim + chunk * 8, valid);
    }
  }

  struct alignas(16) Chunk {
    uint32_t word[4];
  };
  // 16 elements of a vector.
  struct Step {
    Chunk half[2];
  };
  TANDEM_KERNEL Step StepOf(const Params& p, const AttentionWork& work, int r, int step) {
    const int vector = work.item.first_vector + r;
    if (vector >= work.end_vector) return {{{{0, 0, 0, 0}}, {{0, 0, 0, 0}}}};
    const Bf16Bits* q = p.args.q + work.RowOf(p.args, vector) * kHeadDim + step * 16;
    return *reinterpret_cast<const Step*>(q);
  }
  // Stores step `step` of row `r` in the order that codes of K have in operands: elements 0, 2, 4,
  // 6 to 14, then 1, 3, 5, 7 to 15.
  TANDEM_KERNEL void StorePermuted(const Step& from, int r, int step) {
    Chunk even, odd;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Chunk& half = from.half[i / 2];
      const uint32_t low = half.word[i % 2 * 2], high = half.word[i % 2 * 2 + 1];
      even.word[i] = (low & 0xffff) | high << 16;
      odd.word[i] = low >> 16 | (high & 0xffff0000u);
    }
    char* shared = SharedMemory();
    *reinterpret_cast<Chunk*>(shared + SwizzledOffset<kChunks>(r, step * 2)) = even;
    *reinterpret_cast<Chunk*>(shared + SwizzledOffset<kChunks>(r, step * 2 + 1)) = odd;
  }
  // q's tile for a cache of codes. A thread has several loads under way together.
  TANDEM_KERNEL void PermuteQueries(const Params& p, const AttentionWork& work) {
    constexpr int kSteps = kVectors * kKvChunks;
    constexpr int kTogether = kHeadDim == 256 ? 1 : (kSteps + kThreads - 1) / kThreads;
    static_assert(kTogether == 1 || kSteps % (kTogether * kThreads) == 0);
#pragma unroll 1
    for (int first = ThreadIndex(); first < kSteps; first += kTogether * kThreads) {
      Step steps[kTogether];
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        const int i = first + n * kThreads;
        steps[n] = StepOf(p, work, i / kKvChunks, i % kKvChunks);
      }
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        const int i = first + n * kThreads;
        StorePermuted(steps[n], i / kKvChunks, i % kKvChunks);
      }
    }
  }

  TANDEM_KERNEL char* StageOf(int sub_tile) {
    return SharedMemory() + kQueryBytes + static_cast<unsigned>(sub_tile) % kStages * kStageBytes;
  }
  TANDEM_KERNEL int64_t SlabBytes(const Params& p) {
    return int64_t{p.args.layer.shape.block_tokens / 16} * kSixteenBytes;
  }
  // The blocks of a sub-tile's two groups of sixteen tokens, from the sequence's table. They are
  // read before the copies of the sub-tile before start, so that no copy waits for them. Tokens
  // that no row attends to may have any table entry; theirs is not read.
  struct Blocks {
    uint32_t of[2];
  };
  TANDEM_KERNEL Blocks BlocksOf(const Params& p, const AttentionWork& work, int sub_tile) {
    Blocks blocks;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = sub_tile * kSubTileTokens + i * 16;
      const bool attended = token + 16 > work.begin_token && token < work.end_token;
      const int entry = work.item.table_offset + (token >> p.block_shift);
      blocks.of[i] = attended ? static_cast<uint32_t>(p.args.tables[entry]) : 0;
    }
    return blocks;
  }
  // K of the sixteen tokens from `token` on, which lie together in `block`. Without meaning for
  // tokens that no row attends to; the copy is then not valid.
  TANDEM_KERNEL const char* KeysOf(const Params& p, const AttentionWork& work, int token,
                                   uint32_t block) {
    const char* head = static_cast<const char*>(p.args.layer.base) +
                       work.kv_head * 2 * SlabBytes(p);  // the same in all sub-tiles
    const uint32_t in_block = static_cast<uint32_t>(token & (p.args.layer.shape.block_tokens - 1));
    return head + block * p.args.layer.block_stride_bytes +
           static_cast<int64_t>(in_block / 16) * kSixteenBytes;
  }

  // Starts the copies of a sub-tile's rows of K and of V, `keys` being K's of its two groups of
  // tokens. Tokens that no vector of the tile attends to become zeros.
  TANDEM_KERNEL void LoadRows(const AttentionWork& work, int sub_tile, const char* const keys[2],
                              int64_t slab_bytes) {
    char* stage = StageOf(sub_tile);
#pragma unroll 1  // registers are scarce
    for (int i = ThreadIndex(); i < kSubTileTokens * kKvChunks; i += kThreads) {
      const int t = i / kKvChunks, chunk = i % kKvChunks;
      const bool valid = work.Attended().Has(sub_tile * kSubTileTokens + t, 1);
      const char* from = (t < 16 ? keys[0] : keys[1]) + t % 16 * kRowBytes + chunk * 16;
      const int at = SwizzledOffset<kKvChunks>(t, chunk);
      CopyAsync16(stage + at, from, valid);
      CopyAsync16(stage + kTileBytes + at, from + slab_bytes, valid);
    }
  }
  // The same where some vector attends to each of the tokens. A thread's places differ by
  // constants, for rows of codes: the sixteen rows of a group lie one behind the other in the
  // cache, and in shared memory every eight rows repeat their permutation.
  static constexpr int kTokensAtOnce = kThreads / kKvChunks;
  static constexpr bool kUnrolled = kCodes && kTokensAtOnce <= 16;
  TANDEM_KERNEL void LoadAllRows(int sub_tile, const char* const keys[2], int64_t slab_bytes) {
    constexpr int kPeriod = kTokensAtOnce < 8 ? 8 / kTokensAtOnce : 1;
    const int thread = ThreadIndex(), t = thread / kKvChunks, chunk = thread % kKvChunks;
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const char* key = keys[group] + thread * 16;
      const char* value = key + slab_bytes;
#pragma unroll
      for (int i = 0; i < kPeriod; ++i) {
        const int at = SwizzledOffset<kKvChunks>(t + i * kTokensAtOnce, chunk);
        char* to = StageOf(sub_tile) + group * 16 * kRowBytes + at;
#pragma unroll
        for (int row = 0; row < 16; row += kPeriod * kTokensAtOnce) {
          const int from = (i * kTokensAtOnce + row) * kRowBytes;
          CopyAsync16(to + row * kRowBytes, key + from, true);
          CopyAsync16(to + kTileBytes + row * kRowBytes, value + from, true);
        }
      }
    }
  }

  // Starts the copies of K and V of one sub-tile, which lies in `blocks`. Where tokens that no
  // vector of the tile attends to would lie, the cache may hold anything.
  TANDEM_KERNEL void LoadSubTile(const Params& p, const AttentionWork& work, int sub_tile,
                                 const Blocks& blocks) {
    const int first_token = sub_tile * kSubTileTokens;
    const char* const keys[2] = {KeysOf(p, work, first_token, blocks.of[0]),
                                 KeysOf(p, work, first_token + 16, blocks.of[1])};
    const int64_t slab_bytes = SlabBytes(p);
    if (kUnrolled && work.Attended().Has(first_token, kSubTileTokens)) {
      LoadAllRows(sub_tile, keys, slab_bytes);
    } else {
      LoadRows(work, sub_tile, keys, slab_bytes);
    }
    if constexpr (kCodes) {
      // Four tokens' scales each: K's 32, then V's. Some may be of tokens that no row attends to.
      constexpr int kFours = kSubTileTokens / 4;
      if (ThreadIndex() >= 2 * kFours) return;
      const int four = ThreadIndex() % kFours, token = first_token + four * 4;
      const bool valid = token + 4 > work.begin_token && token < work.end_token;
      const char* scales = (four < 4 ? keys[0] : keys[1]) + 16 * kHeadDim + four % 4 * 16 +
                           ThreadIndex() / kFours * slab_bytes;
      CopyAsync16(StageOf(sub_tile) + 2 * kTileBytes + ThreadIndex() * 16, scales, valid);
    }
  }

  // The scales of this lane's tokens, which lie at `scales` in shared memory.
  TANDEM_KERNEL TokenFactors ScalesAt(const char* scales) {
    TokenFactors factors;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const FloatPair pair = reinterpret_cast<const FloatPair*>(scales)[n * 4 + LaneIndex() % 4];
      factors.of[n][0] = pair.first;
      factors.of[n][1] = pair.second;
    }
    return factors;
  }

  // Writes m, l and o of one partition, for the merge kernel. Narrow tiles only.
  TANDEM_KERNEL void StoreRecord(const Params& p, const AttentionWork& work, int partition,
                                 const Tile& tile) {
    const int half = WarpIndex() % kHalves;
    float* const first = work.RecordsOf(p.args, partition);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int vector = work.item.first_vector + LaneIndex() / 4 + 8 * h;
      if (vector >= work.end_vector) continue;
      float* to = first + work.PlaceOfRecord(p.args, vector) * (kHeadDim + 2);
#pragma unroll
      for (int g = 0; g < Tile::kGroups; ++g) {
        const ColumnPair pair = tile.ValuesOf(g, h);
        *reinterpret_cast<FloatPair*>(to + 2 + half * kColumns + pair.column) = {pair.low,
                                                                                 pair.high};
      }
      if (half == 0 && LaneIndex() % 4 == 0) {
        *reinterpret_cast<FloatPair*>(to) = {tile.m[h], tile.l[h]};
      }
    }
  }

  TANDEM_KERNEL void StoreOutput(const Params& p, const AttentionWork& work, const Tile& tile) {
    const int half = WarpIndex() % kHalves;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int vector =
          work.item.first_vector + WarpIndex() / kHalves * 16 + LaneIndex() / 4 + 8 * h;
      if (vector >= work.end_vector) continue;
      const float inverse = 1.0f / tile.l[h];
      Bf16Bits* to = p.args.out + work.RowOf(p.args, vector) * kHeadDim + half * kColumns;
#pragma unroll
      for (int g = 0; g < Tile::kGroups; ++g) {
        const ColumnPair pair = tile.ValuesOf(g, h);
        *reinterpret_cast<uint32_t*>(to + pair.column) =
            PackBf16(Mul(pair.low, inverse), Mul(pair.high, inverse));
      }
    }
  }

  // One sub-tile's arithmetic by one warp.
  TANDEM_KERNEL void Attend(const Params& p, int sub_tile, Tile* tile) {
    const char* stage = StageOf(sub_tile);
    const char* scales = stage + 2 * kTileBytes;
    const char* q = SharedMemory() + WarpIndex() / kHalves * 16 * kQueryRowBytes;
    float s[4][4], factor[2];
    tile->Score(q, stage, s);
    TokenFactors factors = TokenFactors::All(p.args.scale * kLog2E);
    if constexpr (kCodes) factors = factors.Times(ScalesAt(scales));
    tile->ScaleTokens(factors, s);
    // Most sub-tiles of a long sequence lie inside all ranges.
    const int first_token = sub_tile * kSubTileTokens;
    const bool whole = tile->common.Has(first_token, kSubTileTokens);
    if (!whole) tile->Mask(first_token, s);
    tile->Softmax(s, factor);
    if constexpr (kCodes) {
      factors = ScalesAt(scales + kScaleBytes);
      if (!whole) tile->ClearUnattended(first_token, &factors);
      tile->ScaleTokens(factors, s);
    }
    tile->AddValues(stage + kTileBytes, WarpIndex() % kHalves * kColumns, s, factor);
  }

  // Two versions, because registers are scarce: items with records need no total of partitions.
  template <bool kRecorded>
  TANDEM_KERNEL void RunItem(const Params& p, const AttentionItem& item) {
    const AttentionWork work =
        AttentionWork::Of(p.args, item, BlockY(), {kVectors, kSubTileTokens});
    if constexpr (!kCodes) CopyQueries(p, work);
    Blocks blocks = BlocksOf(p, work, work.first_sub_tile);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      const int next = work.first_sub_tile + i;
      if (next < work.end_sub_tile) LoadSubTile(p, work, next, blocks);
      blocks = BlocksOf(p, work, next + 1);
      CommitCopies();
    }
    if constexpr (kCodes) PermuteQueries(p, work);
    Tile tile, total;
    total.Reset();
    tile.SetRanges(work, item.first_vector + WarpIndex() / kHalves * 16);
    for (int i = work.first_sub_tile; i < work.end_sub_tile;) {
      const int partition = i / kSubTilesPerPartition;
      int end = (partition + 1) * kSubTilesPerPartition;
      if (end > work.end_sub_tile) end = work.end_sub_tile;
      tile.Reset();
      for (; i < end; ++i) {
        WaitCopies<kStages - 2>();
        SyncTile();
        const int next = i + kStages - 1;
        if (next < work.end_sub_tile) LoadSubTile(p, work, next, blocks);
        blocks = BlocksOf(p, work, next + 1);
        CommitCopies();
        Attend(p, i, &tile);
      }
      tile.FinishPartition();
      if constexpr (kRecorded) {
        StoreRecord(p, work, partition, tile);
      } else {
        total.Merge(tile);
      }
    }
    if constexpr (!kRecorded) StoreOutput(p, work, total);
    WaitCopies<0>();
    SyncTile();
  }

  TANDEM_KERNEL void Run(const Params& p) {
    const AttentionItem* items = kNarrow ? p.args.narrow_items : p.args.wide_items;
    const int count = kNarrow ? p.args.counts->narrow_items : p.args.counts->wide_items;
    for (int i = BlockX(); i < count; i += GridX()) {
      if constexpr (kNarrow) {
        if (items[i].first_record >= 0) {
          RunItem<true>(p, items[i]);
          continue;
        }
      }
      RunItem<false>(p, items[i]);
    }
  }
};

// Enqueues the items of a batch, wide and narrow tiles.
template <int kHeadDim, KvType kType>
void LaunchItems(const AttentionParams& params, DeviceStream& stream) {
  using Narrow = AttentionKernel<kHeadDim, 1, kType>;
  using Wide = AttentionKernel<kHeadDim, 4, kType>;
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
}

template <KvType kType>
void LaunchItemsOf(const AttentionParams& params, DeviceStream& stream) {
  const int head_dim = params.args.layer.shape.head_dim;
  if (head_dim == 16) LaunchItems<16, kType>(params, stream);
  if (head_dim == 32) LaunchItems<32, kType>(params, stream);
  if (head_dim == 64) LaunchItems<64, kType>(params, stream);
  if (head_dim == 128) LaunchItems<128, kType>(params, stream);
  if (head_dim == 256) LaunchItems<256, kType>(params, stream);
}

// LaunchItemsOf for each cache type; one source compiles each.
void AttendBf16(const AttentionParams& params, DeviceStream& stream);
void AttendInt8(const AttentionParams& params, DeviceStream& stream);
void AttendFp8(const AttentionParams& params, DeviceStream& stream);

}  // namespace tandem::kernels::TANDEM_SIMT
