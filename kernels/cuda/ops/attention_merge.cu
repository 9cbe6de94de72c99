// Merges the records of split tiles (MergeRecords in kernels/cuda/ops/launchers.h):
// Flash-Decoding's second half. Items of attention.cu and of attention_wgmma.cu leave (m, l, o) of
// each partition of a row. Folding them is, partition by partition in index order,
//   m' = max(m, mᵢ);  a = 2^(m − m'), b = 2^(mᵢ − m');  l ← l·a + lᵢ·b;  o ← o·a + oᵢ·b
//
// A warp folds 32 columns of one row and head (all 16 of head_dim 16), so one long sequence is
// spread over many multiprocessors. Only l and o depend on the order: a maximum is exact in any
// order, so the lanes get the factors of 32 partitions together, from a prefix maximum. Then each
// lane folds its column, one partition after the other, with the operations of one thread that
// walks the partitions, to the bit. Meanwhile the loads of the next 64 partitions are under way,
// and the lanes compute the factors of the next 32.
//
// Grid: one warp a block, persistent, so that a captured graph serves any number of merges. Shared
// memory: the factors of twice 32 partitions, which all lanes read. Bound: of long rows the chain
// of the fold, a product and a sum for each partition; where rows have few partitions, a warp's
// instructions (docs/kernels/decode_attention.md).
#include "kernels/api/device_attention.h"
#include "kernels/cuda/ops/attention_tile.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr int kMergeBlocksPerMultiprocessor = 16;
constexpr int kVectorsMax = 16;  // of a narrow tile and KV head

template <int kHeadDim>
struct AttentionMergeKernel : EarlyStart {
  using Params = DeviceAttentionArgs;
  static constexpr const char* kName = "attention merge kernel";
  static constexpr int kThreads = kWarpSize;
  // With head_dim 32 a thread needs two registers more than sixteen blocks leave it.
  static constexpr int kBlocksPerMultiprocessor =
      kHeadDim == kWarpSize ? 11 : kMergeBlocksPerMultiprocessor;
  static constexpr int kSlices = kHeadDim < kWarpSize ? 1 : kHeadDim / kWarpSize;
  static constexpr int kTogether = kWarpSize;  // partitions
  // Whether a chunk of 32 partitions that is all there has code of its own, without branches.
  static constexpr bool kWhole = kHeadDim > kWarpSize;

  // The records that a warp folds, and this lane's column.
  struct Records {
    const float* first;  // the first partition's
    int64_t stride;      // floats from one partition's to the next's
    int num_partitions;
    int column;

    TANDEM_DEVICE bool HasChunk(int first_partition) const {
      return first_partition + kTogether <= num_partitions;
    }
    TANDEM_DEVICE const float* ValueOf(int partition) const {
      return first + partition * stride + 2 + column;
    }
  };
  // Column values of a chunk: up to 32 partitions. A row's last chunk is loaded and folded in
  // groups of eight: what follows its last group is not touched.
  struct Values {
    float of[kTogether];
  };
  static constexpr int kGroup = 8;
  // What a fold multiplies by, of one partition. `l` is the partition's l times b.
  struct alignas(16) Factors {
    float a, b, l, unused;
  };
  // Those of two chunks: one is folded while the next one's are computed.
  static constexpr size_t kSharedBytes = 2 * kTogether * sizeof(Factors);
  TANDEM_KERNEL Factors* FactorsOfChunk(int parity) {
    return reinterpret_cast<Factors*>(SharedMemory()) + parity * kTogether;
  }

  // m and l of this lane's partition of the chunk at `first`.
  TANDEM_KERNEL FloatPair LoadSums(const Records& records, int first) {
    const int mine = first + LaneIndex();
    if (mine >= records.num_partitions) return {MinusInfinity(), 0};
    return *reinterpret_cast<const FloatPair*>(records.first + mine * records.stride);
  }
  TANDEM_KERNEL void LoadPart(const Records& records, int first, Values* values) {
#pragma unroll
    for (int group = 0; group < kTogether; group += kGroup) {
      const int count = records.num_partitions - first - group;
      if (count <= 0) return;
      const float* from = records.ValueOf(first + group);
#pragma unroll
      for (int i = group; i < group + kGroup; ++i, from += records.stride) {
        if (i - group < count) values->of[i] = *from;
      }
    }
  }
  TANDEM_KERNEL void LoadChunk(const Records& records, int first, Values* values) {
    if (!records.HasChunk(first)) return LoadPart(records, first, values);
    const float* from = records.ValueOf(first);
#pragma unroll
    for (int i = 0; i < kTogether; ++i, from += records.stride) values->of[i] = *from;
  }

