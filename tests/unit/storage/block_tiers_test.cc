// Goal: two tiers give back what was saved, bit for bit, from the fastest one that has it whole, or
// nothing; what their events say of each block's place is true, whatever is evicted, damaged, full,
// forgotten or restarted. A naive model of lists says what is right.
// TANDEM_TIER_OPERATIONS=10000000 runs as many operations as it says.
#include "common/storage/block_tiers.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "common/storage/block_file.h"
#include "tests/testing/status_matchers.h"

namespace tandem::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kLayerBytes = 320, kBlockBytes = 2 * kLayerBytes;
constexpr int64_t kSlotBytes = 4096 + 64;
constexpr int kArenaBlocks = 8;

kv::BlockHash Hash(uint64_t n) { return {n * 0x9e3779b97f4a7c15u + 1, n}; }
TierSet In(bool host, bool disk) {
  TierSet tiers;
  if (host) tiers.Add(StoreTier::kHost);
  if (disk) tiers.Add(StoreTier::kDisk);
  return tiers;
}

// Each look takes a microsecond.
class CountingClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch() + absl::Microseconds(++looks_); }

 private:
  mutable int64_t looks_ = 0;
};

// A tier that reads or writes wrongly when the test says so.
class FaultyStore final : public BlockStore {
 public:
  explicit FaultyStore(std::unique_ptr<BlockStore> store) : store_(std::move(store)) {}

  absl::Status Save(const kv::BlockHash& hash, absl::Span<const absl::Span<const std::byte>> pieces,
                    std::vector<kv::BlockHash>& removed) override {
    if (full) return absl::ResourceExhaustedError("the tier is full");
    return store_->Save(hash, pieces, removed);
  }
  absl::Status Load(const kv::BlockHash& hash,
                    absl::Span<const absl::Span<std::byte>> pieces) override {
    if (!damaged.contains(hash) && !fails) return store_->Load(hash, pieces);
    damaged.erase(hash);
    store_->Forget(hash);
    std::fill(pieces[0].begin(), pieces[0].end(), std::byte{0xdd});  // a read that went wrong
    return fails ? absl::UnknownError("input/output error")
                 : absl::DataLossError("a stored block is damaged");
  }
  void Touch(const kv::BlockHash& hash) override { store_->Touch(hash); }
  void Forget(const kv::BlockHash& hash) override { store_->Forget(hash); }
  bool Contains(const kv::BlockHash& hash) const override { return store_->Contains(hash); }
  std::vector<kv::BlockHash> Hashes() const override { return store_->Hashes(); }
  int64_t slots() const override { return store_->slots(); }

  bool full = false, fails = false;
  std::set<kv::BlockHash> damaged;

 private:
  const std::unique_ptr<BlockStore> store_;
};

class BlockTiersTest : public ::testing::Test {
 protected:
  BlockTiersTest() {
    std::string name = ::testing::TempDir() + "/block_tiers_XXXXXX";
    folder_ = mkdtemp(name.data());
    kv::BlockLayout layout;
    layout.num_layers = 2;
    layout.block_tokens = 16;
    layout.layer_block_bytes = kLayerBytes;
    auto arena = kv::BlockArena::Create(layout, kArenaBlocks);
    EXPECT_OK(arena.status());
    arena_ = *std::move(arena);
    Open(2, 5);
  }
  ~BlockTiersTest() override {
    unlink((folder_ + "/node.kv").c_str());
    rmdir(folder_.c_str());
  }

