// Goal: attention in two steps on the device has the bits of plain attention: records of any spans
// of partitions, computed in calls of their own and put together, then merged. For every cache
// type, for generated rows and for prompt rows that cross a partition's border. Blocks of other
// spans are never read, and no record outside of a call's own is written.
#include <algorithm>

#include "attention_fixture.h"
#include "kernels/api/attention.h"

namespace tandem::kernels {
namespace {

class DevicePartialsTest : public DeviceAttentionTest {
 protected:
  // What both steps share: a sequence's rows [begin, end) in narrow tiles of `chunk` rows.
  struct Rows {
    DeviceAttentionShape shape;
    DeviceSequence data;
    int32_t begin = 0, end = 0, chunk = 1;
  };
  struct Chunks {
    std::vector<PartialRows> rows;  // all partitions of each chunk
    std::vector<AttentionMerge> merges;
    int32_t num_records = 0;
  };

  static Chunks Cut(const Rows& of) {
    Chunks chunks;
    for (int32_t at = of.begin; at < of.end; at += of.chunk) {
      const int32_t rows = std::min(of.chunk, of.end - at);
      const int32_t end = (at + rows - 1) / kPartitionTokens + 1;
      chunks.rows.push_back({at - of.begin, rows, at, 0, 0, end, chunks.num_records});
      chunks.merges.push_back({at - of.begin, rows, chunks.num_records, end});
      chunks.num_records += rows * end;
    }
    return chunks;
  }

  DeviceAttentionArgs ArgsOf(const DeviceAttentionShape& shape) {
    DeviceAttentionArgs args;
    args.num_heads = shape.num_heads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    args.layer.shape = shape.Kv();
    args.layer.block_stride_bytes = static_cast<int64_t>(KvBlockBytes(shape.Kv()));
    args.multiprocessors = Uniform(1, 3);
    return args;
  }

  // Records of partitions [first, end) of all chunks, as one node computes them: in a cache in
  // which every other block holds NaN, with a table that begins with the span's blocks.
  void ComputeSpan(const Rows& of, const Chunks& chunks, int32_t first, int32_t end,
                   const DeviceBuffer& records) {
    const Cache cache = MakeCache(of.shape, {of.data}, {{0, of.begin, of.end}});
    const int32_t per_partition = kPartitionTokens / of.shape.block_tokens;
    std::vector<uint8_t> region = cache.region;
    const size_t block_bytes = KvBlockBytes(of.shape.Kv());
    for (size_t i = 0; i < cache.tables.size(); ++i) {
      const int32_t partition = static_cast<int32_t>(i) / per_partition;
      if (partition >= first && partition < end) continue;
      std::fill_n(region.begin() + static_cast<std::ptrdiff_t>(
                                       static_cast<size_t>(cache.tables[i]) * block_bytes),
                  block_bytes, uint8_t{0xff});
    }
    const size_t from = static_cast<size_t>(first * per_partition);
    const size_t to = std::min(static_cast<size_t>(end * per_partition), cache.tables.size());
    const std::vector<int32_t> table(cache.tables.begin() + static_cast<std::ptrdiff_t>(from),
                                     cache.tables.begin() + static_cast<std::ptrdiff_t>(to));
    std::vector<PartialRows> rows;
    for (PartialRows part : chunks.rows) {
      part.table_offset = -first * per_partition;
      part.first_record += first * part.num_rows;
      part.first_partition = first;
      part.end_partition = std::min(end, part.end_partition);
      if (part.first_partition < part.end_partition) rows.push_back(part);
    }
    const std::vector<AttentionItem> items =
        SchedulePartials({.num_heads = of.shape.num_heads,
                          .num_kv_heads = of.shape.num_kv_heads,
                          .items_wanted = Uniform(1, 6)},
                         rows);
    const int32_t row_size = of.shape.num_heads * of.shape.head_dim;
    const std::vector<Bf16Bits> q(of.data.q.begin() + of.begin * row_size,
                                  of.data.q.begin() + of.end * row_size);
    const AttentionCounts counts = {static_cast<int32_t>(items.size()), 0, 0};
    const DeviceBuffer dq = Upload(q), dregion = Upload(region), tables = Upload(table),
                       narrow = Upload(items),
                       dcounts = Upload(std::vector<AttentionCounts>{counts});
    DeviceAttentionArgs args = ArgsOf(of.shape);
    args.q = dq.as<Bf16Bits>();
    args.layer.base = dregion.data();
    args.tables = tables.as<int32_t>();
    args.narrow_items = narrow.as<AttentionItem>();
    args.counts = dcounts.as<AttentionCounts>();
    args.launch = counts;
    args.records = records.as<float>();
    ops().attention(args, stream());
    ASSERT_TRUE(stream_->Synchronize().ok());
  }

