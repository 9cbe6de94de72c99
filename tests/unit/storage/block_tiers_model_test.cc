// Goal: two tiers do what a naive model of lists says, under random saves, loads, uses, damage,
// refusals and restarts: what is where, and what a core that hears events alone believes.
// TANDEM_TIER_OPERATIONS=10000000 runs as many operations as it says.
#include <deque>
#include <iostream>
#include <optional>
#include <random>

#include "absl/strings/numbers.h"
#include "tests/unit/storage/block_tiers_fixture.h"

namespace tandem::storage {
namespace {

// The rules in other words: two lists of names, the least recently used first. `believed` is what a
// core knows, which hears events alone. The names are a tree.
class TiersModel {
 public:
  TiersModel(size_t host_max, size_t disk_max) : max_{host_max, disk_max} {}

  TierSet TiersOf(uint64_t n) const {
    return In(Has(StoreTier::kHost, n), Has(StoreTier::kDisk, n));
  }
  bool Has(StoreTier tier, uint64_t n) const {
    return std::find(uses_[tier].begin(), uses_[tier].end(), n) != uses_[tier].end();
  }
  static uint64_t ParentOf(uint64_t n) { return n < 2 ? kNoName : n / 2; }
  bool IsFull(StoreTier tier) const { return uses_[tier].size() == max_[tier]; }
  void Put(StoreTier tier, uint64_t n) {
    if (Has(tier, n) || max_[tier] == 0) return;
    if (IsFull(tier)) {
      const bool on_disk = Has(StoreTier::kDisk, ParentOf(n));
      if (n >= 2 && !on_disk && !(tier == StoreTier::kHost && Has(tier, ParentOf(n)))) return;
      const auto goes = std::find_if(uses_[tier].begin(), uses_[tier].end(), [&](uint64_t each) {
        return each != ParentOf(n) && !HasChild(tier, each);
      });
      if (goes == uses_[tier].end()) return;
      Drop(tier, *goes);
    }
    uses_[tier].push_back(n);
    if (tier == StoreTier::kDisk) saves_.push_back(n);
  }
  bool HasChild(StoreTier tier, uint64_t n) const {
    return std::any_of(uses_[tier].begin(), uses_[tier].end(),
                       [n](uint64_t each) { return ParentOf(each) == n; });
  }
  // A parent that was used before it takes its place.
  void Drop(StoreTier tier, uint64_t n) {
    std::deque<uint64_t>& uses = uses_[tier];
    const auto at = std::find(uses.begin(), uses.end(), n);
    if (at == uses.end()) return;
    const auto parent = std::find(uses.begin(), at, ParentOf(n));
    if (parent != at) {
      *at = ParentOf(n);
      uses.erase(parent);
    } else {
      uses.erase(at);
    }
    if (tier == StoreTier::kDisk) std::erase(saves_, n);
  }
  void Use(StoreTier tier, uint64_t n) {
    if (!Has(tier, n)) return;
    std::erase(uses_[tier], n);
    uses_[tier].push_back(n);
  }
  // The disk's order after a start is that of saving.
  void Restart() {
    uses_.host.clear();
    uses_.disk = saves_;
  }
  // Of one load; `damaged`: copies that turn out to be damaged, in either tier.
  struct Read {
    int64_t loaded = 0;
    PerTier<int64_t> blocks;
  };
  Read Load(const std::vector<uint64_t>& names, const PerTier<std::set<uint64_t>>& damaged) {
    Read read;
    std::vector<uint64_t> raised;
    for (const uint64_t n : names) {
      for (const StoreTier tier : kStoreTiers)
        if (damaged[tier].contains(n) && !(tier == StoreTier::kDisk && Has(StoreTier::kHost, n)))
          Drop(tier, n);
      if (TiersOf(n).empty()) break;
      const StoreTier from = TiersOf(n).fastest();
      if (from == StoreTier::kDisk) raised.push_back(n);
      for (const StoreTier tier : kStoreTiers) Use(tier, n);
      ++read.loaded;
      ++read.blocks[from];
    }
    for (const uint64_t n : raised) Put(StoreTier::kHost, n);
    return read;
  }

 private:
  static constexpr uint64_t kNoName = ~uint64_t{0};

