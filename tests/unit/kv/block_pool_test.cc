// Goal: the pool agrees with a naive model after any order of operations: block states, references,
// which blocks a hash finds, which cached block is evicted first, and the events for routers.
// Misuse ends the process.
#include "common/kv/block_pool.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace tandem::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

BlockHash Hash(uint64_t n) { return {n, ~n}; }

TEST(BlockPool, AllocatesAllOrNothing) {
  BlockPool pool(4);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> three, pool.Allocate(3));
  EXPECT_EQ(std::set<BlockId>(three.begin(), three.end()).size(), 3u);
  EXPECT_THAT(pool.Allocate(2), testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                                  HasSubstr("2 blocks requested, 1 of 4")));
  EXPECT_EQ(pool.counts().free, 1);
  EXPECT_OK(pool.Allocate(1));
}

TEST(BlockPool, SealedBlocksStayFindableUntilEvictedOldestFirst) {
  BlockPool pool(3);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> blocks, pool.Allocate(3));
  for (int i = 0; i < 3; ++i) pool.Seal(blocks[i], Hash(i));
  for (const int i : {2, 1, 0}) pool.Unref(blocks[i]);
  EXPECT_EQ(pool.counts().cached, 3);
  EXPECT_THAT(pool.DrainEvents().stored, ElementsAre(Hash(0), Hash(1), Hash(2)));

  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> one, pool.Allocate(1));
  EXPECT_THAT(pool.DrainEvents().removed, ElementsAre(Hash(2)));
  EXPECT_THAT(pool.Match({Hash(0), Hash(1), Hash(2)}), ElementsAre(blocks[0], blocks[1]));
  EXPECT_EQ(pool.counts().used, 3);
}

TEST(BlockPool, TheSecondBlockOfAnEqualHashStaysUnsealed) {
  BlockPool pool(2);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> blocks, pool.Allocate(2));
  pool.Seal(blocks[0], Hash(9));
  pool.Seal(blocks[1], Hash(9));
  EXPECT_TRUE(pool.IsSealed(blocks[0]));
  EXPECT_FALSE(pool.IsSealed(blocks[1]));
  pool.Unref(blocks[1]);
  EXPECT_EQ(pool.counts().free, 1);
}

TEST(BlockPool, StoredAndRemovedBetweenTwoDrainsCancelOut) {
  BlockPool pool(1);
  ASSERT_OK_AND_ASSIGN(std::vector<BlockId> block, pool.Allocate(1));
  pool.Seal(block[0], Hash(1));
  pool.Unref(block[0]);
  ASSERT_OK_AND_ASSIGN(block, pool.Allocate(1));  // evicts hash 1
  EXPECT_THAT(pool.DrainEvents().stored, IsEmpty());
  pool.Seal(block[0], Hash(2));
  pool.DrainEvents();
  pool.Unref(block[0]);
  ASSERT_OK_AND_ASSIGN(block, pool.Allocate(1));  // evicts hash 2, which comes back
  pool.Seal(block[0], Hash(2));
  const BlockEvents events = pool.DrainEvents();
  EXPECT_THAT(events.stored, IsEmpty());
  EXPECT_THAT(events.removed, IsEmpty());
}

TEST(BlockPool, QuarantinedBlocksCannotBeAllocated) {
  BlockPool pool(2);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> blocks, pool.Allocate(2));
  pool.Quarantine(blocks[0]);
  pool.Unref(blocks[1]);
  EXPECT_EQ(pool.counts().quarantined, 1);
  EXPECT_FALSE(pool.Allocate(2).ok());
  pool.EndQuarantine(blocks[0]);
  EXPECT_OK(pool.Allocate(2));
}

TEST(BlockPoolDeathTest, MisuseEndsTheProcess) {
  BlockPool pool(2);
  const BlockId block = pool.Allocate(1)->front();
  EXPECT_DEATH(pool.Ref(block), "shared while not used and sealed");
  pool.Seal(block, Hash(1));
  EXPECT_DEATH(pool.Quarantine(block), "quarantined while shared, sealed or not used");
  EXPECT_DEATH(pool.Seal(block, Hash(2)), "sealed twice");
  pool.Unref(block);
  EXPECT_DEATH(pool.Unref(block), "does not own it");
  EXPECT_DEATH(pool.Unref(BlockId(2)), "block 2 of 2");
}

// The pool as sets and maps, with each operation written directly from the contract.
class NaivePool {
 public:
  explicit NaivePool(int num_blocks) : num_blocks_(num_blocks) {}

