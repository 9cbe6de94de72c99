// Goal: the pool agrees with a naive model after any order of operations: block states, references,
// which blocks a hash or a part's tokens find, which cached block is evicted first, and the events
// for routers. No block is lost, owned twice or copied from after it was given to another owner.
//
// TANDEM_POOL_OPERATIONS=10000000 runs as many operations as it says.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/kv/block_pool.h"
#include "tests/testing/status_matchers.h"

namespace tandem::kv {
namespace {

BlockHash ModelHash(uint64_t n) { return {n, ~n}; }

using Tokens = std::vector<TokenId>;

bool BeginsWith(const Tokens& all, const Tokens& beginning) {
  return all.size() >= beginning.size() &&
         std::equal(beginning.begin(), beginning.end(), all.begin());
}

// The pool as sets and maps, with each operation written directly from the contract.
class NaivePool {
 public:
  explicit NaivePool(int num_blocks) : num_blocks_(num_blocks) {}

  struct Part {
    BlockHash parent;
    Tokens tokens;
  };
  struct Block {
    int references = 0;
    std::optional<BlockHash> hash;
    bool forgotten = false;
    std::optional<Part> part;
    int uses = 1;
    int64_t cached_at = 0;  // how many were cached before it
  };
  std::map<BlockId, Block> used;
  std::vector<std::pair<BlockId, Block>> cached;  // least recently used first
  int64_t cached_ever = 0;
  std::set<BlockId> quarantined;
  std::set<BlockId> saving;

