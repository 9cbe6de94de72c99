// Goal: the merge of records folds partitions in index order, for any number of them, of rows and
// of heads: to the bit the fold of one thread on the emulated device, and softmax's weighted mean
// everywhere. Records of other rows, heads and merges are not touched.
#include <algorithm>
#include <cmath>
#include <limits>

#include "device_fixture.h"
#include "kernels/api/device_attention.h"

namespace tandem::kernels {
namespace {

struct MergeShape {
  int32_t num_heads, num_kv_heads, head_dim;

  size_t record_floats() const { return static_cast<size_t>(head_dim) + 2; }
};

class DeviceAttentionMergeTest : public DeviceTest {
 protected:
  // Records [count][num_heads][head_dim + 2]. Maxima jump up and down, and now and then a row
  // attends to nothing of a partition.
  std::vector<float> RandomRecords(const MergeShape& shape, int32_t count) {
    const size_t floats = shape.record_floats();
    std::vector<float> records = Normal(static_cast<size_t>(count * shape.num_heads) * floats);
    for (size_t at = 0; at < records.size(); at += floats) {
      float* record = records.data() + at;
      record[0] *= 12;
      record[1] = 1 + std::abs(record[1]);
      if (Uniform(0, 7) != 0) continue;
      std::fill(record, record + floats, 0.0f);
      record[0] = -std::numeric_limits<float>::infinity();
    }
    return records;
  }

  std::vector<Bf16Bits> Merge(const MergeShape& shape, const std::vector<float>& records,
                              const std::vector<AttentionMerge>& merges, int32_t rows) {
    const AttentionCounts counts = {0, 0, static_cast<int32_t>(merges.size())};
    const size_t size = static_cast<size_t>(rows * shape.num_heads * shape.head_dim);
    const DeviceBuffer drecords = Upload(records), dmerges = Upload(merges),
                       dcounts = Upload(std::vector<AttentionCounts>{counts}),
                       out = Poisoned(size * sizeof(Bf16Bits));
    DeviceAttentionArgs args;
    args.num_heads = shape.num_heads;
    args.layer.shape = {shape.num_kv_heads, shape.head_dim, 32, KvType::kBf16};
    args.merges = dmerges.as<AttentionMerge>();
    args.counts = dcounts.as<AttentionCounts>();
    // A captured graph's bound may be larger, and the grid smaller than the work.
    args.launch = {0, 0, counts.merges + Uniform(0, 2)};
    args.multiprocessors = Uniform(1, 3);
    args.records = drecords.as<float>();
    args.out = out.as<Bf16Bits>();
    ops().attention(args, stream());
    return Download<Bf16Bits>(out, size);
  }

  // One column of one row and head as a thread folds it that walks the partitions. `first` is the
  // first partition's record, `stride` the floats to the next one's.
  static Bf16Bits Folded(const float* first, size_t stride, int32_t partitions, int32_t column) {
    float m = -std::numeric_limits<float>::infinity(), l = 0, o = 0;
    for (int32_t i = 0; i < partitions; ++i) {
      const float* record = first + static_cast<size_t>(i) * stride;
      const float later_m = record[0], most = std::max(m, later_m);
      const float anchor = std::isinf(most) ? 0.0f : most;
      const float a = std::exp2(m - anchor), b = std::exp2(later_m - anchor);
      const volatile float added_l = record[1] * b, added_o = record[2 + column] * b;
      l = std::fma(l, a, added_l);
      o = std::fma(o, a, added_o);
      m = most;
    }
    return RoundToBf16(o * (1.0f / l));
  }
  static double Mean(const float* first, size_t stride, int32_t partitions, int32_t column) {
    double most = -INFINITY, l = 0, o = 0;
    for (int32_t i = 0; i < partitions; ++i) {
      most = std::max(most, double{first[static_cast<size_t>(i) * stride]});
    }
    for (int32_t i = 0; i < partitions; ++i) {
      const float* record = first + static_cast<size_t>(i) * stride;
      const double weight = std::exp2(record[0] - most);
      l += weight * record[1];
      o += weight * record[2 + column];
    }
    return o / l;
  }
};
INSTANTIATE_TEST_SUITE_P(All, DeviceAttentionMergeTest, kDeviceKindsWithHopper, DeviceName);

TEST_P(DeviceAttentionMergeTest, FoldsPartitionsInOrder) {
  for (const MergeShape shape : {MergeShape{3, 1, 16}, MergeShape{4, 2, 32}, MergeShape{8, 1, 64},
                                 MergeShape{2, 2, 128}, MergeShape{2, 1, 256}}) {
    const size_t record_size = static_cast<size_t>(shape.num_heads) * shape.record_floats();
    const int32_t rows_max = 16 * shape.num_kv_heads / shape.num_heads;
    std::vector<AttentionMerge> merges;
    int32_t rows = 0, records = Uniform(0, 2);
    for (const int32_t partitions :
         {1, 2, Uniform(3, 15), 16, 17, 64, 65, Uniform(66, 511), 512, Uniform(513, 1100)}) {
      const int32_t of_merge = Uniform(1, std::min(rows_max, 3));
      merges.push_back({rows, of_merge, records, partitions});
      rows += of_merge;
      records += of_merge * partitions;
    }
    const std::vector<float> all = RandomRecords(shape, records);
    const std::vector<Bf16Bits> out = Merge(shape, all, merges, rows);
    for (const AttentionMerge& merge : merges) {
      const size_t stride = static_cast<size_t>(merge.num_rows) * record_size;
      for (int32_t i = 0; i < merge.num_rows * shape.num_heads * shape.head_dim; ++i) {
        const int32_t row = i / (shape.num_heads * shape.head_dim);
        const int32_t head = i / shape.head_dim % shape.num_heads, column = i % shape.head_dim;
        const float* first = all.data() +
                             static_cast<size_t>(merge.first_record + row) * record_size +
                             static_cast<size_t>(head) * shape.record_floats();
        const size_t at = static_cast<size_t>(merge.first_row * shape.num_heads * shape.head_dim);
        const Bf16Bits actual = out[at + static_cast<size_t>(i)];
        const double mean = Mean(first, stride, merge.num_partitions, column);
        if (std::isnan(mean)) continue;  // no partition has anything
        ASSERT_NEAR(FromBf16(actual), mean, 2 * kBf16Unit * (std::abs(mean) + 0.1))
            << "row " << row << " head " << head << " column " << column << " of "
            << merge.num_partitions << " partitions";
        if (!emulated()) continue;
        ASSERT_EQ(actual, Folded(first, stride, merge.num_partitions, column))
            << "row " << row << " head " << head << " column " << column << " of "
            << merge.num_partitions << " partitions";
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
