// Goal: the attention schedule covers every (row, head, partition) of random batches exactly once,
// stays inside the record area, and levels long and short contexts.
#include "kernels/api/attention_schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "kernels/api/device_attention.h"

namespace tandem::kernels {
namespace {

using Covered = std::multiset<std::tuple<int32_t, int32_t, int32_t>>;  // table, vector, partition

void Cover(const AttentionItem& item, int32_t tile, int32_t heads_per_kv, Covered* covered) {
  const int32_t vectors = item.num_rows * heads_per_kv;
  for (int32_t v = item.first_vector; v < std::min(item.first_vector + tile, vectors); ++v) {
    for (int32_t p = item.first_partition; p < item.end_partition; ++p) {
      covered->insert({item.table_offset, v, p});
    }
  }
}

TEST(AttentionSchedule, CoversEveryPartitionOnce) {
  const uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 generator(seed);
  const auto uniform = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(generator);
  };
  for (int round = 0; round < 300; ++round) {
    AttentionScheduleOptions options;
    options.num_kv_heads = uniform(1, 4);
    const int32_t heads_per_kv = uniform(1, 12);
    options.num_heads = options.num_kv_heads * heads_per_kv;
    options.sliding_window = uniform(0, 2) == 0 ? uniform(1, 2000) : 0;
    options.items_wanted = uniform(0, 300);
    options.records_max = uniform(0, 200);
    std::vector<AttentionSequence> sequences;
    int32_t row = 0;
    for (int32_t i = 0; i < uniform(1, 20); ++i) {
      const int32_t rows = uniform(0, 3) == 0 ? uniform(1, 200) : 1;
      sequences.push_back({row, rows, uniform(0, 20000), i});
      row += rows;
    }
    const AttentionSchedule schedule = ScheduleAttention(options, sequences);
    Covered covered;
    std::set<int32_t> records;
    for (const AttentionItem& item : schedule.wide_items) {
      EXPECT_EQ(item.first_record, -1);
      Cover(item, kWideVectors, heads_per_kv, &covered);
    }
    for (const AttentionItem& item : schedule.narrow_items) {
      ASSERT_LT(item.first_partition, item.end_partition);
      Cover(item, kNarrowVectors, heads_per_kv, &covered);
      for (int32_t p = item.first_partition; item.first_record >= 0 && p < item.end_partition;
           ++p) {
        const int32_t record = item.first_record + p - item.first_partition;
        EXPECT_TRUE(records.insert(record).second) << "record " << record << " is written twice";
        EXPECT_LT(record, options.records_max);
      }
    }
    size_t merged = 0;
    for (const AttentionMerge& merge : schedule.merges) {
      merged += static_cast<size_t>(merge.num_partitions);
      for (int32_t i = 0; i < merge.num_partitions; ++i) {
        EXPECT_TRUE(records.count(merge.first_record + i) == 1);
      }
    }
    EXPECT_EQ(merged, records.size());
    // Each vector's own partitions are covered once; a tile may add some that it masks.
    for (const AttentionSequence& s : sequences) {
      for (int32_t v = 0; v < s.num_rows * heads_per_kv; ++v) {
        const int32_t position = s.first_position + v / heads_per_kv;
        const int32_t begin =
            options.sliding_window > 0 ? std::max(0, position + 1 - options.sliding_window) : 0;
        for (int32_t p = begin / 256; p <= position / 256; ++p) {
          ASSERT_EQ(covered.count({s.table_offset, v, p}), 1u);
        }
      }
    }
  }
}

TEST(AttentionSchedule, LevelsALongContextAmongShortOnes) {
  // One row at 128k tokens beside 31 at 256: 512 + 31 partitions over 132 items.
  std::vector<AttentionSequence> sequences = {{0, 1, 131071, 0}};
  for (int32_t i = 1; i < 32; ++i) sequences.push_back({i, 1, 255, i});
  const AttentionSchedule schedule = ScheduleAttention({16, 2, 0, 132, 1024}, sequences);
  for (const AttentionItem& item : schedule.narrow_items) {
    EXPECT_LE(item.end_partition - item.first_partition, 5);
  }
  EXPECT_EQ(schedule.merges.size(), 1u);
  EXPECT_LE(schedule.narrow_items.size(), 134u);
}

}  // namespace
}  // namespace tandem::kernels