  struct Block {
    int references = 0;
    std::optional<BlockHash> hash;
  };
  std::map<BlockId, Block> used;
  std::vector<std::pair<BlockId, BlockHash>> cached;  // least recently used first
  std::set<BlockId> quarantined;
  std::set<BlockId> saving;

  int free() const {
    return num_blocks_ - static_cast<int>(used.size() + cached.size() + quarantined.size());
  }
  std::optional<BlockId> Find(const BlockHash& hash) const {
    for (const auto& [id, b] : used) {
      if (b.hash == hash) return id;
    }
    for (const auto& [id, h] : cached) {
      if (h == hash) return id;
    }
    return std::nullopt;
  }
  int available() const {
    return free() +
           static_cast<int>(std::count_if(cached.begin(), cached.end(), [&](const auto& c) {
             return !saving.contains(c.first);
           }));
  }
  // The blocks that Allocate must have evicted to return `ids`.
  void Allocated(const std::vector<BlockId>& ids) {
    int evictions = std::max(0, static_cast<int>(ids.size()) - free());
    for (auto it = cached.begin(); evictions > 0;) {
      if (saving.contains(it->first)) {
        ++it;
        continue;
      }
      it = cached.erase(it);
      --evictions;
    }
    for (const BlockId id : ids) {
      EXPECT_TRUE(!used.contains(id) && !quarantined.contains(id)) << "block " << id;
      for (const auto& entry : cached) EXPECT_NE(entry.first, id);
      used[id].references = 1;
    }
  }
  void Unref(BlockId id) {
    Block& b = used[id];
    if (--b.references > 0) return;
    if (b.hash.has_value()) cached.emplace_back(id, *b.hash);
    used.erase(id);
  }
  void MatchOne(BlockId id, const BlockHash& hash) {
    if (used.contains(id)) {
      ++used[id].references;
      return;
    }
    std::erase_if(cached, [&](const auto& entry) { return entry.first == id; });
    used[id] = {.references = 1, .hash = hash};
  }
  std::set<BlockHash> Hashes() const {
    std::set<BlockHash> hashes;
    for (const auto& [id, b] : used) {
      if (b.hash.has_value()) hashes.insert(*b.hash);
    }
    for (const auto& entry : cached) hashes.insert(entry.second);
    return hashes;
  }

 private:
  const int num_blocks_;
};

class PoolFuzzer {
 public:
  PoolFuzzer(uint64_t seed, int num_blocks)
      : random_(seed), num_blocks_(num_blocks), pool_(num_blocks), naive_(num_blocks) {}

  void Step() {
    switch (random_() % 8) {
      case 0:
        return Allocate();
      case 1:
        return Match();
      case 2:
        return Seal();
      case 3:
        return Quarantine();
      case 4:
        if (!naive_.quarantined.empty()) {
          const BlockId id = *naive_.quarantined.begin();
          pool_.EndQuarantine(id);
          naive_.quarantined.erase(id);
        }
        return;
      case 5:
        return BeginSave();
      case 6:
        return EndSave();
      default:
        return Unref();
    }
  }

  void Compare() {
    const BlockPool::Counts counts = pool_.counts();
    ASSERT_EQ(counts.used, static_cast<int64_t>(naive_.used.size()));
    ASSERT_EQ(counts.cached, static_cast<int64_t>(naive_.cached.size()));
    ASSERT_EQ(counts.quarantined, static_cast<int64_t>(naive_.quarantined.size()));
    ASSERT_EQ(counts.free, naive_.free());
    ASSERT_EQ(counts.available(), naive_.available());
    const std::vector<BlockHash> sealed = pool_.SealedHashes();
    ASSERT_EQ(std::set<BlockHash>(sealed.begin(), sealed.end()), naive_.Hashes());
    if (random_() % 4 == 0) CompareEvents();
  }

