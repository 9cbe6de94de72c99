// Two tiers in front of a file and memory that read and write wrongly when a test says so, with
// what a test needs to save and load blocks by numbers. Thread safety: none.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/storage/block_file.h"
#include "common/storage/block_tiers.h"
#include "tests/testing/status_matchers.h"

namespace tandem::storage {

inline constexpr int64_t kLayerBytes = 320, kBlockBytes = 2 * kLayerBytes;
inline constexpr int64_t kSlotBytes = 4096 + 64;
inline constexpr int kArenaBlocks = 8;

inline kv::BlockHash Hash(uint64_t n) { return {n * 0x9e3779b97f4a7c15u + 1, n}; }
inline TierSet In(bool host, bool disk) {
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

  absl::Status Save(const kv::BlockHash& hash, const kv::BlockHash& parent,
                    absl::Span<const absl::Span<const std::byte>> pieces,
                    std::vector<kv::BlockHash>& removed) override {
    if (full) return absl::ResourceExhaustedError("the tier is full");
    return store_->Save(hash, parent, pieces, removed);
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
  kv::BlockHash ParentOf(const kv::BlockHash& hash) const override {
    return store_->ParentOf(hash);
  }
  std::vector<kv::BlockHash> Hashes() const override { return store_->Hashes(); }
  int64_t slots() const override { return store_->slots(); }
  int64_t size() const override { return store_->size(); }

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
    return Save({.block = {Hash(n), BlockId(0)}, .tiers = tiers});
  }
  BlockSaved Save(const SaveBlock& command) {
    Fill(command.block.first.low, command.block.second);
    return tiers_->Save(command, *arena_);
  }
  // A prefix of names, each the parent of the next.
  void SavePrefix(const std::vector<uint64_t>& names, const UsedBlocks& used = {}) {
    SaveBlock command{.used = used};
    for (const uint64_t n : names) {
      command.block = {Hash(n), BlockId(0)};
      Save(command);
      command.parent = Hash(n);
    }
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
    EXPECT_THAT(arrived_, ::testing::SizeIs(event.loaded));
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

}  // namespace tandem::storage
