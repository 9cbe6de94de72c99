// Goal: the pool agrees with a naive model after any order of operations: block states, references,
// which blocks a hash or a part's tokens find, which cached block is evicted first (by uses and
// age, docs/adr/0083; a tenant's own ones when it holds more than its share), and the events for
// routers. No block is lost, owned twice or copied from after it was given to another owner.
//
// TANDEM_POOL_OPERATIONS=10000000 runs as many operations as it says.
#include <algorithm>
#include <array>
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
  static constexpr int kLevels = 4;
  static constexpr std::array<double, 3> kShares = {0, 0.3, 0.6};  // of the pool, by tenant

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
    int64_t sealed_at = 0;  // how many were sealed before it
    int tenant = 0;         // 0 = none
  };
  std::map<BlockId, Block> used;
  std::vector<std::pair<BlockId, Block>> cached;  // least recently used first
  int64_t cached_ever = 0, sealed_ever = 0;
  std::map<BlockId, int> quarantined;  // with the tenant
  std::set<BlockId> saving;
  // Evictions by the level of the block, and those of another than the least recently used one.
  std::array<int64_t, kLevels> evicted{};
  int64_t evicted_out_of_turn = 0;

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
  // The most of these tokens that a block's part begins with, and all blocks whose part does.
  std::pair<int64_t, std::set<BlockId>> LongestPart(const BlockHash& parent, Tokens tokens) const {
    for (; !tokens.empty(); tokens.pop_back()) {
      const std::set<BlockId> found = WithPart(parent, tokens);
      if (!found.empty()) return {std::ssize(tokens), found};
    }
    return {};
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
  static int Level(const Block& b) {
    return b.uses >= 8 ? 3 : b.uses >= 4 ? 2 : b.uses >= 2 ? 1 : 0;
  }
  int64_t Worth(const Block& b) const { return b.cached_at + Level(b) * num_blocks_; }
  void EvictLeastWorth() {
    auto least = cached.end(), oldest = cached.end();
    for (auto entry = cached.begin(); entry != cached.end(); ++entry) {
      if (saving.contains(entry->first)) continue;
      if (oldest == cached.end()) oldest = entry;
      if (least == cached.end() || Worth(entry->second) < Worth(least->second)) least = entry;
    }
    ++evicted[static_cast<size_t>(Level(least->second))];
    if (least != oldest) ++evicted_out_of_turn;
    cached.erase(least);
  }
  struct Held {
    int64_t used = 0, cached = 0;
  };
  Held HeldBy(int tenant) const {
    Held held;
    for (const auto& [id, b] : used) held.used += b.tenant == tenant ? 1 : 0;
    for (const auto& [id, owner] : quarantined) held.used += owner == tenant ? 1 : 0;
    for (const auto& [id, b] : cached) held.cached += b.tenant == tenant ? 1 : 0;
    return held;
  }
  // A tenant that holds more than its share, or would with `more` blocks, gives back its least
  // recently used cached ones. One for which no block counts has no share.
  void GiveBack(int tenant, int64_t more) {
    if (tenant == 0) return;
    const auto most = static_cast<int64_t>(kShares[static_cast<size_t>(tenant)] * num_blocks_);
    for (Held held = HeldBy(tenant); held.used + held.cached > 0; held = HeldBy(tenant)) {
      const auto own = std::find_if(cached.begin(), cached.end(), [&](const auto& entry) {
        return entry.second.tenant == tenant && !saving.contains(entry.first);
      });
      if (held.used + held.cached + more <= most || own == cached.end()) return;
      cached.erase(own);
    }
  }
  // The blocks that Allocate must have evicted to return `ids`.
  void Allocated(const std::vector<BlockId>& ids, int tenant) {
    GiveBack(tenant, std::ssize(ids));
    const int evictions = std::max(0, static_cast<int>(ids.size()) - free());
    for (int i = 0; i < evictions; ++i) EvictLeastWorth();
    for (const BlockId id : ids) {
      EXPECT_TRUE(!used.contains(id) && !quarantined.contains(id)) << "block " << id;
      for (const auto& entry : cached) EXPECT_NE(entry.first, id);
      used[id].references = 1;
      used[id].tenant = tenant;
    }
  }
  // A sequence of the tenant uses the block.
  void UsedBy(BlockId id, int tenant) {
    if (Block& b = used[id]; b.tenant == 0) b.tenant = tenant;
  }
  // As MostRecentlyUsed orders them: shared ones, cached ones, then those with one owner.
  std::vector<BlockHash> MostRecentlyUsed() const {
    std::vector<const Block*> shared, single, unused;
    for (const auto& [id, b] : used)
      if (b.hash.has_value()) (b.references > 1 ? shared : single).push_back(&b);
    for (const auto& [id, b] : cached)
      if (b.hash.has_value()) unused.push_back(&b);
    const auto earlier = [](const Block* a, const Block* b) { return a->sealed_at < b->sealed_at; };
    std::sort(shared.begin(), shared.end(), earlier);
    std::sort(single.begin(), single.end(), earlier);
    // Of equal worth the one that was cached last goes last.
    std::reverse(unused.begin(), unused.end());
    std::stable_sort(unused.begin(), unused.end(),
                     [this](const Block* a, const Block* b) { return Worth(*a) > Worth(*b); });
    std::vector<BlockHash> hashes;
    for (const auto* blocks : {&shared, &unused, &single})
      for (const Block* b : *blocks) hashes.push_back(*b->hash);
    return hashes;
  }
  void Unref(BlockId id) {
    Block& b = used[id];
    if (--b.references > 0) return;
    if (b.hash.has_value() || b.part.has_value()) {
      b.cached_at = cached_ever++;
      cached.emplace_back(id, b);
      const int tenant = b.tenant;
      used.erase(id);
      return GiveBack(tenant, 0);
    }
    if (saving.contains(id)) quarantined.emplace(id, b.tenant);
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
    ASSERT_EQ(pool_.MostRecentlyUsed(num_blocks_), naive_.MostRecentlyUsed());
    CompareOwners();
    CompareEvents();
  }
  const NaivePool& naive() const { return naive_; }

 private:
  void CompareOwners() {
    std::map<std::string, std::pair<int64_t, int64_t>> counted, expected;
    for (const BlockOwners::Counts& counts : pool_.owner_counts())
      counted[counts.tenant] = {counts.used, counts.cached};
    for (int tenant = 1; tenant < static_cast<int>(NaivePool::kShares.size()); ++tenant) {
      const NaivePool::Held held = naive_.HeldBy(tenant);
      if (held.used + held.cached > 0) expected[std::to_string(tenant)] = {held.used, held.cached};
    }
    ASSERT_EQ(counted, expected);
  }
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
  // Most blocks count for nobody.
  int AnyTenant() {
    const auto drawn = static_cast<int>(random_() % 8);
    return drawn < static_cast<int>(NaivePool::kShares.size()) ? drawn : 0;
  }
  static BlockOwner OwnerOf(int tenant) {
    if (tenant == 0) return {};
    return {.tenant = std::to_string(tenant),
            .share = NaivePool::kShares[static_cast<size_t>(tenant)]};
  }
  BlockHash AnyHash() { return ModelHash(random_() % (2 * num_blocks_)); }
  BlockHash AnyParent() { return ModelHash(1000 + random_() % 2); }
  Tokens AnyTokens() {
    Tokens tokens(random_() % 5);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random_() % 2);
    return tokens;
  }

  void Allocate() {
    const int count = static_cast<int>(random_() % 5);
    const int tenant = AnyTenant();
    const auto blocks = pool_.Allocate(count, OwnerOf(tenant));
    ASSERT_EQ(blocks.ok(), count <= naive_.available());
    if (blocks.ok()) naive_.Allocated(*blocks, tenant);
  }
  void Match() {
    std::vector<BlockHash> hashes;
    for (int i = 0; i < 3; ++i) hashes.push_back(AnyHash());
    const int tenant = AnyTenant();
    std::vector<BlockId> expected;
    for (const BlockHash& hash : hashes) {
      const std::optional<BlockId> id = naive_.Find(hash);
      if (!id.has_value()) break;
      naive_.AddReference(*id);
      naive_.UsedBy(*id, tenant);
      expected.push_back(*id);
    }
    ASSERT_EQ(pool_.MatchLength(hashes), static_cast<int64_t>(expected.size()));
    ASSERT_EQ(pool_.Match(hashes, OwnerOf(tenant)), expected);
    naive_.GiveBack(tenant, 0);
  }
  void Seal() {
    const std::optional<BlockId> id = AnyWritable(/*with_part=*/true);
    if (!id.has_value()) return;
    const BlockHash hash = AnyHash();
    const bool known = naive_.Find(hash).has_value();
    pool_.Seal(*id, hash);
    if (!known) {
      naive_.used[*id].hash = hash;
      naive_.used[*id].sealed_at = naive_.sealed_ever++;
    }
    ASSERT_EQ(pool_.IsSealed(*id), !known);
  }
  void Quarantine() {
    const std::optional<BlockId> id = AnyWritable(/*with_part=*/false);
    if (!id.has_value()) return;
    pool_.Quarantine(*id);
    naive_.quarantined.emplace(*id, naive_.used[*id].tenant);
    naive_.used.erase(*id);
  }
  void EndQuarantine() {
    const auto id =
        std::find_if(naive_.quarantined.begin(), naive_.quarantined.end(),
                     [&](const auto& entry) { return !naive_.saving.contains(entry.first); });
    if (id == naive_.quarantined.end()) return;
    pool_.EndQuarantine(id->first);
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
    const auto [rows, possible] = naive_.LongestPart(parent, tokens);
    ASSERT_EQ(pool_.PartRows(parent, tokens), rows);
    const std::optional<PartIndex::Found> pinned = pool_.PinPart(parent, tokens);
    ASSERT_EQ(pinned.has_value(), rows > 0);
    if (!pinned.has_value()) return;
    ASSERT_EQ(pinned->rows, rows);
    ASSERT_TRUE(possible.contains(pinned->block)) << "block " << pinned->block.value();
    naive_.AddReference(pinned->block);
    ASSERT_EQ(pool_.IsShared(pinned->block), naive_.used[pinned->block].references > 1);
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
  std::array<int64_t, NaivePool::kLevels> evicted{};
  int64_t out_of_turn = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    PoolFuzzer fuzzer(seed, 1 + static_cast<int>(seed % 13));
    for (int64_t i = 0; i < kOperationsOfASeed; ++i) {
      fuzzer.Step();
      fuzzer.Compare();
      if (::testing::Test::HasFailure()) return;
    }
    for (size_t level = 0; level < evicted.size(); ++level)
      evicted[level] += fuzzer.naive().evicted[level];
    out_of_turn += fuzzer.naive().evicted_out_of_turn;
  }
  for (size_t level = 0; level < evicted.size(); ++level) {
    std::cout << evicted[level] << " blocks of level " << level << " evicted\n";
    EXPECT_GT(evicted[level], 0) << "level " << level << " was not tested";
  }
  std::cout << out_of_turn << " evictions of another block than the least recently used\n";
  EXPECT_GT(out_of_turn, 0) << "nothing tells this order from the order of last use";
}

}  // namespace
}  // namespace tandem::kv