  int free() const {
    return num_blocks_ - static_cast<int>(used.size() + cached.size() + quarantined.size());
  }
  std::optional<BlockId> Find(const BlockHash& hash) const {
    for (const auto& [id, b] : used) {
      if (b.hash == hash) return id;
    }
    for (const auto& [id, b] : cached) {
      if (b.hash == hash) return id;
    }
    return std::nullopt;
  }
  // All blocks whose part begins with these tokens.
  std::set<BlockId> WithPart(const BlockHash& parent, const Tokens& tokens) const {
    std::set<BlockId> found;
    const auto look = [&](BlockId id, const Block& b) {
      if (!tokens.empty() && b.part.has_value() && b.part->parent == parent &&
          BeginsWith(b.part->tokens, tokens))
        found.insert(id);
    };
    for (const auto& [id, b] : used) look(id, b);
    for (const auto& [id, b] : cached) look(id, b);
    return found;
  }
  int available() const {
    return free() +
           static_cast<int>(std::count_if(cached.begin(), cached.end(), [&](const auto& entry) {
             return !saving.contains(entry.first);
           }));
  }
  int64_t Worth(const Block& b) const {
    const int level = b.uses >= 8 ? 3 : b.uses >= 4 ? 2 : b.uses >= 2 ? 1 : 0;
    return b.cached_at + level * num_blocks_;
  }
  // The blocks that Allocate must have evicted to return `ids`.
  void Allocated(const std::vector<BlockId>& ids) {
    const int evictions = std::max(0, static_cast<int>(ids.size()) - free());
    for (int i = 0; i < evictions; ++i) {
      auto least = cached.end();
      for (auto entry = cached.begin(); entry != cached.end(); ++entry) {
        if (saving.contains(entry->first)) continue;
        if (least == cached.end() || Worth(entry->second) < Worth(least->second)) least = entry;
      }
      cached.erase(least);
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
    if (b.hash.has_value() || b.part.has_value()) {
      b.cached_at = cached_ever++;
      cached.emplace_back(id, b);
    } else if (saving.contains(id)) {
      quarantined.insert(id);
    }
    used.erase(id);
  }
  void AddReference(BlockId id) {
    const auto entry =
        std::find_if(cached.begin(), cached.end(), [&](const auto& e) { return e.first == id; });
    if (entry != cached.end()) {
      used[id] = entry->second;
      cached.erase(entry);
    }
    ++used[id].references;
  }
  void Forget(BlockId id) {
    Block& b = used[id];
    b.forgotten |= b.hash.has_value();
    b.hash.reset();
    b.part.reset();
  }
  void ForgetParts(const BlockHash& parent) {
    const auto withdraw = [&](Block& b) {
      if (b.part.has_value() && b.part->parent == parent) b.part.reset();
    };
    for (auto& entry : used) withdraw(entry.second);
    for (auto& entry : cached) withdraw(entry.second);
    std::erase_if(cached, [](const auto& e) {
      return !e.second.hash.has_value() && !e.second.part.has_value();
    });
  }
  std::set<BlockHash> Hashes() const {
    std::set<BlockHash> hashes;
    for (const auto& [id, b] : used) {
      if (b.hash.has_value()) hashes.insert(*b.hash);
    }
    for (const auto& [id, b] : cached) {
      if (b.hash.has_value()) hashes.insert(*b.hash);
    }
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
    switch (random_() % 16) {
      case 0:
      case 1:
        return Allocate();
      case 2:
        return Match();
      case 3:
        return Seal();
      case 4:
        return Quarantine();
      case 5:
        return EndQuarantine();
      case 6:
        return NamePart();
      case 7:
        return PinPart();
      case 8:
        return Forget();
      case 9:
        return BeginSave();
      case 10:
        return EndSave();
      case 11:
      case 12:
        return CountUse();
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
    if (random_() % 4 != 0) return;
    const std::vector<BlockHash> sealed = pool_.SealedHashes();
    ASSERT_EQ(std::set<BlockHash>(sealed.begin(), sealed.end()), naive_.Hashes());
    ASSERT_EQ(pool_.MostRecentlyUsed(num_blocks_).size(), naive_.Hashes().size());
    CompareEvents();
  }

 private:
  // A router that applies only the events knows the same hashes.
  void CompareEvents() {
    const BlockEvents events = pool_.DrainEvents();
    for (const BlockHash& hash : events.removed) ASSERT_EQ(told_.erase(hash), 1u);
    for (const BlockHash& hash : events.stored) ASSERT_TRUE(told_.insert(hash).second);
    ASSERT_EQ(told_, naive_.Hashes());
  }
  template <typename Accepts>
  std::optional<BlockId> AnyUsed(Accepts accepts) {
    std::vector<BlockId> ids;
    for (const auto& [id, b] : naive_.used) {
      if (accepts(b)) ids.push_back(id);
    }
    if (ids.empty()) return std::nullopt;
    return ids[random_() % ids.size()];
  }
  // A block that its one owner may still write.
  std::optional<BlockId> AnyWritable(bool with_part) {
    return AnyUsed([&](const NaivePool::Block& b) {
      return !b.hash.has_value() && !b.forgotten && b.references == 1 &&
             (with_part || !b.part.has_value());
    });
  }
  BlockHash AnyHash() { return ModelHash(random_() % (2 * num_blocks_)); }
  BlockHash AnyParent() { return ModelHash(1000 + random_() % 2); }
  Tokens AnyTokens() {
    Tokens tokens(random_() % 4);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random_() % 2);
    return tokens;
  }

  void Allocate() {
    const int count = static_cast<int>(random_() % 5);
    const auto blocks = pool_.Allocate(count);
    ASSERT_EQ(blocks.ok(), count <= naive_.available());
    if (blocks.ok()) naive_.Allocated(*blocks);
  }
  void Match() {
    std::vector<BlockHash> hashes;
    for (int i = 0; i < 3; ++i) hashes.push_back(AnyHash());
    std::vector<BlockId> expected;
    for (const BlockHash& hash : hashes) {
      const std::optional<BlockId> id = naive_.Find(hash);
      if (!id.has_value()) break;
      naive_.AddReference(*id);
      expected.push_back(*id);
    }
    ASSERT_EQ(pool_.MatchLength(hashes), static_cast<int64_t>(expected.size()));
    ASSERT_EQ(pool_.Match(hashes), expected);
  }
  void Seal() {
    const std::optional<BlockId> id = AnyWritable(/*with_part=*/true);
    if (!id.has_value()) return;
    const BlockHash hash = AnyHash();
    const bool known = naive_.Find(hash).has_value();
    pool_.Seal(*id, hash);
    if (!known) naive_.used[*id].hash = hash;
    ASSERT_EQ(pool_.IsSealed(*id), !known);
  }
  void Quarantine() {
    const std::optional<BlockId> id = AnyWritable(/*with_part=*/false);
    if (!id.has_value()) return;
    pool_.Quarantine(*id);
    naive_.used.erase(*id);
    naive_.quarantined.insert(*id);
  }
  void EndQuarantine() {
    const auto id =
        std::find_if(naive_.quarantined.begin(), naive_.quarantined.end(),
                     [&](BlockId quarantined) { return !naive_.saving.contains(quarantined); });
    if (id == naive_.quarantined.end()) return;
    pool_.EndQuarantine(*id);
    naive_.quarantined.erase(id);
  }
  void BeginSave() {
    const BlockHash hash = AnyHash();
    const std::optional<BlockId> id = naive_.Find(hash);
    ASSERT_EQ(pool_.Find(hash), id);
    if (!id.has_value() || !naive_.saving.insert(*id).second) return;
    pool_.BeginSave(*id);
  }
  void EndSave() {
    if (naive_.saving.empty()) return;
    const BlockId id = *naive_.saving.begin();
    pool_.EndSave(id);
    naive_.saving.erase(id);
    naive_.quarantined.erase(id);  // if its owner forgot it and left
  }
  void NamePart() {
    const auto id = AnyUsed([](const NaivePool::Block&) { return true; });
    const BlockHash parent = AnyParent();
    const Tokens tokens = AnyTokens();
    if (!id.has_value() || tokens.empty()) return;
    NaivePool::Block& b = naive_.used[*id];
    if (!b.part.has_value() && !b.forgotten && naive_.WithPart(parent, tokens).empty())
      b.part = {.parent = parent, .tokens = tokens};
    pool_.NamePart(*id, parent, tokens);
  }
  void PinPart() {
    const BlockHash parent = AnyParent();
    const Tokens tokens = AnyTokens();
    const std::set<BlockId> possible = naive_.WithPart(parent, tokens);
    ASSERT_EQ(pool_.HasPart(parent, tokens), !possible.empty());
    const std::optional<BlockId> pinned = pool_.PinPart(parent, tokens);
    ASSERT_EQ(pinned.has_value(), !possible.empty());
    if (!pinned.has_value()) return;
    ASSERT_TRUE(possible.contains(*pinned)) << "block " << pinned->value();
    naive_.AddReference(*pinned);
  }
  void Forget() {
    if (random_() % 2 == 0) {
      const BlockHash parent = AnyParent();
      pool_.ForgetParts(parent);
      return naive_.ForgetParts(parent);
    }
    const auto id = AnyUsed([](const NaivePool::Block&) { return true; });
    if (!id.has_value()) return;
    pool_.Forget(*id);
    naive_.Forget(*id);
  }
  void CountUse() {
    const auto id = AnyUsed([](const NaivePool::Block&) { return true; });
    if (!id.has_value()) return;
    pool_.CountUse({&*id, 1});
    ++naive_.used[*id].uses;
  }
  void Unref() {
    const auto id = AnyUsed([](const NaivePool::Block&) { return true; });
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

TEST(BlockPoolModel, AgreesAfterAnyOrderOfOperations) {
  int64_t operations = 60'000;
  if (const char* text = std::getenv("TANDEM_POOL_OPERATIONS"); text != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &operations)) << "TANDEM_POOL_OPERATIONS=" << text;
  }
  constexpr int64_t kOperationsOfASeed = 1500;
  const uint64_t first = std::random_device()();
  const auto seeds = static_cast<uint64_t>(operations / kOperationsOfASeed);
  std::cout << seeds << " seeds from " << first << "\n";
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    PoolFuzzer fuzzer(seed, 1 + static_cast<int>(seed % 13));
    for (int64_t i = 0; i < kOperationsOfASeed; ++i) {
      fuzzer.Step();
      fuzzer.Compare();
      if (::testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace tandem::kv
