// Merges the records of split tiles (MergeRecords in kernels/cuda/ops/launchers.h):
// Flash-Decoding's second half. Items of attention.cu and of attention_wgmma.cu leave (m, l, o) of
// each partition of a row. Folding them is, partition by partition in index order,
//   m' = max(m, mᵢ);  a = 2^(m − m'), b = 2^(mᵢ − m');  l ← l·a + lᵢ·b;  o ← o·a + oᵢ·b
// where oᵢ·b is rounded, and an FMA adds it (MergeValue in attention_tile.h); l likewise.
//
// Only l and o depend on the order: a maximum is exact in any order, so threads get all factors
// together, from a prefix maximum, and all products oᵢ·b too. What remains of the chain is an FMA
// for each partition.
//
// A merge of up to 16 partitions is short: a warp folds up to 128 columns of a row and head, with
// every load under way at once. In a longer one a team of one to eight warps folds 32 columns of a
// row and head, so that one long sequence is spread over many multiprocessors. The team's warps
// take 64 partitions each and prepare them side by side; then, warp by warp, each folds its own
// into what the one before it hands on.
//
// Grid: persistent, so that a captured graph serves any number of merges: short merges first, then
// long ones. Shared memory: of long merges, the factors of 512 partitions and what warps hand on.
// Bound: latencies (docs/kernels/decode_attention.md).
#include "kernels/api/device_attention.h"
#include "kernels/cuda/ops/attention_tile.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr int kMergeWarps = 8;
constexpr int kMergeBlocksPerMultiprocessor = 2;
constexpr int kVectorsMax = 16;       // of a narrow tile and KV head
constexpr int kShortPartitions = 16;  // of a short merge, at most
// Partitions that are folded without a branch between them, absent ones too.
constexpr int kShortGroup = 4;
constexpr int kLongGroup = 8;

constexpr int ShortColumns(int head_dim) { return head_dim < 128 ? head_dim : 128; }
constexpr int LongColumns(int head_dim) { return head_dim < kWarpSize ? head_dim : kWarpSize; }
constexpr int CeilDiv(int a, int b) { return (a + b - 1) / b; }

// What the fold of one partition multiplies by; `l` is the partition's l times b.
struct FoldFactors {
  float a, b, l;
};
// The records of one row and head, and where the result goes.
struct RowRecords {
  const float* first;  // the first partition's
  int64_t stride;      // floats from one partition's to the next's
  int num_partitions;
  int64_t out;  // the first element of `out`

  // m and l; of a partition that is not there, those of one that attends to nothing.
  TANDEM_DEVICE FloatPair SumsOf(int partition) const {
    if (partition >= num_partitions) return {MinusInfinity(), 0};
    return *reinterpret_cast<const FloatPair*>(first + partition * stride);
  }
  TANDEM_DEVICE const float* ValuesOf(int partition) const {
    return first + partition * stride + 2;
  }
};

template <int kHeadDim>
struct AttentionMergeKernel : EarlyStart {
  using Params = DeviceAttentionArgs;
  static constexpr const char* kName = "attention merge kernel";
  static constexpr int kThreads = kMergeWarps * kWarpSize;
  static constexpr int kBlocksPerMultiprocessor = kMergeBlocksPerMultiprocessor;
  static constexpr int kOfWarp = 2 * kWarpSize;  // partitions of a long merge, at a time
  static constexpr int kShortSlices = kHeadDim / ShortColumns(kHeadDim);
  static constexpr int kLongSlices = kHeadDim / LongColumns(kHeadDim);
  // A lane's columns in a short merge: one, or pairs that lie 64 apart.
  static constexpr int kPairs = ShortColumns(kHeadDim) / (2 * kWarpSize);
  static constexpr int kValues = kPairs == 0 ? 1 : 2 * kPairs;

  struct Shared {
    FloatPair steps[kMergeWarps][kOfWarp];     // a and l of FoldFactors
    float weights[kMergeWarps][kOfWarp];       // b
    float most[kMergeWarps];                   // the maximum of a warp's partitions
    FloatPair folded[kMergeWarps][kWarpSize];  // by the team that begins with a warp: o and l
    uint32_t found;                            // what the batch's merges are like
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
  TANDEM_KERNEL Shared* Memory() { return reinterpret_cast<Shared*>(SharedMemory()); }