  // A start of the process. 0 slots: no such tier.
  void Open(int64_t host_slots, int64_t disk_slots) {
    tiers_.reset();
    auto host = OpenStore("", host_slots), disk = OpenStore(folder_ + "/node.kv", disk_slots);
    host_ = host.get();
    disk_ = disk.get();
    tiers_ = std::make_unique<BlockTiers>(std::move(host), std::move(disk), clock_);
  }
  static std::unique_ptr<FaultyStore> OpenStore(const std::string& path, int64_t slots) {
    if (slots == 0) return nullptr;
    auto file = BlockFile::Open({.path = path,
                                 .contents = "model a",
                                 .block_bytes = kBlockBytes,
                                 .bytes_max = 8192 + slots * kSlotBytes});
    EXPECT_OK(file.status());
    return std::make_unique<FaultyStore>(*std::move(file));
  }
  void Fill(uint64_t n, BlockId block) {
    for (int layer = 0; layer < 2; ++layer) {
      const auto bytes = arena_->Block(layer, block);
      std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(17 * n + 101 * layer));
    }
  }
  bool HasBytesOf(uint64_t n, BlockId block) const {
    for (int layer = 0; layer < 2; ++layer)
      for (const std::byte byte : arena_->Block(layer, block))
        if (byte != static_cast<std::byte>(17 * n + 101 * layer)) return false;
    return true;
  }
  BlockSaved Save(uint64_t n, TierSet tiers = TierSet::All()) {
    Fill(n, BlockId(0));
    return tiers_->Save({.block = {Hash(n), BlockId(0)}, .tiers = tiers}, *arena_);
  }
  BlocksLoaded Load(const std::vector<uint64_t>& names) {
    LoadBlocks command{.load = LoadId(1)};
    for (const uint64_t n : names) {
      const BlockId block(static_cast<int32_t>(command.blocks.size()));
      Fill(n + 1, block);  // not what is to be read
      command.blocks.emplace_back(Hash(n), block);
    }
    arrived_.clear();
    const BlocksLoaded event = tiers_->Load(command, *arena_, arrived_);
    EXPECT_THAT(arrived_, SizeIs(event.loaded));
    for (int64_t i = 0; i < event.loaded; ++i)
      EXPECT_TRUE(HasBytesOf(names[static_cast<size_t>(i)], arrived_[static_cast<size_t>(i)]))
          << "block " << names[static_cast<size_t>(i)];
    return event;
  }
  static std::map<uint64_t, TierSet> PlacesOf(const std::vector<BlockPlace>& changed) {
    std::map<uint64_t, TierSet> places;
    for (const BlockPlace& place : changed) places[place.hash.low] = place.tiers;
    EXPECT_EQ(places.size(), changed.size()) << "a block has two places";
    return places;
  }
  using Places = std::map<uint64_t, TierSet>;

  std::string folder_;
  CountingClock clock_;
  std::unique_ptr<kv::BlockArena> arena_;
  std::unique_ptr<BlockTiers> tiers_;
  FaultyStore *host_ = nullptr, *disk_ = nullptr;
  std::vector<BlockId> arrived_;
};

TEST_F(BlockTiersTest, ASaveFillsBothAndWhatLeavesTheHostStaysOnDisk) {
  const BlockSaved first = Save(1);
  EXPECT_EQ(first.tiers, In(true, true));
  EXPECT_EQ(first.written.host.bytes, kBlockBytes);
  EXPECT_EQ(first.written.disk.bytes, kBlockBytes);
  EXPECT_GT(first.written.host.time, absl::ZeroDuration());
  EXPECT_GT(first.written.disk.time, absl::ZeroDuration());
  Save(2);
  EXPECT_EQ(PlacesOf(Save(3).changed), (Places{{1, In(false, true)}}));
  EXPECT_EQ(tiers_->slots(), 7);
}

TEST_F(BlockTiersTest, ALoadTakesTheFastestTierAndRaisesWhatCameFromDisk) {
  for (uint64_t n = 1; n <= 4; ++n) Save(n);  // 3 and 4 are in host memory
  const BlocksLoaded from_host = Load({3, 4});
  EXPECT_EQ(from_host.read.host.bytes, 2 * kBlockBytes);
  EXPECT_EQ(from_host.read.disk.bytes, 0);
  EXPECT_THAT(from_host.from, ElementsAre(StoreTier::kHost, StoreTier::kHost));
  EXPECT_THAT(from_host.changed, IsEmpty());
  const BlocksLoaded mixed = Load({1, 4});
  EXPECT_EQ(mixed.loaded, 2);
  EXPECT_EQ(mixed.read.host.bytes, kBlockBytes);
  EXPECT_EQ(mixed.read.disk.bytes, kBlockBytes);
  EXPECT_THAT(mixed.from, ElementsAre(StoreTier::kDisk, StoreTier::kHost));
  EXPECT_EQ(PlacesOf(mixed.changed), (Places{{1, In(true, true)}, {3, In(false, true)}}));
  EXPECT_EQ(Load({1}).read.host.bytes, kBlockBytes);
}