  std::vector<Bf16Bits> Merge(const Rows& of, const Chunks& chunks, const DeviceBuffer& records) {
    const size_t size =
        static_cast<size_t>((of.end - of.begin) * of.shape.num_heads * of.shape.head_dim);
    const AttentionCounts counts = {0, 0, static_cast<int32_t>(chunks.merges.size())};
    const DeviceBuffer out = Poisoned(size * sizeof(Bf16Bits)), merges = Upload(chunks.merges),
                       dcounts = Upload(std::vector<AttentionCounts>{counts});
    DeviceAttentionArgs args = ArgsOf(of.shape);
    args.merges = merges.as<AttentionMerge>();
    args.counts = dcounts.as<AttentionCounts>();
    args.launch = counts;
    args.records = records.as<float>();
    args.out = out.as<Bf16Bits>();
    ops().attention(args, stream());
    return Download<Bf16Bits>(out, size);
  }

  // Spans between `borders` are computed apart, in any order.
  void ExpectSame(const Rows& of, std::vector<int32_t> borders) {
    const std::vector<Bf16Bits> plain =
        RunBatch(of.shape, {of.data}, {{0, of.begin, of.end}}, Uniform(1, 4));
    const Chunks chunks = Cut(of);
    const DeviceBuffer records =
        Poisoned(static_cast<size_t>(chunks.num_records) * static_cast<size_t>(of.shape.num_heads) *
                 static_cast<size_t>(of.shape.head_dim + 2) * 4);
    borders.insert(borders.begin(), 0);
    borders.push_back((of.end - 1) / kPartitionTokens + 1);
    std::vector<size_t> order(borders.size() - 1);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), generator_);
    for (const size_t i : order) ComputeSpan(of, chunks, borders[i], borders[i + 1], records);
    const std::vector<Bf16Bits> merged = Merge(of, chunks, records);
    ExpectSameBits(merged.data(), plain.data(), plain.size(),
                   "rows " + std::to_string(of.begin) + " to " + std::to_string(of.end) +
                       ", head_dim " + std::to_string(of.shape.head_dim));
  }

  Rows Draw(const DeviceAttentionShape& shape, int32_t begin, int32_t end) {
    return {shape, RandomSequence(shape, end), begin, end,
            kNarrowVectors / (shape.num_heads / shape.num_kv_heads)};
  }
};
INSTANTIATE_TEST_SUITE_P(All, DevicePartialsTest, kDeviceKindsWithHopper, DeviceName);

TEST_P(DevicePartialsTest, AGeneratedRowHasTheBitsOfPlainAttention) {
  ExpectSame(Draw({4, 2, 64}, 799, 800), {1, 2});
  ExpectSame(Draw({8, 1, 128, 0, 64}, 1030, 1031), {3});
  ExpectSame(Draw({2, 2, 256, 0, 16}, 520, 521), {2});
  ExpectSame(Draw({4, 1, 32}, 256, 257), {1});
  ExpectSame(Draw({16, 1, 16, 0, 256}, 700, 701), {1, 2});
}

TEST_P(DevicePartialsTest, PromptRowsHaveTheBitsOfPlainAttention) {
  // Rows before and behind a border, in a last tile that is not full, in tiles of one row.
  ExpectSame(Draw({4, 2, 64}, 490, 533), {1});
  ExpectSame(Draw({4, 1, 128, 0, 16}, 509, 520), {1, 2});
  ExpectSame(Draw({10, 1, 64}, 300, 303), {1});
}

TEST_P(DevicePartialsTest, OverACacheOfCodes) {
  for (const KvType type : {KvType::kInt8, KvType::kFp8}) {
    ExpectSame(Draw({4, 2, 64, 0, 32, type}, 600, 601), {1, 2});
    ExpectSame(Draw({4, 1, 128, 0, 64, type}, 509, 516), {1});
  }
}

TEST(PartialsSchedule, GivesEachRecordToOneItem) {
  std::mt19937 generator(std::random_device{}());
  const auto uniform = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(generator);
  };
  for (int round = 0; round < 50; ++round) {
    std::vector<PartialRows> rows;
    int32_t records = 0, longest = 0, partitions = 0;
    for (int32_t i = uniform(1, 5); i > 0; --i) {
      const int32_t first = uniform(0, 9), count = uniform(1, 70), of = uniform(1, 4);
      rows.push_back({i * 4, of, 20000, -first, first, first + count, records});
      records += of * count;
      partitions += count;
    }
    const int32_t wanted = uniform(1, 40);
    std::vector<int> seen(static_cast<size_t>(records));
    const std::vector<AttentionItem> items =
        SchedulePartials({.num_heads = 4, .num_kv_heads = 1, .items_wanted = wanted}, rows);
    for (const AttentionItem& item : items) {
      longest = std::max(longest, item.end_partition - item.first_partition);
      for (int32_t i = 0; i < (item.end_partition - item.first_partition) * item.num_rows; ++i)
        ++seen[static_cast<size_t>(item.first_record + i)];
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), records);
    EXPECT_LE(longest, (partitions + wanted - 1) / wanted);
    EXPECT_LE(items.size(), static_cast<size_t>(wanted) + rows.size());
  }
}

}  // namespace
}  // namespace tandem::kernels