  // The maximum over lanes up to this one.
  TANDEM_KERNEL float PrefixMax(float most) {
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int before = LaneIndex() - distance;  // the first lanes take their own
      most = Max(most, Shuffle(most, before >= 0 ? before : LaneIndex()));
    }
    return most;
  }
  // Of a partition with `sums`, behind partitions with the maximum `before`.
  TANDEM_KERNEL FoldFactors FactorsBehind(float before, const FloatPair& sums) {
    const MergeFactors f = FactorsOf(before, sums.first);
    return {f.a, f.b, Mul(sums.second, f.b)};
  }
  TANDEM_KERNEL Bf16Bits Result(float o, float l) { return ToBf16(Mul(o, 1.0f / l)).bits; }

  // The records of `row_and_head`, counted among the merge's rows.
  TANDEM_KERNEL RowRecords RecordsOf(const Params& p, const AttentionMerge& merge,
                                     int row_and_head) {
    const int64_t size = kHeadDim + 2;
    return {p.records + (int64_t{merge.first_record} * p.num_heads + row_and_head) * size,
            int64_t{merge.num_rows} * p.num_heads * size, merge.num_partitions,
            (int64_t{merge.first_row} * p.num_heads + row_and_head) * kHeadDim};
  }

  // ---- short merges: a warp

