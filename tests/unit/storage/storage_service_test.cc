// Goal: blocks that are read back are brought to where an engine reads them before the node hears
// of them, and only those that were read. A load that has not begun can be cancelled, whatever the
// thread does meanwhile; one that has begun is carried out. Any number of blocks can be forgotten.
#include "common/storage/storage_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <variant>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/base/bounded_queue.h"
#include "common/storage/block_file.h"
#include "tests/testing/status_matchers.h"

namespace tandem::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

kv::BlockHash Hash(uint64_t n) { return {n * 0x9e3779b97f4a7c15u, n}; }

class StorageServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    kv::BlockLayout layout;
    layout.num_layers = 2;
    layout.block_tokens = 16;
    layout.layer_block_bytes = 640;
    ASSERT_OK_AND_ASSIGN(arena_, kv::BlockArena::Create(layout, 8));
    ASSERT_OK_AND_ASSIGN(
        auto file,
        BlockFile::Open(
            {.path = "", .contents = "model a", .block_bytes = 2 * 640, .bytes_max = 1 << 20}));
    service_ = std::make_unique<StorageService>(
        std::make_unique<BlockTiers>(std::move(file), nullptr, RealClock()), *arena_,
        [this](absl::Span<const BlockId> blocks) {
          brought_.assign(blocks.begin(), blocks.end());
          if (hangs_) {
            begun_.Notify();
            goes_on_.WaitForNotification();
          }
          EXPECT_EQ(events_.size(), size_t{0}) << "the event came first";
        },
        [this](StorageEvent event) { events_.Push(std::move(event)); });
  }
  StorageEvent Next() { return *events_.Pop(absl::InfiniteDuration()); }

  std::unique_ptr<kv::BlockArena> arena_;
  std::vector<BlockId> brought_;  // by the last load
  // The thread stops in a load from `begun_` to `goes_on_`.
  bool hangs_ = false;
  absl::Notification begun_, goes_on_;
  BoundedQueue<StorageEvent> events_{16};
  std::unique_ptr<StorageService> service_;
};

TEST_F(StorageServiceTest, BringsWhatItReadBeforeItSaysSo) {
  for (int layer = 0; layer < 2; ++layer)
    std::memset(arena_->Block(layer, BlockId(1)).data(), 7 + layer, 640);
  service_->Submit(SaveBlock{{Hash(1), BlockId(1)}});
  EXPECT_OK(std::get<BlockSaved>(Next()).status.host);
  service_->Submit(LoadBlocks{LoadId(1), {{Hash(1), BlockId(5)}, {Hash(2), BlockId(6)}}});
  const BlocksLoaded loaded = std::get<BlocksLoaded>(Next());
  EXPECT_EQ(loaded.loaded, 1);
  EXPECT_EQ(loaded.damaged, 1);
  ASSERT_EQ(loaded.changed.size(), size_t{1});
  EXPECT_EQ(loaded.changed[0].hash, Hash(2));
  EXPECT_TRUE(loaded.changed[0].tiers.empty());
  EXPECT_EQ(loaded.read.host.bytes, 2 * 640);
  EXPECT_THAT(brought_, ElementsAre(BlockId(5)));
  EXPECT_TRUE(arena_->TakeArrived(BlockId(5)));
  EXPECT_FALSE(arena_->TakeArrived(BlockId(6)));
  EXPECT_EQ(arena_->Block(1, BlockId(5))[9], std::byte{8});
  service_->Submit(LoadBlocks{LoadId(2), {{Hash(3), BlockId(2)}}});
  EXPECT_EQ(std::get<BlocksLoaded>(Next()).loaded, 0);
  EXPECT_THAT(brought_, IsEmpty());
}

TEST_F(StorageServiceTest, ALoadThatHasNotBegunIsCancelledWhileTheThreadHangs) {
  service_->Submit(SaveBlock{{Hash(1), BlockId(1)}});
  Next();
  std::memset(arena_->Block(0, BlockId(6)).data(), 3, 640);
  hangs_ = true;
  service_->Submit(LoadBlocks{LoadId(1), {{Hash(1), BlockId(5)}}});
  begun_.WaitForNotification();
  service_->Submit(LoadBlocks{LoadId(2), {{Hash(1), BlockId(6)}}});
  service_->Submit(SaveBlock{{Hash(2), BlockId(7)}});
  EXPECT_EQ(service_->backlog(), 3);
  EXPECT_FALSE(service_->Submit(CancelLoad{LoadId(1)}).has_value()) << "it has begun";
  const auto event = service_->Submit(CancelLoad{LoadId(2)});
  ASSERT_TRUE(event.has_value());
  const auto& cancelled = std::get<BlocksLoaded>(*event);
  EXPECT_EQ(cancelled.load, LoadId(2));
  EXPECT_TRUE(absl::IsCancelled(cancelled.status));
  EXPECT_EQ(cancelled.loaded, 0);
  EXPECT_EQ(service_->backlog(), 2);
  EXPECT_FALSE(service_->Submit(CancelLoad{LoadId(2)}).has_value()) << "it is gone";
  hangs_ = false;
  goes_on_.Notify();
  const auto first = std::get<BlocksLoaded>(Next());
  EXPECT_EQ(first.load, LoadId(1));
  EXPECT_OK(first.status);
  EXPECT_EQ(first.loaded, 1);
  EXPECT_EQ(std::get<BlockSaved>(Next()).block.first, Hash(2));
  EXPECT_EQ(arena_->Block(0, BlockId(6))[9], std::byte{3}) << "nothing was read there";
  EXPECT_FALSE(service_->Submit(CancelLoad{LoadId(1)}).has_value()) << "it has ended";
}

// A step that fails forgets all blocks of its sequences at once, and a disk may hang meanwhile.
TEST_F(StorageServiceTest, MoreForgetsThanOtherCommandsMayWait) {
  service_->Submit(SaveBlock{{Hash(1), BlockId(1)}});
  Next();
  hangs_ = true;
  service_->Submit(LoadBlocks{LoadId(1), {{Hash(1), BlockId(5)}}});
  begun_.WaitForNotification();
  constexpr int64_t kForgets = 2 * StorageService::kCommandsMax;
  for (int64_t i = 1; i <= kForgets; ++i)
    service_->Submit(ForgetBlock{Hash(static_cast<uint64_t>(i))});
  service_->Submit(SaveBlock{{Hash(2), BlockId(7)}});
  EXPECT_EQ(service_->backlog(), kForgets + 2);
  hangs_ = false;
  goes_on_.Notify();
  EXPECT_EQ(std::get<BlocksLoaded>(Next()).load, LoadId(1));
  EXPECT_EQ(std::get<BlockSaved>(Next()).block.first, Hash(2)) << "after the forgets";
  service_->Submit(LoadBlocks{LoadId(2), {{Hash(2), BlockId(3)}, {Hash(1), BlockId(6)}}});
  EXPECT_EQ(std::get<BlocksLoaded>(Next()).loaded, 1) << "the second one is forgotten";
}

}  // namespace
}  // namespace tandem::storage
