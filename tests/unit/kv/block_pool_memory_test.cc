// Goal: a pool takes resident memory for the blocks that were used, not for those that it may have:
// a simulation has many large pools that use a part of their blocks.
#include <cstdio>

#include "common/kv/block_pool.h"
#include "tests/testing/resident_memory.h"
#include "tests/testing/status_matchers.h"

namespace tandem::kv {
namespace {

using testing::ResidentBytes;

constexpr int64_t kBlocks = 2'000'000;
// The table of names has marks of a byte, two or fewer for a block, that are set from the start.
constexpr double kUnusedBytesMax = 4;
constexpr double kUsedBytesMax = 120;

TEST(BlockPoolMemory, UnusedBlocksTakeNone) {
  if (!testing::kResidentBytesTell) GTEST_SKIP() << "a sanitizer's memory is counted too";
  const int64_t before = ResidentBytes();
  BlockPool pool(kBlocks);
  const int64_t unused = ResidentBytes() - before;
  std::printf("unused: %.1f bytes a block\n", static_cast<double>(unused) / kBlocks);
  EXPECT_LT(static_cast<double>(unused), kUnusedBytesMax * kBlocks);
  EXPECT_EQ(pool.counts().free, kBlocks);

  // All of them, each with a name.
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> blocks, pool.Allocate(kBlocks));
  for (const BlockId block : blocks) {
    const auto number = static_cast<uint64_t>(block.value()) + 1;
    pool.Seal(block, {number * 0x9e3779b97f4a7c15, number});
    if (block.value() % 1024 == 0) pool.DrainEvents();
  }
  pool.DrainEvents();
  const int64_t used = ResidentBytes() - before - std::ssize(blocks) * sizeof(BlockId);
  std::printf("used: %.1f bytes a block\n", static_cast<double>(used) / kBlocks);
  EXPECT_GT(static_cast<double>(used), 2 * static_cast<double>(unused)) << "it was not measured";
  EXPECT_LT(static_cast<double>(used), kUsedBytesMax * kBlocks);
  EXPECT_EQ(pool.counts().free, 0);
  for (const BlockId block : blocks) pool.Unref(block);
  EXPECT_EQ(pool.counts().cached, kBlocks);
  EXPECT_OK(pool.Allocate(kBlocks).status());
  EXPECT_EQ(pool.counts().cached, 0);
}

}  // namespace
}  // namespace tandem::kv