  TANDEM_KERNEL void LoadValues(const float* from, float (&values)[kValues]) {
    const int lane = LaneIndex();
    if constexpr (kPairs == 0) {
      values[0] = from[lane < kHeadDim ? lane : 0];
    } else {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const FloatPair pair = *reinterpret_cast<const FloatPair*>(from + i * 64 + lane * 2);
        values[2 * i] = pair.first;
        values[2 * i + 1] = pair.second;
      }
    }
  }
  TANDEM_KERNEL void StoreValues(Bf16Bits* to, const float (&values)[kValues], float l) {
    const int lane = LaneIndex();
    if constexpr (kPairs == 0) {
      if (lane < kHeadDim) to[lane] = Result(values[0], l);
    } else {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float factor = 1.0f / l;
        *reinterpret_cast<uint32_t*>(to + i * 64 + lane * 2) =
            PackBf16(Mul(values[2 * i], factor), Mul(values[2 * i + 1], factor));
      }
    }
  }

  TANDEM_KERNEL void FoldShort(const Params& p, const RowRecords& records, int slice) {
    const int first_column = slice * ShortColumns(kHeadDim);
    const FloatPair sums = records.SumsOf(LaneIndex());
    float values[kShortPartitions][kValues];
#pragma unroll
    for (int i = 0; i < kShortPartitions; ++i) {
#pragma unroll
      for (int j = 0; j < kValues; ++j) values[i][j] = NegativeZero();
      if (i < records.num_partitions) LoadValues(records.ValuesOf(i) + first_column, values[i]);
    }
    const float most = PrefixMax(sums.first);
    const float before = Shuffle(most, LaneIndex() - 1);
    const FoldFactors mine = FactorsBehind(LaneIndex() == 0 ? MinusInfinity() : before, sums);
    float o[kValues] = {}, l = 0;
#pragma unroll
    for (int i = 0; i < kShortPartitions; ++i) {
      if (i % kShortGroup == 0 && i >= records.num_partitions) break;
      const float a = Shuffle(mine.a, i), b = Shuffle(mine.b, i);
      l = Fma(l, a, Shuffle(mine.l, i));
#pragma unroll
      for (int j = 0; j < kValues; ++j) o[j] = Fma(o[j], a, Mul(values[i][j], b));
    }
    StoreValues(p.out + records.out + first_column, o, l);
  }

  // ---- long merges: a team of a block's warps

  // The warps that fold a long merge together. All teams of a block work on one merge.
  struct Team {
    int warps;   // 1, 2, 4 or 8
    int member;  // this warp's place

    TANDEM_DEVICE static int WarpsFor(int partitions) {
      int warps = 1;
      while (warps < kMergeWarps && warps * kOfWarp < partitions) warps *= 2;
      return warps;
    }
    TANDEM_DEVICE static Team Of(int partitions, int warps_at_least) {
      const int needed = WarpsFor(partitions);
      const int warps = needed > warps_at_least ? needed : warps_at_least;
      return {warps, WarpIndex() % warps};
    }
    TANDEM_DEVICE int FirstWarp() const { return WarpIndex() - member; }
  };

  // Puts the factors of this warp's 64 partitions into shared memory; *m is the maximum before the
  // team's partitions, then after them. Called by all threads together; a warp reads its own
  // factors only.
  TANDEM_KERNEL void PutFactors(const Team& team, const FloatPair (&sums)[2], float* m) {
    const int lane = LaneIndex(), warp = WarpIndex();
    const float most = PrefixMax(Max(sums[0].first, sums[1].first));
    float before = Shuffle(most, lane - 1);
    if (lane == 0) before = MinusInfinity();
    if (lane == kWarpSize - 1) Memory()->most[warp] = most;
    SyncThreads();
    before = Max(before, *m);
    for (int member = 0; member < team.warps; ++member) {
      const float of_member = Memory()->most[team.FirstWarp() + member];
      if (member < team.member) before = Max(before, of_member);
      *m = Max(*m, of_member);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const FoldFactors factors = FactorsBehind(before, sums[i]);
      Memory()->steps[warp][lane * 2 + i] = {factors.a, factors.l};
      Memory()->weights[warp][lane * 2 + i] = factors.b;
      before = Max(before, sums[i].first);
    }
    SyncWarp();
  }

  // A warp's turn: folds its partitions, of which `count` or all 64 are there, into o and l. The
  // factors of the next group are read while one is folded.
  TANDEM_KERNEL FloatPair FoldOwn(int count, const float (&products)[kOfWarp], FloatPair folded) {
    const FloatPair* steps = Memory()->steps[WarpIndex()];
    FloatPair next[kLongGroup];
#pragma unroll
    for (int i = 0; i < kLongGroup; ++i) next[i] = steps[i];
#pragma unroll
    for (int group = 0; group < kOfWarp; group += kLongGroup) {
      FloatPair now[kLongGroup];
#pragma unroll
      for (int i = 0; i < kLongGroup; ++i) {
        now[i] = next[i];
        if (group + kLongGroup < kOfWarp) next[i] = steps[group + kLongGroup + i];
      }
#pragma unroll
      for (int i = 0; i < kLongGroup; ++i) {
        folded.second = Fma(folded.second, now[i].first, now[i].second);
        folded.first = Fma(folded.first, now[i].first, products[group + i]);
      }
      if (group + kLongGroup >= count) break;
    }
    return folded;
  }

  // Folds a column of one row and head, this lane's among the slice's. Returns o and l in the warp
  // of the team that had the last turn. Called by all threads together, for merges of as many
  // partitions.
  TANDEM_KERNEL FloatPair FoldLong(const Team& team, const RowRecords& records, int column) {
    FloatPair* const handed = Memory()->folded[team.FirstWarp()] + LaneIndex();
    FloatPair folded = {0, 0};
    float m = MinusInfinity();
    for (int first = 0; first < records.num_partitions; first += team.warps * kOfWarp) {
      const int mine = first + team.member * kOfWarp;
      const int count = records.num_partitions - mine;
      const FloatPair sums[2] = {records.SumsOf(mine + 2 * LaneIndex()),
                                 records.SumsOf(mine + 2 * LaneIndex() + 1)};
      float values[kOfWarp];
      const float* from = records.ValuesOf(mine) + column;
#pragma unroll
      for (int i = 0; i < kOfWarp; ++i, from += records.stride) {
        values[i] = i < count ? *from : NegativeZero();
      }
      PutFactors(team, sums, &m);
#pragma unroll
      for (int i = 0; i < kOfWarp; ++i) {
        values[i] = Mul(values[i], Memory()->weights[WarpIndex()][i]);
      }
      for (int turn = 0; turn < team.warps; ++turn) {
        if (turn == team.member && count > 0) {
          if (first + turn > 0) folded = *handed;
          folded = FoldOwn(count, values, folded);
          *handed = folded;
        }
        if (team.warps > 1) SyncThreads();
      }
    }
    return folded;
  }

  // The block's place in a long merge: one slice of a row and head for each team.
  TANDEM_KERNEL void RunLong(const Params& p, const AttentionMerge& merge, int place,
                             int warps_at_least) {
    const Team team = Team::Of(merge.num_partitions, warps_at_least);
    const int slices = merge.num_rows * p.num_heads * kLongSlices;
    const int first = place * (kMergeWarps / team.warps);
    if (first >= slices) return;
    const int own = first + WarpIndex() / team.warps;
    const int slice = own < slices ? own : slices - 1;  // one too many folds what another does
    const bool has_column = LaneIndex() < LongColumns(kHeadDim);
    const int column = slice % kLongSlices * LongColumns(kHeadDim) + (has_column ? LaneIndex() : 0);
    const RowRecords records = RecordsOf(p, merge, slice / kLongSlices);
    const FloatPair folded = FoldLong(team, records, column);
    const int last = CeilDiv(merge.num_partitions, kOfWarp) - 1;
    if (own >= slices || team.member != last % team.warps || !has_column) return;
    p.out[records.out + column] = Result(folded.first, folded.second);
  }

  // ---- the walk

  // What a batch's merges are like.
  struct Found {
    int rows = 0;        // of the merge that has most
    int team_warps = 0;  // of the longest merge; 0: all are short
  };
  // Called by all threads together.
  TANDEM_KERNEL Found Survey(const Params& p, int merges) {
    // Bit n: some merge has n rows. Above them, bit n: some team has 2^n warps.
    constexpr int kTeams = kVectorsMax + 1;
    if (ThreadIndex() == 0) Memory()->found = 0;
    SyncThreads();
    for (int i = ThreadIndex(); i < merges; i += kThreads) {
      const AttentionMerge& merge = p.merges[i];
      uint32_t bits = uint32_t{1} << merge.num_rows;
      if (merge.num_partitions > kShortPartitions) {
        bits |= static_cast<uint32_t>(Team::WarpsFor(merge.num_partitions)) << kTeams;
      }
      SharedOr(&Memory()->found, bits);
    }
    SyncThreads();
    const uint32_t bits = Memory()->found;
    Found found;
    for (int n = 1; n <= kVectorsMax; ++n) {
      if ((bits >> n & 1) != 0) found.rows = n;
    }
    for (int warps = 1; warps <= kMergeWarps; warps *= 2) {
      if ((bits >> kTeams & static_cast<uint32_t>(warps)) != 0) found.team_warps = warps;
    }
    return found;
  }

  TANDEM_KERNEL void RunShort(const Params& p, const AttentionMerge& merge, int place) {
    const int own = place * kMergeWarps + WarpIndex();
    const int row_and_head = own / kShortSlices;
    if (row_and_head >= merge.num_rows * p.num_heads) return;
    FoldShort(p, RecordsOf(p, merge, row_and_head), own % kShortSlices);
  }

  TANDEM_KERNEL void Run(const Params& p) {
    // What the host wrote is looked up before the records are there.
    const int merges = p.counts->merges;
    const Found found = Survey(p, merges);
    WaitForPredecessor();
    const int short_works = merges * CeilDiv(found.rows * p.num_heads * kShortSlices, kMergeWarps);
    for (int work = BlockX(); work < short_works; work += GridX()) {
      const AttentionMerge merge = p.merges[work % merges];
      if (merge.num_partitions <= kShortPartitions) RunShort(p, merge, work / merges);
    }
    if (found.team_warps == 0) return;
    // Where teams of several warps are few, they get more warps than they have partitions for: then
    // a block has fewer teams, and more multiprocessors take part.
    const int slices = merges * found.rows * p.num_heads * kLongSlices;
    int warps = found.team_warps > 1 ? kMergeWarps : 1;
    while (warps > 1 && slices > GridX() * kMergeWarps / warps) warps /= 2;
    const int most = warps > found.team_warps ? warps : found.team_warps;
    const int long_works =
        merges * CeilDiv(found.rows * p.num_heads * kLongSlices * most, kMergeWarps);
    for (int work = BlockX(); work < long_works; work += GridX()) {
      const AttentionMerge merge = p.merges[work % merges];
      if (merge.num_partitions > kShortPartitions) RunLong(p, merge, work / merges, warps);
    }
  }
};

template <int kHeadDim>
void LaunchMerge(const DeviceAttentionArgs& args, DeviceStream& stream) {
  using Merge = AttentionMergeKernel<kHeadDim>;
  const int works =
      args.launch.merges * kVectorsMax * args.layer.shape.num_kv_heads * Merge::kLongSlices;
  const int room = args.multiprocessors * kMergeBlocksPerMultiprocessor;
  Launch<Merge>({.x = works < room ? works : room,
                 .threads = Merge::kThreads,
                 .shared_bytes = Merge::kSharedBytes},
                args, stream);
}

}  // namespace

void MergeRecords(const DeviceAttentionArgs& args, DeviceStream& stream) {
  const int head_dim = args.layer.shape.head_dim;
  if (head_dim == 16) LaunchMerge<16>(args, stream);
  if (head_dim == 32) LaunchMerge<32>(args, stream);
  if (head_dim == 64) LaunchMerge<64>(args, stream);
  if (head_dim == 128) LaunchMerge<128>(args, stream);
  if (head_dim == 256) LaunchMerge<256>(args, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
