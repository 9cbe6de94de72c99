// Goal: blocks count for the tenant that they were allocated for until the pool frees them, in
// every state; a tenant beyond its share gives back its own cached blocks, oldest first, and no
// other tenant's; and random operations agree with counting.
#include "common/kv/block_owners.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "common/kv/block_pool.h"
#include "tests/testing/status_matchers.h"

namespace tandem::kv {
namespace {

using ::testing::ElementsAre;

const BlockOwner kAlice{"alice", 0.5};
const BlockOwner kBob{"bob", 0.5};

BlockHash Hash(uint64_t n) { return {n, ~n}; }

BlockOwners::Counts CountsOf(const BlockPool& pool, const std::string& tenant) {
  for (BlockOwners::Counts& counts : pool.owner_counts())
    if (counts.tenant == tenant) return counts;
  return {tenant};
}

// Allocates, seals and caches a block.
BlockId Cache(BlockPool& pool, uint64_t n, const BlockOwner& owner) {
  const BlockId block = pool.Allocate(1, owner)->front();
  pool.Seal(block, Hash(n));
  pool.Unref(block);
  return block;
}

TEST(BlockOwners, CountInEveryState) {
  BlockPool pool(10);
  EXPECT_TRUE(pool.owner_counts().empty());
  const std::vector<BlockId> blocks = *pool.Allocate(3, kAlice);
  EXPECT_EQ(CountsOf(pool, "alice").used, 3);
  pool.Seal(blocks[0], Hash(0));
  pool.Unref(blocks[0]);
  EXPECT_EQ(CountsOf(pool, "alice").used, 2);
  EXPECT_EQ(CountsOf(pool, "alice").cached, 1);
  // Another's use of the block changes nothing about whom it counts for.
  EXPECT_THAT(pool.Match({Hash(0)}, kBob), ElementsAre(blocks[0]));
  EXPECT_EQ(CountsOf(pool, "alice").used, 3);
  EXPECT_EQ(CountsOf(pool, "bob").used, 0);
  pool.Unref(blocks[0]);
  pool.Quarantine(blocks[1]);
  EXPECT_EQ(CountsOf(pool, "alice").used, 2);
  pool.EndQuarantine(blocks[1]);
  pool.Unref(blocks[2]);
  EXPECT_EQ(CountsOf(pool, "alice").used, 0);
  EXPECT_EQ(CountsOf(pool, "alice").cached, 1);
  ASSERT_OK(pool.Allocate(10).status());  // evicts it
  EXPECT_TRUE(pool.owner_counts().empty());
}

TEST(BlockOwners, BlocksOfNobodyCountForTheirFirstUser) {
  BlockPool pool(10);
  const BlockId block = Cache(pool, 1, {});
  EXPECT_TRUE(pool.owner_counts().empty());
  pool.Unref(pool.Match({Hash(1)}, kAlice).front());
  EXPECT_EQ(CountsOf(pool, "alice").cached, 1);
  EXPECT_EQ(pool.Find(Hash(1)), block);
}

TEST(BlockOwners, AFloodOfOneEvictsItsOwnOldest) {
  BlockPool pool(10);
  for (uint64_t n = 0; n < 3; ++n) Cache(pool, n, kBob);
  for (uint64_t n = 100; n < 200; ++n) Cache(pool, n, kAlice);
  EXPECT_EQ(CountsOf(pool, "alice").cached, 5);
  EXPECT_EQ(CountsOf(pool, "bob").cached, 3);
  for (uint64_t n = 0; n < 3; ++n) EXPECT_TRUE(pool.Find(Hash(n)).has_value());
  for (uint64_t n = 195; n < 200; ++n) EXPECT_TRUE(pool.Find(Hash(n)).has_value());
  EXPECT_FALSE(pool.Find(Hash(194)).has_value());
  EXPECT_EQ(pool.counts().free, 2);
  // Running blocks take the place of cached ones, and may exceed the share.
  const std::vector<BlockId> running = *pool.Allocate(4, kAlice);
  EXPECT_EQ(CountsOf(pool, "alice").cached, 1);
  ASSERT_OK(pool.Allocate(3, kAlice).status());
  EXPECT_EQ(CountsOf(pool, "alice").cached, 0);
  EXPECT_EQ(CountsOf(pool, "alice").used, 7);
  EXPECT_EQ(CountsOf(pool, "bob").cached, 3);
  // What it gives back is not cached while it holds more than its share.
  pool.Seal(running[0], Hash(500));
  pool.Unref(running[0]);
  EXPECT_FALSE(pool.Find(Hash(500)).has_value());
}

TEST(BlockOwners, AnAllocationThatFailsEvictsNothing) {
  BlockPool pool(4);
  const std::vector<BlockId> used = *pool.Allocate(2);
  Cache(pool, 1, kAlice);
  Cache(pool, 2, kAlice);
  EXPECT_FALSE(pool.Allocate(3, kAlice).ok());
  EXPECT_EQ(CountsOf(pool, "alice").cached, 2);
}

TEST(BlockOwners, ABlockThatIsBeingSavedStays) {
  BlockPool pool(4);
  const BlockId first = Cache(pool, 1, kAlice);
  pool.BeginSave(first);
  Cache(pool, 2, kAlice);
  Cache(pool, 3, kAlice);
  EXPECT_TRUE(pool.Find(Hash(1)).has_value());
  EXPECT_FALSE(pool.Find(Hash(2)).has_value());
  pool.EndSave(first);
}

TEST(BlockOwners, RandomOperationsAgreeWithCounting) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  const std::vector<BlockOwner> owners = {{}, {"a", 0.2}, {"b", 0.5}, {"c", 1.0}};
  BlockPool pool(32);
  std::vector<std::pair<BlockId, bool>> held;  // whether it is sealed
  uint64_t next = 0;
  for (int i = 0; i < 200'000; ++i) {
    const BlockOwner& owner = owners[random() % owners.size()];
    const size_t at = held.empty() ? 0 : random() % held.size();
    switch (random() % 5) {
      case 0:
        if (const auto block = pool.Allocate(1, owner); block.ok())
          held.emplace_back(block->front(), false);
        break;
      case 1:
        if (held.size() > 64) break;
        for (const BlockId block : pool.Match({Hash(random() % (next + 1))}, owner))
          held.emplace_back(block, true);
        break;
      case 2:
        if (held.empty() || held[at].second || pool.IsSealed(held[at].first)) break;
        pool.Seal(held[at].first, Hash(next++));
        held[at].second = true;
        break;
      case 3:
        if (held.empty() || held[at].second) break;
        pool.Quarantine(held[at].first);
        pool.EndQuarantine(held[at].first);
        held.erase(held.begin() + static_cast<int64_t>(at));
        break;
      default:
        if (held.empty()) break;
        pool.Unref(held[at].first);
        held.erase(held.begin() + static_cast<int64_t>(at));
    }
    std::set<BlockId> used;
    for (const auto& [block, sealed] : held) used.insert(block);
    int64_t owned_used = 0, owned_cached = 0;
    for (const BlockOwners::Counts& counts : pool.owner_counts()) {
      ASSERT_GT(counts.used + counts.cached, 0) << counts.tenant;
      ASSERT_GE(counts.used, 0);
      owned_used += counts.used;
      owned_cached += counts.cached;
      const double share = counts.tenant == "a" ? 0.2 : counts.tenant == "b" ? 0.5 : 1.0;
      ASSERT_TRUE(counts.cached == 0 ||
                  counts.used + counts.cached <= static_cast<int64_t>(share * 32))
          << counts.tenant << " holds " << counts.used << " and caches " << counts.cached;
    }
    ASSERT_LE(owned_used, static_cast<int64_t>(used.size()));
    ASSERT_LE(owned_cached, pool.counts().cached);
    ASSERT_EQ(pool.counts().used, static_cast<int64_t>(used.size()));
  }
  for (const auto& [block, sealed] : held) pool.Unref(block);
}

}  // namespace
}  // namespace tandem::kv
