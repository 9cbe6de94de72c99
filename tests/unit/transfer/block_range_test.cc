// Goal: ranges are merged, cut and searched without losing or doubling a cell.
#include "common/transfer/block_range.h"

#include <gtest/gtest.h>

#include "common/runtime/random.h"

namespace tandem::transfer {
namespace {

TEST(BlockRangeTest, SplitCoversEachCellOnceWithinTheLimit) {
  for (int ordinals = 1; ordinals <= 9; ++ordinals) {
    for (int layers = 1; layers <= 9; ++layers) {
      for (int cells_max = 1; cells_max <= 90; cells_max += 7) {
        CellMap map(3, ordinals, layers);
        for (const BlockRange& part : SplitRange({3, ordinals, 0, layers}, cells_max)) {
          EXPECT_LE(part.cells(), cells_max);
          ASSERT_TRUE(map.Contains(part));
          EXPECT_TRUE(map.AllAre(part, CellState::kEmpty));
          map.Set(part, CellState::kFilled);
        }
        EXPECT_TRUE(map.AllFilled());
      }
    }
  }
}

TEST(BlockRangeTest, MergeOnlyJoinsRectangles) {
  BlockRange range{0, 4, 0, 1};
  EXPECT_TRUE(MergeRange(range, {0, 4, 1, 2}));
  EXPECT_EQ(range, (BlockRange{0, 4, 0, 3}));
  EXPECT_FALSE(MergeRange(range, {4, 1, 0, 2}));
  EXPECT_FALSE(MergeRange(range, {5, 4, 0, 3}));
  EXPECT_TRUE(MergeRange(range, {4, 1, 0, 3}));
  EXPECT_EQ(range, (BlockRange{0, 5, 0, 3}));
}

TEST(CellMapTest, FindReturnsExactlyTheCellsInAState) {
  const uint64_t seed = 17;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto random = NewSeededRandom(seed);
  for (int round = 0; round < 200; ++round) {
    CellMap map(2, 7, 5), found(2, 7, 5);
    for (int layer = 0; layer < 5; ++layer) {
      for (int ordinal = 2; ordinal < 9; ++ordinal) {
        if (random->Below(3) == 0) map.Set({ordinal, 1, layer, 1}, CellState::kFilled);
      }
    }
    for (const BlockRange& range : map.Find(CellState::kFilled, 100)) {
      EXPECT_TRUE(map.AllAre(range, CellState::kFilled));
      EXPECT_TRUE(found.AllAre(range, CellState::kEmpty));
      found.Set(range, CellState::kFilled);
    }
    EXPECT_EQ(found.filled_count(), map.filled_count());
  }
}

TEST(BlockRangeTest, WireValuesThatDoNotFitAreRefused) {
  EXPECT_FALSE(ToBlockRange(0, 0, 0, 1).has_value());
  EXPECT_FALSE(ToBlockRange(0, 1, 0, 0).has_value());
  EXPECT_FALSE(ToBlockRange(0xFFFFFFFF, 1, 0, 1).has_value());
  EXPECT_FALSE(ToBlockRange(0x7FFFFFFF, 1, 0, 1).has_value());
  EXPECT_FALSE(ToBlockRange(0, 1, 1, 0xFFFFFFFF).has_value());
  EXPECT_TRUE(ToBlockRange(1, 1, 1, 1).has_value());
}

}  // namespace
}  // namespace tandem::transfer
