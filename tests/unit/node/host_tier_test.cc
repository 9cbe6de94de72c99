// Goal: with host memory above a disk, a node reads each block from the faster tier, weighs each
// tier's blocks at that tier's rate, goes on with one tier while the other is paused, and tells
// routers where blocks lie that its memory lacks.
#include <gmock/gmock.h>

#include "tests/unit/node/stored_blocks_fixture.h"

namespace tandem::decode_node {
namespace {

using storage::StoreTier;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class HostTierTest : public StoredBlocksTest {
 protected:
  HostTierTest() {
    tiers_ = storage::TierSet::All();
    MakeWith({});
  }
  // Host memory loses these blocks, which make room for one that is saved.
  void EvictFromHost(const std::vector<kv::BlockHash>& hashes) {
    Start(Prompt("evicts" + std::to_string(evictions_), 200 + evictions_, 1));
    ++evictions_;
    const storage::StorageCommand save = pending_.at(0);
    pending_.erase(pending_.begin());
    storage::BlockSaved saved{.block = std::get<storage::SaveBlock>(save).block, .tiers = tiers_};
    for (const kv::BlockHash& hash : hashes) {
      host_.erase(hash);
      saved.changed.push_back({hash, TiersOf(hash)});
    }
    for (const StoreTier tier : storage::kStoreTiers) {
      BlocksOf(tier)[saved.block.first] = BytesOf(saved.block.second);
      saved.written[tier] = {engine_->spec().layout.block_bytes(), save_time_};
    }
    Answer(saved);
    ServeAll();
    StepAll();
    ServeAll();
  }
  // The blocks of a prompt that was served before, in the order of the prompt, as they are saved.
  std::vector<kv::BlockHash> ServeAndName(const std::string& id, int kind, int blocks) {
    Start(Prompt(id, kind, blocks));
    std::vector<kv::BlockHash> names;
    for (const storage::StorageCommand& command : pending_)
      names.push_back(std::get<storage::SaveBlock>(command).block.first);
    ServeAll();
    StepAll();
    ServeAll();
    EXPECT_THAT(names, SizeIs(blocks));
    return names;
  }
  const v1::TierTotals& FromHost() { return counters_.host_memory(); }
  const v1::TierTotals& FromDisk() { return counters_.disk(); }
  void Count() { counters_ = resources_->counters(); }

  v1::NodeCounters counters_;
  int evictions_ = 0;
};

TEST_F(HostTierTest, ABlockIsReadFromTheFasterTierAndCounted) {
  const auto names = ServeAndName("a", 1, 4);
  EXPECT_EQ(core_->load().blocks_stored(), 4);
  EXPECT_EQ(core_->load().blocks_in_host_memory(), 4);
  EXPECT_EQ(core_->load().blocks_on_disk(), 4);
  EvictFromHost({names[0], names[1]});
  EXPECT_EQ(core_->load().blocks_in_host_memory(), 3);
  EXPECT_EQ(core_->load().blocks_on_disk(), 5);
  Crowd();
  EXPECT_EQ(Serve("b", 1, 4), TokensOf("a"));
  Count();
  EXPECT_EQ(FromHost().blocks_read(), 2);
  EXPECT_EQ(FromDisk().blocks_read(), 2);
  EXPECT_EQ(FromHost().bytes_read(), 2 * engine_->spec().layout.block_bytes());
  EXPECT_EQ(counters_.blocks_loaded(), 4);
  EXPECT_EQ(FromDisk().blocks_written(), counters_.blocks_saved());
  const cost::StorageProfile profile = *resources_->storage_profile();
  EXPECT_EQ(profile.host->read.actual_us, 1);
  EXPECT_EQ(profile.disk->read.actual_us, 10);
  ExpectNothingHeld();
}

TEST_F(HostTierTest, APromptsTokensAreToldByTheTierThatTheyCameFrom) {
  const auto names = ServeAndName("a", 1, 4);
  EvictFromHost({names[0], names[1], names[2]});
  Crowd();
  Serve("b", 1, 4);
  EXPECT_EQ(SourcesOf("b").cached(), 4 * kBlockTokens);
  EXPECT_EQ(SourcesOf("b").from_disk(), 3 * kBlockTokens);
  EXPECT_EQ(SourcesOf("b").from_host_memory(), kBlockTokens);
  EXPECT_EQ(SourcesOf("b").fetched(), 0);
  // They are in the node's blocks now.
  Serve("c", 1, 4);
  EXPECT_EQ(SourcesOf("c").cached(), 4 * kBlockTokens);
  EXPECT_EQ(SourcesOf("c").from_disk() + SourcesOf("c").from_host_memory(), 0);
  // What is read again counts again. It was copied into host memory when it was read.
  Crowd();
  Serve("d", 1, 2);
  EXPECT_EQ(SourcesOf("d").from_host_memory(), 2 * kBlockTokens);
  Count();
  const v1::TokensBySource& sum = counters_.prompt_tokens();
  EXPECT_EQ(sum.from_disk(), 3 * kBlockTokens);
  EXPECT_EQ(sum.from_host_memory(), 3 * kBlockTokens);
  EXPECT_EQ(sum.from_disk(), FromDisk().blocks_read() * kBlockTokens);
  EXPECT_EQ(sum.from_host_memory(), FromHost().blocks_read() * kBlockTokens);
}

TEST_F(HostTierTest, RoutersHearWhereABlockLiesAndWhenItsTierChanges) {
  const auto names = ServeAndName("a", 1, 4);
  Crowd();
  for (const kv::BlockHash& hash : names) {
    EXPECT_TRUE(heard_.at(hash));
    EXPECT_TRUE(heard_in_host_.contains(hash));
  }
  EvictFromHost({names[0]});
  EXPECT_TRUE(heard_.at(names[0])) << "the disk has it";
  EXPECT_FALSE(heard_in_host_.contains(names[0]));
  EXPECT_TRUE(heard_in_host_.contains(names[1]));
  disk_.erase(names[1]);
  EvictFromHost({names[1]});
  EXPECT_FALSE(heard_.contains(names[1])) << "no tier has it";
  EXPECT_TRUE(heard_.contains(names[2]));
}

TEST_F(HostTierTest, ARouterThatJoinsHearsOfBothTiers) {
  const auto names = ServeAndName("a", 1, 4);
  Crowd();
  EvictFromHost({names[0]});
  heard_.clear();
  heard_in_host_.clear();
  const std::vector<v1::NodeEvent> events = resources_->StoredOnlyEvents();
  ASSERT_THAT(events, SizeIs(2));
  for (const v1::NodeEvent& event : events) Hear(event);
  EXPECT_TRUE(heard_in_host_.contains(names[1]));
  EXPECT_TRUE(heard_.at(names[0]));
  EXPECT_FALSE(heard_in_host_.contains(names[0]));
}

TEST_F(HostTierTest, EachTiersBlocksAreWeighedAtItsRate) {
  load_time_ = absl::Seconds(1);  // the disk is slower than computing, host memory is not
  step_time_ = absl::Milliseconds(1);
  std::vector<std::vector<kv::BlockHash>> names;
  for (int kind = 1; kind <= 5; ++kind)
    names.push_back(ServeAndName("a" + std::to_string(kind), kind, 4));
  Crowd();
  // What each tier costs is learned: prompt 1 from host memory, prompts 2 and 3 from disk.
  EvictFromHost(names[1]);
  EvictFromHost(names[2]);
  Crowd();
  for (int kind = 1; kind <= 3; ++kind) Serve("b" + std::to_string(kind), kind, 4);
  Crowd();
  Count();
  const int64_t host = FromHost().blocks_read(), disk = FromDisk().blocks_read();
  ASSERT_GT(host, 0);
  ASSERT_GT(disk, 0);
  Serve("c4", 4, 4);
  Count();
  EXPECT_EQ(FromHost().blocks_read(), host + 4) << "it pays";
  EvictFromHost(names[4]);
  Crowd();
  Serve("c5", 5, 4);
  Count();
  EXPECT_EQ(FromDisk().blocks_read(), disk) << "it does not";
  // The beginning lies in host memory, the rest on disk: only the beginning is read.
  EvictFromHost({names[0][2], names[0][3]});
  Crowd();
  EXPECT_EQ(Serve("c1", 1, 4), TokensOf("a1"));
  Count();
  EXPECT_EQ(FromHost().blocks_read(), host + 6);
  EXPECT_EQ(FromDisk().blocks_read(), disk);
}

TEST_F(HostTierTest, AFullDiskIsPausedAndHostMemoryGoesOn) {
  Start(Prompt("a", 1, 4));
  ASSERT_THAT(pending_, SizeIs(4));
  for (const storage::StorageCommand& command : std::exchange(pending_, {})) {
    const auto& save = std::get<storage::SaveBlock>(command);
    EXPECT_EQ(save.tiers, storage::TierSet::All());
    host_[save.block.first] = BytesOf(save.block.second);
    storage::BlockSaved saved = Refused(command, absl::ResourceExhaustedError("full"));
    saved.tiers = TiersOf(save.block.first);
    Answer(saved);
  }
  EXPECT_EQ(resources_->counters().saves_failed(), 4);
  EXPECT_EQ(core_->load().blocks_in_host_memory(), 4);
  EXPECT_EQ(core_->load().blocks_on_disk(), 0);
  Serve("b", 2, 3);
  EXPECT_EQ(core_->load().blocks_in_host_memory(), 7) << "while the disk is paused";
  EXPECT_EQ(core_->load().blocks_on_disk(), 0);
  Crowd();
  EXPECT_EQ(Serve("c", 1, 4), TokensOf("a"));
  now_ += node::StoredBlocks::kPause;
  core_->OnTick(now_);
  Serve("d", 3, 3);
  EXPECT_GE(core_->load().blocks_on_disk(), 3);
  ExpectNothingHeld();
}

TEST_F(HostTierTest, WhatIsForgottenStaysForgottenWhenALateEventNamesIt) {
  const auto names = ServeAndName("a", 1, 4);
  // Damages the second block in memory and asks for the prompt again: the step fails, and the
  // block is forgotten in both tiers.
  for (int32_t block = 0; block < kBlocks; ++block) {
    if (BytesOf(BlockId(block)) == disk_.at(names[1]))
      engine_->arena().Block(1, BlockId(block))[0] ^= std::byte{1};
  }
  Start(Prompt("b", 1, 4));
  const int64_t stored = core_->load().blocks_stored();
  EXPECT_LT(stored, 4);
  // Storage had carried out a save before it heard of that.
  const std::vector<storage::StorageCommand> forgets = std::exchange(pending_, {});
  Start(Prompt("c", 2, 1));
  ASSERT_FALSE(pending_.empty());
  const auto save = std::get<storage::SaveBlock>(pending_[0]);
  pending_.erase(pending_.begin());
  Answer({storage::BlockSaved{.block = save.block, .changed = {{names[1], tiers_}}}});
  EXPECT_EQ(core_->load().blocks_stored(), stored) << "it would be read with the wrong bytes";
  pending_.insert(pending_.begin(), forgets.begin(), forgets.end());
  ServeAll();
  EXPECT_FALSE(host_.contains(names[1]));
  EXPECT_FALSE(disk_.contains(names[1]));
}

}  // namespace
}  // namespace tandem::decode_node