TEST_F(BlockTiersTest, RaisingABlockTakesNoneOfItsOwnLoadAway) {
  Open(2, 1);
  for (uint64_t n = 1; n <= 2; ++n) Save(n, In(true, false));
  Save(3, In(false, true));
  // 3 is raised in the place of 1, which is in host memory alone and is read after it.
  const BlocksLoaded loaded = Load({3, 2, 1});
  EXPECT_EQ(loaded.loaded, 3);
  EXPECT_EQ(PlacesOf(loaded.changed), (Places{{3, In(true, true)}, {2, In(false, false)}}));
}

TEST_F(BlockTiersTest, AUseInHostMemoryCountsOnDisk) {
  for (uint64_t n = 1; n <= 5; ++n) Save(n);
  Open(1, 5);
  Load({1});  // in host memory from now on
  for (int times = 0; times < 2; ++times) {
    for (uint64_t n = 2; n <= 5; ++n) disk_->Touch(Hash(n));
    EXPECT_EQ(Load({1}).read.host.bytes, kBlockBytes);
  }
  EXPECT_EQ(PlacesOf(Save(6).changed), (Places{{1, In(false, true)}, {2, In(false, false)}}));
}

TEST_F(BlockTiersTest, ADamagedCopyInHostMemoryIsReadFromDisk) {
  Save(1);
  host_->damaged.insert(Hash(1));
  const BlocksLoaded loaded = Load({1});
  EXPECT_EQ(loaded.loaded, 1);
  EXPECT_EQ(loaded.damaged, 1);
  EXPECT_THAT(std::string(loaded.fault.message()), HasSubstr("damaged"));
  EXPECT_EQ(loaded.read.disk.bytes, kBlockBytes);
  EXPECT_THAT(loaded.from, ElementsAre(StoreTier::kDisk));
  EXPECT_EQ(PlacesOf(loaded.changed), (Places{{1, In(true, true)}})) << "it is copied again";
  EXPECT_EQ(Load({1}).read.host.bytes, kBlockBytes);
}

TEST_F(BlockTiersTest, ADamagedCopyOnDiskIsNoticedWhenItIsNeeded) {
  for (uint64_t n = 1; n <= 3; ++n) Save(n);
  disk_->damaged = {Hash(1), Hash(2)};
  EXPECT_EQ(Load({2}).damaged, 0) << "it is read from host memory";
  const BlocksLoaded loaded = Load({3, 1, 2});
  EXPECT_EQ(loaded.loaded, 1);
  EXPECT_EQ(loaded.damaged, 1);
  EXPECT_EQ(PlacesOf(loaded.changed), (Places{{1, In(false, false)}}));
}

TEST_F(BlockTiersTest, FailingReadsOfBothLoseTheBlockOnly) {
  Save(1);
  Save(2);
  host_->fails = disk_->fails = true;
  const BlocksLoaded loaded = Load({1, 2});
  EXPECT_EQ(loaded.loaded, 0);
  EXPECT_EQ(loaded.damaged, 2);
  EXPECT_EQ(PlacesOf(loaded.changed), (Places{{1, In(false, false)}}));
  host_->fails = disk_->fails = false;
  EXPECT_EQ(Load({2}).loaded, 1);
}