 private:
  // A router that applies only the events knows the same hashes.
  void CompareEvents() {
    const BlockEvents events = pool_.DrainEvents();
    for (const BlockHash& hash : events.removed) ASSERT_EQ(told_.erase(hash), 1u);
    for (const BlockHash& hash : events.stored) ASSERT_TRUE(told_.insert(hash).second);
    ASSERT_EQ(told_, naive_.Hashes());
  }
  std::optional<BlockId> AnyUsed(bool unsealed) {
    std::vector<BlockId> ids;
    for (const auto& [id, b] : naive_.used) {
      if (!unsealed || !b.hash.has_value()) ids.push_back(id);
    }
    if (ids.empty()) return std::nullopt;
    return ids[random_() % ids.size()];
  }
  void Allocate() {
    const int count = static_cast<int>(random_() % 5);
    const auto blocks = pool_.Allocate(count);
    ASSERT_EQ(blocks.ok(), count <= naive_.available());
    if (blocks.ok()) naive_.Allocated(*blocks);
  }
  void Match() {
    std::vector<BlockHash> hashes;
    for (int i = 0; i < 3; ++i) hashes.push_back(Hash(random_() % (2 * num_blocks_)));
    std::vector<BlockId> expected;
    for (const BlockHash& hash : hashes) {
      const std::optional<BlockId> id = naive_.Find(hash);
      if (!id.has_value()) break;
      naive_.MatchOne(*id, hash);
      expected.push_back(*id);
    }
    ASSERT_EQ(pool_.MatchLength(hashes), static_cast<int64_t>(expected.size()));
    ASSERT_EQ(pool_.Match(hashes), expected);
  }
  void Seal() {
    const std::optional<BlockId> id = AnyUsed(/*unsealed=*/true);
    if (!id.has_value()) return;
    const BlockHash hash = Hash(random_() % (2 * num_blocks_));
    const bool known = naive_.Find(hash).has_value();
    pool_.Seal(*id, hash);
    if (!known) naive_.used[*id].hash = hash;
    ASSERT_EQ(pool_.IsSealed(*id), !known);
  }
  void Quarantine() {
    const std::optional<BlockId> id = AnyUsed(/*unsealed=*/true);
    if (!id.has_value()) return;
    pool_.Quarantine(*id);
    naive_.used.erase(*id);
    naive_.quarantined.insert(*id);
  }
  void BeginSave() {
    const BlockHash hash = Hash(random_() % (2 * num_blocks_));
    const std::optional<BlockId> id = naive_.Find(hash);
    ASSERT_EQ(pool_.Find(hash), id);
    if (!id.has_value() || !naive_.saving.insert(*id).second) return;
    pool_.BeginSave(*id);
  }
  void EndSave() {
    if (naive_.saving.empty()) return;
    pool_.EndSave(*naive_.saving.begin());
    naive_.saving.erase(naive_.saving.begin());
  }
  void Unref() {
    const std::optional<BlockId> id = AnyUsed(/*unsealed=*/false);
    if (!id.has_value()) return;
    pool_.Unref(*id);
    naive_.Unref(*id);
  }

  std::mt19937_64 random_;
  const int num_blocks_;
  BlockPool pool_;
  NaivePool naive_;
  std::set<BlockHash> told_;
};

TEST(BlockPool, AgreesWithTheNaiveModelUnderRandomOperations) {
  const uint64_t base = std::random_device()();
  for (uint64_t seed = base; seed < base + 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    PoolFuzzer fuzzer(seed, 1 + static_cast<int>(seed % 13));
    for (int i = 0; i < 1500; ++i) {
      fuzzer.Step();
      fuzzer.Compare();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  std::cout << "seeds " << base << ".." << base + 39 << "\n";
}

TEST(BlockPool, AForgottenBlockIsFoundByNobodyAndFreedAtItsEnd) {
  BlockPool pool(4);
  const BlockHash hash = {0x0102, 0x0304};
  const BlockId wrong = (*pool.Allocate(1))[0];
  pool.Seal(wrong, hash);
  ASSERT_EQ(pool.Match({hash}).size(), 1u);  // a second owner
  pool.DrainEvents();
  pool.Forget(wrong);
  EXPECT_EQ(pool.DrainEvents().removed, std::vector<BlockHash>{hash});
  EXPECT_EQ(pool.MatchLength({hash}), 0);
  EXPECT_TRUE(pool.SealedHashes().empty());
  const BlockId right = (*pool.Allocate(1))[0];
  pool.Seal(right, hash);
  EXPECT_EQ(pool.MatchLength({hash}), 1);
  pool.Unref(wrong);
  pool.Unref(wrong);
  EXPECT_EQ(pool.counts().free, 3);
  EXPECT_EQ(pool.MatchLength({hash}), 1) << "the right one stays";
}

TEST(BlockPool, AForgottenBlockKeepsItsBytesWhileItIsSaved) {
  BlockPool pool(2);
  const BlockHash hash = {1, 2};
  const BlockId wrong = (*pool.Allocate(1))[0];
  pool.Seal(wrong, hash);
  pool.BeginSave(wrong);
  pool.Forget(wrong);
  EXPECT_EQ(pool.DrainEvents().wrong, std::vector<BlockHash>{hash});
  pool.Unref(wrong);
  EXPECT_EQ(pool.counts().quarantined, 1) << "its bytes are still being read";
  EXPECT_FALSE(pool.Allocate(2).ok());
  pool.EndSave(wrong);
  EXPECT_EQ(pool.counts().free, 2);
}

}  // namespace
}  // namespace tandem::kv
