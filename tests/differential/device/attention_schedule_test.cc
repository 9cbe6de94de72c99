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

// Each record is written by one item and read by one merge, inside the record area.
void ExpectEachRecordOnce(const AttentionSchedule& schedule, int32_t records_max) {
  std::set<int32_t> written;
  for (const AttentionItem& item : schedule.narrow_items) {
    if (item.first_record < 0) continue;
    const int32_t of_item = (item.end_partition - item.first_partition) * item.num_rows;
    for (int32_t record = item.first_record; record < item.first_record + of_item; ++record) {
      EXPECT_TRUE(written.insert(record).second) << "record " << record << " is written twice";
      EXPECT_LT(record, records_max);
    }
  }
  size_t merged = 0;
  for (const AttentionMerge& merge : schedule.merges) {
    const int32_t of_merge = merge.num_partitions * merge.num_rows;
    merged += static_cast<size_t>(of_merge);
    for (int32_t i = 0; i < of_merge; ++i) EXPECT_EQ(written.count(merge.first_record + i), 1u);
  }
  EXPECT_EQ(merged, written.size());
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
    for (const AttentionItem& item : schedule.wide_items) {
      EXPECT_EQ(item.first_record, -1);
      Cover(item, kWideVectors, heads_per_kv, &covered);
    }
    for (const AttentionItem& item : schedule.narrow_items) {
      ASSERT_LT(item.first_partition, item.end_partition);
      Cover(item, kNarrowVectors, heads_per_kv, &covered);
    }
    // Splitting leaves at most one more item for each sequence than were wanted.
    EXPECT_LE(schedule.narrow_items.size(),
              sequences.size() + static_cast<size_t>(std::max(1, options.items_wanted)));
    ExpectEachRecordOnce(schedule, options.records_max);
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

TEST(AttentionSchedule, PiecesOfATileDifferByOnePartitionAtMost) {
  // 100 partitions, of which an item has 8 at most: twelve pieces of 7 or 8 and one more.
  const AttentionSchedule schedule =
      ScheduleAttention({16, 2, 0, 13, 1 << 20}, {{0, 1, 100 * 256 - 1, 0}});
  ASSERT_EQ(schedule.narrow_items.size(), 13u);
  for (const AttentionItem& item : schedule.narrow_items) {
    const int32_t partitions = item.end_partition - item.first_partition;
    EXPECT_TRUE(partitions == 7 || partitions == 8) << partitions;
  }
}

TEST(AttentionSchedule, TheRecordsThatAreReservedSplitEveryLongTile) {
  const uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 generator(seed);
  const auto uniform = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(generator);
  };
  for (int round = 0; round < 300; ++round) {
    const AttentionRecordNeeds needs = {.items_wanted = uniform(1, 132),
                                        .context_tokens = uniform(1, 200000),
                                        .kv_token_bytes = 4096,
                                        .memory_bytes = int64_t{4096} * uniform(1, 2000000)};
    // As many sequences as the device's memory holds.
    std::vector<AttentionSequence> sequences;
    int64_t left = needs.memory_bytes / needs.kv_token_bytes, partitions = 0;
    for (int32_t i = 0; i < uniform(1, 256) && left > 0; ++i) {
      const int64_t length = std::min<int64_t>(uniform(1, needs.context_tokens), left);
      sequences.push_back({i, 1, static_cast<int32_t>(length) - 1, i});
      partitions += (length + 255) / 256;
      left -= length;
    }
    const int32_t records = AttentionRecordsMax(needs);
    const AttentionSchedule schedule =
        ScheduleAttention({16, 2, 0, needs.items_wanted, records}, sequences);
    const int64_t longest = (partitions + needs.items_wanted - 1) / needs.items_wanted;
    for (const AttentionItem& item : schedule.narrow_items) {
      ASSERT_LE(item.end_partition - item.first_partition, longest)
          << records << " records for " << sequences.size() << " sequences";
    }
  }
}

TEST(AttentionSchedule, ReservesByNeed) {
  // One item: nothing is ever split.
  EXPECT_EQ(AttentionRecordsMax({1, 131072, 4096, int64_t{1} << 37}), 0);
  // A short context needs few; a long one as many as memory can hold KV, twice.
  EXPECT_EQ(AttentionRecordsMax({33, 1000, 131072, int64_t{80} << 30}), 32 * 4);
  EXPECT_EQ(AttentionRecordsMax({33, 131072, 131072, int64_t{80} << 30}), 2 * 2560);
}

}  // namespace
}  // namespace tandem::kernels
