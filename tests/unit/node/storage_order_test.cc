// Goal: a node's storage that is full gives up what no prompt has used for longest, and of a prefix
// its end: the node says what follows what, and which stored blocks prompts found in memory.
#include <gmock/gmock.h>

#include "common/storage/use_order.h"
#include "tests/unit/node/stored_blocks_fixture.h"

namespace tandem::decode_node {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The fixture's disk with few slots.
class StorageOrderTest : public StoredBlocksTest {
 protected:
  static constexpr size_t kSlots = 6;

  void ServeBounded() {
    while (!pending_.empty()) {
      const storage::StorageCommand command = pending_.front();
      pending_.erase(pending_.begin());
      if (const auto* save = std::get_if<storage::SaveBlock>(&command))
        ServeSave(*save);
      else
        Serve(command);
    }
  }
  void ServeSave(const storage::SaveBlock& save) {
    for (const kv::BlockHash& hash : save.used) order_.Use(hash);
    const kv::BlockHash& hash = save.block.first;
    storage::BlockSaved saved{.block = save.block};
    if (disk_.size() == kSlots) {
      const auto goes = order_.ToRemoveFor(save.parent);
      ASSERT_TRUE(goes.has_value());
      order_.Remove(*goes);
      disk_.erase(*goes);
      saved.changed.push_back({*goes, {}});
    }
    disk_[hash] = BytesOf(save.block.second);
    order_.Add(hash, save.parent);
    saved.tiers = tiers_;
    saved.written.disk = {engine_->spec().layout.block_bytes(), save_time_};
    Answer(saved);
  }
  void Ask(int kind, int blocks) {
    Start(Prompt("ask" + std::to_string(++asked_), kind, blocks));
    ServeBounded();
    StepAll();
    ServeBounded();
  }
  bool IsStored(int kind, int blocks) {
    const std::vector<kv::BlockHash> hashes = HashesOf(kind, blocks);
    return std::all_of(hashes.begin(), hashes.end(),
                       [&](const kv::BlockHash& hash) { return disk_.contains(hash); });
  }

  storage::UseOrder order_;
  int asked_ = 0;
};

TEST_F(StorageOrderTest, ASaveNamesTheBlockBefore) {
  const std::vector<kv::BlockHash> hashes = HashesOf(1, 4);
  const auto parents = [&] {
    std::vector<kv::BlockHash> named;
    for (const storage::StorageCommand& command : pending_)
      named.push_back(std::get<storage::SaveBlock>(command).parent);
    return named;
  };
  Start(Prompt("a", 1, 2));
  EXPECT_THAT(parents(), ElementsAre(kv::BlockHash(), hashes[0]));
  ServeAll();
  StepAll();
  ServeAll();
  Start(Prompt("b", 1, 4));
  EXPECT_THAT(parents(), ElementsAre(hashes[1], hashes[2]));
}

TEST_F(StorageOrderTest, WhatMemoryFindsIsUsedInStorage) {
  const std::vector<kv::BlockHash> hashes = HashesOf(1, 4);
  Ask(1, 4);
  Start(Prompt("again", 1, 3));
  EXPECT_THAT(pending_, IsEmpty()) << "all of it is in memory and stored";
  Start(Prompt("other", 2, 2));
  ASSERT_THAT(pending_, SizeIs(2));
  EXPECT_THAT(std::get<storage::SaveBlock>(pending_[0]).used, ElementsAre(hashes[2]));
  EXPECT_THAT(std::get<storage::SaveBlock>(pending_[1]).used, IsEmpty()) << "it was told";
}

// More prompts than the disk has room for, and between them one that memory has.
TEST_F(StorageOrderTest, APromptThatStaysInMemoryStaysStored) {
  Ask(1, 3);
  for (int kind = 2; kind <= 8; ++kind) {
    Ask(kind, 1);
    Ask(1, 3);
    EXPECT_TRUE(IsStored(1, 3)) << "after prompt " << kind;
  }
  EXPECT_FALSE(IsStored(2, 1));
}

TEST_F(StorageOrderTest, APromptThatNobodyAsksForLosesItsEnd) {
  Ask(1, 3);
  for (int kind = 2; kind <= 5; ++kind) Ask(kind, 1);
  EXPECT_FALSE(IsStored(1, 3));
  EXPECT_TRUE(IsStored(1, 2));
}

TEST_F(StorageOrderTest, WithoutItsFirstBlockNothingIsRead) {
  Ask(1, 4);
  const std::vector<kv::BlockHash> hashes = HashesOf(1, 4);
  resources_->stored_blocks().Resume(now_);
  EXPECT_EQ(resources_->stored_blocks().ReadOf(hashes).blocks, 4);
  Start(Prompt("other", 2, 1));
  ASSERT_THAT(pending_, SizeIs(1));
  storage::BlockSaved saved{.block = std::get<storage::SaveBlock>(pending_[0]).block,
                            .tiers = tiers_,
                            .changed = {{hashes[0], {}}}};
  pending_.clear();
  Answer(saved);
  EXPECT_EQ(resources_->stored_blocks().ReadOf(hashes).blocks, 0);
}

}  // namespace
}  // namespace tandem::decode_node
