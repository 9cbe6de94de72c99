// Goal: the storage without bytes takes the time that its tiers' rates give, carries out loads
// before saves, loses what was used least recently, and keeps on disk what host memory lost.
#include "sim/trace/timed_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <variant>
#include <vector>

namespace tandem::sim {
namespace {

using storage::BlockSaved;
using storage::BlocksLoaded;
using storage::StoreTier;
using ::testing::ElementsAre;

constexpr int64_t kBlockBytes = 1'000'000;

kv::BlockHash Hash(uint8_t name) { return {.high = name}; }

class Node final : public Process {
 public:
  explicit Node(World& world) : Process(world, 0, "node", absl::ZeroDuration()) { Start(); }

 private:
  void OnStart() override {}
  void OnCrash() override {}
};

class TimedStorageTest : public ::testing::Test {
 protected:
  // A block takes 1 ms to host memory and back, 10.5 ms to the disk.
  std::unique_ptr<TimedStorage> Make(int64_t host_blocks, int64_t disk_blocks) {
    return TimedStorage::Create(
        {.host = {.blocks = host_blocks, .bytes_per_second = 1e9},
         .disk = {.blocks = disk_blocks,
                  .bytes_per_second = 1e8,
                  .latency = absl::Microseconds(500)},
         .block_bytes = kBlockBytes},
        /*num_blocks=*/16,
        {.process = node_,
         .arena = []() -> kv::BlockArena& { std::abort(); },
         .on_event = [this](storage::StorageEvent event) { events_.push_back(std::move(event)); }});
  }
  void Pass(absl::Duration time) { world_.RunUntil(world_.now() + time); }
  static storage::SaveBlock Save(uint8_t name) { return {.block = {Hash(name), BlockId(name)}}; }
  static storage::LoadBlocks Load(std::vector<uint8_t> names) {
    storage::LoadBlocks load{.load = storage::LoadId(names.front())};
    for (const uint8_t name : names) load.blocks.emplace_back(Hash(name), BlockId(name));
    return load;
  }
  template <typename Event>
  const Event& EventAt(size_t i) {
    return std::get<Event>(events_.at(i));
  }

  World world_{1};
  Node node_{world_};
  std::vector<storage::StorageEvent> events_;
};

TEST_F(TimedStorageTest, WithoutATierThereIsNone) { EXPECT_EQ(Make(0, 0), nullptr); }

TEST_F(TimedStorageTest, ASaveTakesTheTimeOfBothTiers) {
  const auto storage = Make(4, 4);
  EXPECT_EQ(storage->slots(), 8);
  storage->Submit(Save(1));
  Pass(absl::Microseconds(11'499));
  EXPECT_TRUE(events_.empty());
  Pass(absl::Microseconds(1));
  ASSERT_EQ(events_.size(), 1u);
  const auto& saved = EventAt<BlockSaved>(0);
  EXPECT_EQ(saved.tiers, storage::TierSet::All());
  EXPECT_EQ(saved.written.host.bytes, kBlockBytes);
  EXPECT_EQ(saved.written.host.time, absl::Milliseconds(1));
  EXPECT_EQ(saved.written.disk.bytes, kBlockBytes);
  EXPECT_EQ(saved.written.disk.time, absl::Microseconds(10'500));
}

TEST_F(TimedStorageTest, WhatHostMemoryLostComesFromTheDiskAndGoesUpAgain) {
  const auto storage = Make(1, 4);
  storage->Submit(Save(1));
  storage->Submit(Save(2));
  Pass(absl::Seconds(1));
  ASSERT_EQ(EventAt<BlockSaved>(1).changed.size(), 1u) << "block 1 lies on the disk alone now";
  EXPECT_EQ(EventAt<BlockSaved>(1).changed[0].hash, Hash(1));
  const absl::Time began = world_.now();
  storage->Submit(Load({1, 9}));
  while (events_.size() < 3) Pass(absl::Microseconds(100));
  const auto& loaded = EventAt<BlocksLoaded>(2);
  EXPECT_EQ(loaded.loaded, 1) << "the other one was never stored";
  EXPECT_THAT(loaded.from, ElementsAre(StoreTier::kDisk));
  EXPECT_EQ(loaded.read.disk.bytes, kBlockBytes);
  EXPECT_EQ(loaded.read.disk.time, absl::Microseconds(10'500));
  EXPECT_EQ(world_.now() - began, absl::Microseconds(11'500)) << "with the copy to host memory";
  storage->Submit(Load({1}));
  Pass(absl::Milliseconds(1));
  ASSERT_EQ(events_.size(), 4u);
  EXPECT_THAT(EventAt<BlocksLoaded>(3).from, ElementsAre(StoreTier::kHost));
}

TEST_F(TimedStorageTest, LoadsGoBeforeTheSavesThatWait) {
  const auto storage = Make(4, 0);
  EXPECT_FALSE(storage->has_disk());
  storage->Submit(Save(1));
  Pass(absl::Milliseconds(1));
  for (const uint8_t name : {2, 3, 4}) storage->Submit(Save(name));
  storage->Submit(Load({1}));
  Pass(absl::Milliseconds(2));
  ASSERT_EQ(events_.size(), 3u);
  EXPECT_EQ(EventAt<BlockSaved>(1).block.first, Hash(2)) << "it ran already";
  EXPECT_EQ(EventAt<BlocksLoaded>(2).loaded, 1);
  Pass(absl::Milliseconds(2));
  EXPECT_EQ(events_.size(), 5u);
}

TEST_F(TimedStorageTest, ALoadThatHasNotBegunIsCancelledAtOnce) {
  const auto storage = Make(0, 4);
  storage->Submit(Save(1));
  Pass(absl::Seconds(1));
  storage->Submit(Load({1}));
  storage->Submit(Load({2}));
  storage->Submit(storage::CancelLoad{.load = storage::LoadId(1)});
  storage->Submit(storage::CancelLoad{.load = storage::LoadId(2)});
  Pass(absl::Microseconds(1));
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_EQ(EventAt<BlocksLoaded>(1).load, storage::LoadId(2));
  EXPECT_TRUE(absl::IsCancelled(EventAt<BlocksLoaded>(1).status));
  Pass(absl::Seconds(1));
  ASSERT_EQ(events_.size(), 3u);
  EXPECT_EQ(EventAt<BlocksLoaded>(2).load, storage::LoadId(1)) << "it had begun";
  EXPECT_TRUE(EventAt<BlocksLoaded>(2).status.ok());
  EXPECT_EQ(EventAt<BlocksLoaded>(2).loaded, 1);
}

TEST_F(TimedStorageTest, WhatWasForgottenIsNotFound) {
  const auto storage = Make(0, 4);
  storage->Submit(Save(1));
  storage->Submit(storage::ForgetBlock{.hash = Hash(1)});
  Pass(absl::Seconds(1));
  storage->Submit(Load({1}));
  Pass(absl::Seconds(1));
  EXPECT_EQ(EventAt<BlocksLoaded>(1).loaded, 0);
  EXPECT_EQ(storage->Contents().on_disk.size(), 0u);
}

}  // namespace
}  // namespace tandem::sim