TEST_F(BlockTiersTest, AFullDiskDoesNotKeepHostMemoryFromItsWork) {
  disk_->full = true;
  const BlockSaved saved = Save(1);
  EXPECT_OK(saved.status.host);
  EXPECT_EQ(saved.status.disk.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(saved.tiers, In(true, false));
  EXPECT_EQ(saved.written.disk.bytes, 0);
  EXPECT_EQ(Load({1}).read.host.bytes, kBlockBytes);
  Save(2);
  EXPECT_EQ(PlacesOf(Save(3).changed), (Places{{1, In(false, false)}})) << "no tier has it";
  host_->full = true;
  disk_->full = false;
  EXPECT_EQ(Save(4).tiers, In(false, true));
  const BlocksLoaded loaded = Load({4});
  EXPECT_EQ(loaded.loaded, 1) << "though host memory does not take it";
  EXPECT_EQ(PlacesOf(loaded.changed), (Places{{4, In(false, true)}}));
}

// A bound on the process's files stands for a full disk.
TEST_F(BlockTiersTest, ARealFileThatCannotGrowIsAFullDisk) {
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  const struct rlimit full = {8192 + 2 * 4096 + 100, before.rlim_max};
  Save(1, In(false, true));
  Save(2, In(false, true));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  const BlockSaved refused = Save(3);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(refused.tiers, In(true, false)) << refused.status.disk;
  EXPECT_THAT(std::string(refused.status.disk.message()), HasSubstr("node.kv"));
}

TEST_F(BlockTiersTest, TheDiskSurvivesARestartAndHostMemoryDoesNot) {
  for (uint64_t n = 1; n <= 3; ++n) Save(n);
  Save(4, In(true, false));
  Open(2, 5);
  EXPECT_EQ(tiers_->Contents().tiers, TierSet::All());
  EXPECT_EQ(tiers_->Contents().on_disk, (std::vector{Hash(1), Hash(2), Hash(3)}));
  EXPECT_EQ(Load({4}).loaded, 0);
  const BlocksLoaded loaded = Load({3, 2, 1});
  EXPECT_EQ(loaded.read.disk.bytes, 3 * kBlockBytes);
}

TEST_F(BlockTiersTest, OneTierAloneIsAsBefore) {
  Open(0, 2);
  EXPECT_EQ(tiers_->Contents().tiers, In(false, true));
  for (uint64_t n = 1; n <= 2; ++n) EXPECT_EQ(Save(n).tiers, In(false, true));
  EXPECT_EQ(PlacesOf(Save(3).changed), (Places{{1, In(false, false)}}));
  EXPECT_THAT(Load({2, 3}).changed, IsEmpty());
  Open(2, 0);
  EXPECT_THAT(tiers_->Contents().on_disk, IsEmpty());
  EXPECT_EQ(Save(1).tiers, In(true, false));
  tiers_->Forget({.hash = Hash(1)});
  EXPECT_EQ(Load({1}).loaded, 0);
}

// The rules in other words: two lists of names, the least recently used first. `believed` is what a
// core knows, which hears events alone.
class TiersModel {
 public:
  TiersModel(size_t host_max, size_t disk_max) : max_{host_max, disk_max} {}

  TierSet TiersOf(uint64_t n) const {
    return In(Has(StoreTier::kHost, n), Has(StoreTier::kDisk, n));
  }
  bool Has(StoreTier tier, uint64_t n) const {
    return std::find(uses_[tier].begin(), uses_[tier].end(), n) != uses_[tier].end();
  }
  void Put(StoreTier tier, uint64_t n) {
    if (Has(tier, n) || max_[tier] == 0) return;
    if (uses_[tier].size() == max_[tier]) Drop(tier, uses_[tier].front());
    uses_[tier].push_back(n);
    if (tier == StoreTier::kDisk) saves_.push_back(n);
  }
  void Drop(StoreTier tier, uint64_t n) {
    std::erase(uses_[tier], n);
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
    const BlockSaved saved = Save(n, asked);
    if (disk_ != nullptr) disk_->full = false;
    for (const StoreTier tier : kStoreTiers)
      if (asked.Has(tier) && !(tier == StoreTier::kDisk && disk_full)) model_->Put(tier, n);
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