  // Computes the factors of a chunk, whose m and l the lanes have in `sums`; *m is the maximum
  // before it, then after it. A SyncWarp must come before other lanes read them.
  TANDEM_KERNEL void PutFactors(const FloatPair& sums, Factors* factors, float* m) {
    float most = sums.first;  // of this lane's partition and all before it
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int before = LaneIndex() - distance;  // the first lanes take their own
      most = Max(most, Shuffle(most, before >= 0 ? before : LaneIndex()));
    }
    most = Max(most, *m);
    float before = Shuffle(most, LaneIndex() - 1);
    if (LaneIndex() == 0) before = *m;
    *m = Shuffle(most, kWarpSize - 1);
    const float anchor = Anchor(most);
    const float b = Exp2(Add(sums.first, -anchor));
    factors[LaneIndex()] = {Exp2(Add(before, -anchor)), b, Mul(sums.second, b), 0};
  }

  struct Total {
    float l, o;
  };
  TANDEM_KERNEL void FoldOne(float value, const Factors& factors, Total* total) {
    total->l = Add(Mul(total->l, factors.a), factors.l);
    total->o = Add(Mul(total->o, factors.a), Mul(value, factors.b));
  }
  TANDEM_KERNEL void FoldPart(int count, const Values& values, const Factors* factors,
                              Total* total) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (i % kGroup == 0 && i >= count) return;
      if (i < count) FoldOne(values.of[i], factors[i], total);
    }
  }

  // The state of a fold: m and l of the chunk to come, and the maximum before it.
  struct Ahead {
    FloatPair sums;
    float m;
  };
  // Folds the chunk at `first`, whose values and factors are there, and puts the values of the one
  // two chunks later in their place. Meanwhile the next one's factors are computed. No step of the
  // chain waits for any of that, and there is no branch where all of both chunks is there.
  TANDEM_KERNEL void FoldChunk(const Records& records, int first, int parity, Values* values,
                               Ahead* ahead, Total* total) {
    const Factors* factors = FactorsOfChunk(parity);
    const int later = first + 2 * kTogether;
    const FloatPair sums = ahead->sums;
    ahead->sums = LoadSums(records, later);
    PutFactors(sums, FactorsOfChunk(parity ^ 1), &ahead->m);
    if (!kWhole || !records.HasChunk(first)) {
      FoldPart(records.num_partitions - first, *values, factors, total);
      if (!kWhole) LoadPart(records, later, values);
    } else {
      const bool has_later = records.HasChunk(later);
      const float* from = records.ValueOf(later);
#pragma unroll
      for (int i = 0; i < kTogether; ++i, from += records.stride) {
        FoldOne(values->of[i], factors[i], total);
        if (has_later) values->of[i] = *from;
      }
      if (!has_later) LoadPart(records, later, values);
    }
    SyncWarp();
  }

  // One row and head of `merge`, 32 of its columns.
  TANDEM_KERNEL void RunMerge(const Params& p, const AttentionMerge& merge, int64_t row_and_head,
                              int slice) {
    const int column = slice * kWarpSize + LaneIndex();
    const bool has_column = column < kHeadDim;
    const Records records = {
        p.records + (int64_t{merge.first_record} * p.num_heads + row_and_head) * (kHeadDim + 2),
        int64_t{merge.num_rows} * p.num_heads * (kHeadDim + 2), merge.num_partitions,
        has_column ? column : 0};
    const int64_t out_row = int64_t{merge.first_row} * p.num_heads + row_and_head;
    Total total = {0, 0};
    Values even, odd;
    const FloatPair sums = LoadSums(records, 0);
    Ahead ahead = {LoadSums(records, kTogether), MinusInfinity()};
    LoadChunk(records, 0, &even);
    LoadChunk(records, kTogether, &odd);
    PutFactors(sums, FactorsOfChunk(0), &ahead.m);
    SyncWarp();
    for (int first = 0; first < records.num_partitions; first += 2 * kTogether) {
      FoldChunk(records, first, 0, &even, &ahead, &total);
      if (first + kTogether >= records.num_partitions) break;
      FoldChunk(records, first + kTogether, 1, &odd, &ahead, &total);
    }
    if (!has_column) return;
    p.out[out_row * kHeadDim + column] = ToBf16(Mul(total.o, 1.0f / total.l)).bits;
  }

  TANDEM_KERNEL void Run(const Params& p) {
    const int kv_heads = p.layer.shape.num_kv_heads;
    const int heads_per_kv = p.num_heads / kv_heads;
    const int works_of_vector = kv_heads * kSlices;
    const int works_of_merge = kVectorsMax * works_of_vector;
    const int works = p.counts->merges * works_of_merge;
    // What the host wrote is looked up before the records are there.
    AttentionMerge merge = {};
    if (BlockX() < works) merge = p.merges[BlockX() / works_of_merge];
    WaitForPredecessor();
    for (int i = BlockX(); i < works; i += GridX()) {
      if (i != BlockX()) merge = p.merges[i / works_of_merge];
      const int vector = i % works_of_merge / works_of_vector;
      if (vector >= merge.num_rows * heads_per_kv) continue;
      const int kv_head = i % works_of_vector / kSlices;
      const int64_t row_and_head = int64_t{vector / heads_per_kv} * p.num_heads +
                                   kv_head * heads_per_kv + vector % heads_per_kv;
      RunMerge(p, merge, row_and_head, i % kSlices);
    }
  }
};

template <int kHeadDim>
void LaunchMerge(const DeviceAttentionArgs& args, DeviceStream& stream) {
  using Merge = AttentionMergeKernel<kHeadDim>;
  const int works =
      args.launch.merges * kVectorsMax * args.layer.shape.num_kv_heads * Merge::kSlices;
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
