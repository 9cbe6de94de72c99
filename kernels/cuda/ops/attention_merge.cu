// Merges the records of split tiles (MergeRecords in kernels/cuda/ops/launchers.h):
// Flash-Decoding's second half. Items of attention.cu and of attention_wgmma.cu leave (m, l, o) of
// each partition of a row. Folding them is, partition by partition in index order,
//   m' = max(m, mᵢ);  a = 2^(m − m'), b = 2^(mᵢ − m');  l ← l·a + lᵢ·b;  o ← o·a + oᵢ·b
//
// A warp folds 32 columns of one row and head (all 16 of head_dim 16), so one long sequence is
// spread over many multiprocessors. Only l and o depend on the order: a maximum is exact in any
// order, so the lanes get the factors of 32 partitions together, from a prefix maximum. Then each
// lane folds its column, one partition after the other, with the operations of one thread that
// walks the partitions, to the bit. The loads of the next 64 partitions are under way meanwhile.
//
// Grid: one warp a block, persistent, so that a captured graph serves any number of merges. Shared
// memory: the factors of 32 partitions, which all lanes read. Bound: where
// rows have few partitions, a warp's instructions, about ten for each; of one long row not known
// (docs/kernels/decode_attention.md).
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
  static constexpr int kBlocksPerMultiprocessor = kMergeBlocksPerMultiprocessor;
  static constexpr int kSlices = kHeadDim < kWarpSize ? 1 : kHeadDim / kWarpSize;
  static constexpr int kTogether = kWarpSize;  // partitions

  // The records that a warp folds, and this lane's column.
  struct Records {
    const float* first;  // the first partition's
    int64_t stride;      // floats from one partition's to the next's
    int num_partitions;
    int column;
  };
  // Column values of up to 32 partitions, in groups: what follows the last partition's group is
  // neither loaded nor folded.
  struct Values {
    float of[kTogether];
  };
  static constexpr int kGroup = 8;
  // What a fold multiplies by, of one partition. `l` is the partition's l times b.
  struct alignas(16) Factors {
    float a, b, l, unused;
  };
  static constexpr size_t kSharedBytes = kTogether * sizeof(Factors);
  TANDEM_KERNEL Factors* SharedFactors() { return reinterpret_cast<Factors*>(SharedMemory()); }

  // m and l of this lane's partition of those from `first` on.
  TANDEM_KERNEL FloatPair LoadSums(const Records& records, int first) {
    const int mine = first + LaneIndex();
    if (mine >= records.num_partitions) return {MinusInfinity(), 0};
    return *reinterpret_cast<const FloatPair*>(records.first + mine * records.stride);
  }
  // The group's values of the partitions from `first` on.
  TANDEM_KERNEL void LoadGroup(const Records& records, int first, int group, Values* values) {
    const int count = records.num_partitions - first - group;
    if (count <= 0) return;
    const float* from = records.first + (first + group) * records.stride + 2 + records.column;
    if (count >= kGroup) {
#pragma unroll
      for (int i = group; i < group + kGroup; ++i, from += records.stride) values->of[i] = *from;
    } else {
#pragma unroll
      for (int i = group; i < group + kGroup; ++i, from += records.stride) {
        if (i - group < count) values->of[i] = *from;
      }
    }
  }
  TANDEM_KERNEL void LoadAll(const Records& records, int first, Values* values) {
#pragma unroll
    for (int group = 0; group < kTogether; group += kGroup) {
      LoadGroup(records, first, group, values);
    }
  }

  // Shares the factors of 32 partitions, whose m and l the lanes have in `sums`; *m is the maximum
  // before them, then after them.
  TANDEM_KERNEL void ShareFactors(const FloatPair& sums, float* m) {
    float most = sums.first;  // of this lane's partition and all before it
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const float other = Shuffle(most, LaneIndex() - distance);
      if (LaneIndex() >= distance) most = Max(most, other);
    }
    most = Max(most, *m);
    float before = Shuffle(most, LaneIndex() - 1);
    if (LaneIndex() == 0) before = *m;
    *m = Shuffle(most, kWarpSize - 1);
    const float anchor = Anchor(most);
    const float b = Exp2(Add(sums.first, -anchor));
    SyncWarp();  // the last ones are folded
    SharedFactors()[LaneIndex()] = {Exp2(Add(before, -anchor)), b, Mul(sums.second, b), 0};
    SyncWarp();
  }

  struct Total {
    float l, o;
  };
  TANDEM_KERNEL void FoldOne(float value, const Factors& factors, Total* total) {
    total->l = Add(Mul(total->l, factors.a), factors.l);
    total->o = Add(Mul(total->o, factors.a), Mul(value, factors.b));
  }
  // Folds up to 32 partitions from `first` on, and loads those 64 partitions later in their place.
  TANDEM_KERNEL void Fold(const Records& records, int first, Values* values, Total* total) {
#pragma unroll
    for (int group = 0; group < kTogether; group += kGroup) {
      const int count = records.num_partitions - first - group;
      if (count <= 0) return;
      if (count >= kGroup) {
#pragma unroll
        for (int i = group; i < group + kGroup; ++i) {
          FoldOne(values->of[i], SharedFactors()[i], total);
        }
      } else {
#pragma unroll
        for (int i = group; i < group + kGroup; ++i) {
          if (i - group < count) FoldOne(values->of[i], SharedFactors()[i], total);
        }
      }
      LoadGroup(records, first + 2 * kTogether, group, values);
    }
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
    Total total = {0, 0};
    float m = MinusInfinity();
    Values even, odd;
    FloatPair sums = LoadSums(records, 0), next_sums = LoadSums(records, kTogether);
    LoadAll(records, 0, &even);
    LoadAll(records, kTogether, &odd);
    for (int first = 0; first < records.num_partitions; first += 2 * kTogether) {
      ShareFactors(sums, &m);
      sums = LoadSums(records, first + 2 * kTogether);
      Fold(records, first, &even, &total);
      if (first + kTogether >= records.num_partitions) break;
      ShareFactors(next_sums, &m);
      next_sums = LoadSums(records, first + 3 * kTogether);
      Fold(records, first + kTogether, &odd, &total);
    }
    if (!has_column) return;
    p.out[(int64_t{merge.first_row} * p.num_heads + row_and_head) * kHeadDim + column] =
        ToBf16(Mul(total.o, 1.0f / total.l)).bits;
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