  const PerTier<size_t> max_;
  PerTier<std::deque<uint64_t>> uses_;
  std::deque<uint64_t> saves_;  // what the disk has, in the order of saving
};

class BlockTiersModelTest : public BlockTiersTest {
 protected:
  static constexpr uint64_t kNames = 14;

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  // A machine: one tier or both, of any size, with a file of its own.
  void Draw() {
    unlink((folder_ + "/node.kv").c_str());
    const uint64_t shape = Below(4);
    host_max_ = static_cast<int64_t>(shape == 0 ? 0 : 1 + Below(6));
    disk_max_ = static_cast<int64_t>(shape == 1 ? 0 : 1 + Below(10));
    Open(host_max_, disk_max_);
    model_.emplace(static_cast<size_t>(host_max_), static_cast<size_t>(disk_max_));
    believed_.clear();
  }
  void Hear(const std::vector<BlockPlace>& changed) {
    for (const auto& [n, tiers] : PlacesOf(changed)) believed_[n] = tiers;
  }
  void SaveOne(uint64_t n) {
    const TierSet asked = Below(8) == 0 ? In(Below(2) == 0, Below(2) == 0) : TierSet::All();
    const bool disk_full = disk_ != nullptr && Below(10) == 0;
    if (disk_ != nullptr) disk_->full = disk_full;
    SaveBlock command{.block = {Hash(n), BlockId(0)}, .tiers = asked};
    const uint64_t parent = TiersModel::ParentOf(n);
    if (n >= 2) command.parent = Hash(parent);
    for (uint64_t count = Below(3); count > 0; --count) {
      const uint64_t used = Below(kNames);
      command.used.push_back(Hash(used));
      for (const StoreTier tier : kStoreTiers) model_->Use(tier, used);
    }
    const BlockSaved saved = Save(command);
    if (disk_ != nullptr) disk_->full = false;
    for (const StoreTier tier : kStoreTiers) {
      if (!asked.Has(tier) || (tier == StoreTier::kDisk && disk_full)) continue;
      model_->Put(tier, n);
    }
    believed_[n] = saved.tiers;
    Hear(saved.changed);
  }
  void LoadSome() {
    std::vector<uint64_t> names;
    const uint64_t count = 1 + Below(5);
    while (names.size() < count) {
      const uint64_t name = Below(kNames);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    PerTier<std::set<uint64_t>> damaged;
    for (const StoreTier tier : kStoreTiers) {
      FaultyStore* store = tier == StoreTier::kHost ? host_ : disk_;
      if (store == nullptr || Below(6) != 0) continue;
      const uint64_t name = names[Below(names.size())];
      damaged[tier].insert(name);
      store->damaged.insert(Hash(name));
    }
    const TiersModel::Read right = model_->Load(names, damaged);
    const BlocksLoaded loaded = Load(names);
    for (FaultyStore* store : {host_, disk_})
      if (store != nullptr) store->damaged.clear();
    ASSERT_EQ(loaded.loaded, right.loaded);
    for (const StoreTier tier : kStoreTiers)
      ASSERT_EQ(loaded.read[tier].bytes, right.blocks[tier] * kBlockBytes);
    Hear(loaded.changed);
  }
  void Restart() {
    Open(host_max_, disk_max_);
    model_->Restart();
    believed_.clear();
    for (const kv::BlockHash& hash : tiers_->Contents().on_disk)
      believed_[hash.low] = In(false, true);
  }
  void Step() {
    const uint64_t n = Below(kNames), operation = Below(1200);
    if (operation < 520) return SaveOne(n);
    if (operation < 1160) return LoadSome();
    if (operation == 1199) return Restart();
    tiers_->Forget({.hash = Hash(n)});
    for (const StoreTier tier : kStoreTiers) model_->Drop(tier, n);
    believed_.erase(n);
  }
  void Compare() {
    for (uint64_t n = 0; n < kNames; ++n)
      ASSERT_EQ(believed_[n], model_->TiersOf(n)) << "block " << n;
  }

  std::mt19937_64 random_;
  int64_t host_max_ = 0, disk_max_ = 0;
  std::optional<TiersModel> model_;
  std::map<uint64_t, TierSet> believed_;
};

TEST_F(BlockTiersModelTest, AgreesWithTwoListsUnderRandomOperations) {
  int64_t operations = 60'000;
  if (const char* text = std::getenv("TANDEM_TIER_OPERATIONS"); text != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &operations)) << "TANDEM_TIER_OPERATIONS=" << text;
  }
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  random_.seed(seed);
  constexpr int64_t kOperationsOfAMachine = 5000;
  for (int64_t done = 0; done < operations; ++done) {
    if (done % kOperationsOfAMachine == 0) Draw();
    Step();
    Compare();
    if (HasFatalFailure()) FAIL() << "operation " << done;
  }
}

}  // namespace
}  // namespace tandem::storage
