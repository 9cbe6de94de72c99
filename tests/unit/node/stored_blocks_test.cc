// Goal: blocks that memory has no room for are found again in storage, with the same bytes;
// whatever storage does (it is full, damaged, slow, hangs), a prompt is computed or served, no
// block is lost, and routers hear where blocks are.
#include "common/node/stored_blocks.h"

#include <set>

#include "tests/unit/node/stored_blocks_fixture.h"

namespace tandem::decode_node {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(StoredBlocksTest, APromptIsReadInsteadOfComputed) {
  const std::vector<TokenId> first = Serve("a", 1, 4);
  ASSERT_THAT(first, SizeIs(3));
  EXPECT_EQ(SourcesOf("a").computed(), 4 * kBlockTokens + 1);
  Crowd();
  EXPECT_EQ(resources_->counters().blocks_saved(), 4 + kBlocks - 1);
  EXPECT_GE(HeardOnDisk(), 4);
  const std::vector<TokenId> again = Serve("b", 1, 4);
  EXPECT_EQ(again, first);
  EXPECT_EQ(SourcesOf("b").cached(), 4 * kBlockTokens);
  EXPECT_EQ(SourcesOf("b").computed(), 1);
  EXPECT_EQ(resources_->counters().blocks_loaded(), 4);
  ExpectNothingHeld();
}

TEST_F(StoredBlocksTest, TheNextProcessReadsWhatThisOneStored) {
  const std::vector<TokenId> first = Serve("a", 1, 4);
  std::vector<kv::BlockHash> contents;
  for (const auto& [hash, bytes] : disk_) contents.push_back(hash);
  MakeWith(contents);
  events_.clear();
  EXPECT_EQ(OnDiskOnly(), contents);
  EXPECT_EQ(core_->load().blocks_stored(), 4);
  EXPECT_EQ(Serve("b", 1, 4), first);
  EXPECT_EQ(SourcesOf("b").cached(), 4 * kBlockTokens);
  EXPECT_THAT(OnDiskOnly(), IsEmpty());
}

TEST_F(StoredBlocksTest, OnlyWhatMemoryLacksIsRead) {
  Serve("a", 1, 5);
  // Two blocks of the prompt go, the last first.
  Serve("b", 2, 4);
  const int64_t loaded_before = resources_->counters().blocks_loaded();
  Serve("c", 1, 5);
  EXPECT_EQ(SourcesOf("c").cached(), 5 * kBlockTokens);
  const int64_t loaded = resources_->counters().blocks_loaded() - loaded_before;
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, 5);
}

TEST_F(StoredBlocksTest, WhatIsDamagedIsComputedAndHeardOfNoMore) {
  const std::vector<TokenId> first = Serve("a", 1, 4);
  Crowd();
  const size_t heard = heard_.size();
  // The third block of the prompt, by what a load asks for.
  Start(Prompt("b", 1, 4));
  ASSERT_THAT(pending_, SizeIs(1));
  const auto load = std::get<storage::LoadBlocks>(pending_[0]);
  ASSERT_THAT(load.blocks, SizeIs(4));
  disk_.erase(load.blocks[2].first);
  ServeAll();
  EXPECT_EQ(heard_.size(), heard - 1);
  StepAll();
  ServeAll();
  EXPECT_EQ(TokensOf("b"), first);
  EXPECT_EQ(SourcesOf("b").cached(), 2 * kBlockTokens);
  EXPECT_EQ(resources_->counters().blocks_damaged(), 1);
  EXPECT_EQ(disk_.count(load.blocks[2].first), 1u) << "computed and stored again";
  ExpectNothingHeld();
}

TEST_F(StoredBlocksTest, ADiskThatHangsCostsAPromptItsPatienceOnly) {
  const std::vector<TokenId> first = Serve("a", 1, 4);
  Crowd();
  Start(Prompt("b", 1, 4));
  ASSERT_THAT(pending_, SizeIs(1));
  EXPECT_THAT(TokensOf("b"), IsEmpty());
  now_ += absl::Milliseconds(1300);  // more than a quarter of 5 s
  core_->OnTick(now_);
  Take();
  EXPECT_EQ(core_->load().blocks_quarantined(), 4);
  // Another prompt does not wait for that disk.
  core_->OnCommand(kRouter, Abort("b"), now_);
  Take();
  const storage::StorageCommand hung = pending_[0];
  pending_.clear();
  Start(Prompt("c", 1, 2));
  EXPECT_THAT(TokensOf("c"), SizeIs(3));
  EXPECT_EQ(SourcesOf("c").computed(), 2 * kBlockTokens + 1);
  Serve(hung);
  EXPECT_EQ(core_->load().blocks_quarantined(), 0);
  EXPECT_EQ(resources_->counters().loads_given_up(), 1);
  ServeAll();
  ExpectNothingHeld();
}

TEST_F(StoredBlocksTest, AnAbortedPromptsLoadEndsByItself) {
  Serve("a", 1, 4);
  Crowd();
  Start(Prompt("b", 1, 4));
  core_->OnCommand(kRouter, Abort("b"), now_);
  Take();
  EXPECT_FALSE(core_->idle());
  ServeAll();
  StepAll();
  EXPECT_THAT(TokensOf("b"), IsEmpty());
  ExpectNothingHeld();
  EXPECT_EQ(resources_->counters().blocks_loaded(), 4) << "they are prefix cache now";
}

TEST_F(StoredBlocksTest, TheNewestAttemptIsServedOnce) {
  Serve("a", 1, 4);
  Crowd();
  Start(Prompt("b", 1, 4, /*attempt=*/2));
  Start(Prompt("b", 1, 4, /*attempt=*/1));  // late: ignored
  Start(Prompt("b", 1, 4, /*attempt=*/3));
  ServeAll();
  StepAll();
  EXPECT_THAT(TokensOf("b"), SizeIs(3));
  int reserved = 0;
  for (const v1::NodeEvent& event : events_)
    if (event.has_reserved() && event.reserved().leg().request_id() == "b") {
      EXPECT_EQ(event.reserved().leg().attempt(), 3u);
      ++reserved;
    }
  EXPECT_EQ(reserved, 1);
  ServeAll();
  ExpectNothingHeld();
}

TEST_F(StoredBlocksTest, PromptsOfOneBeginningReadItOnce) {
  Serve("a", 1, 4);
  Crowd();
  for (const char* id : {"b", "c"}) Start(Prompt(id, 1, 2));
  EXPECT_THAT(pending_, SizeIs(1));
  EXPECT_EQ(core_->load().loads(), 1);
  ServeAll();
  StepAll();
  EXPECT_EQ(TokensOf("b"), TokensOf("c"));
  EXPECT_EQ(SourcesOf("b").from_disk(), 2 * kBlockTokens);
  EXPECT_EQ(SourcesOf("c").from_disk(), 0) << "b was the first to use them";
  EXPECT_THAT(TokensOf("b"), SizeIs(3));
  EXPECT_EQ(resources_->counters().blocks_loaded(), 2);
  ServeAll();
  ExpectNothingHeld();
}

TEST_F(StoredBlocksTest, ALostRoutersPromptsAreForgotten) {
  Serve("a", 1, 4);
  Crowd();
  Start(Prompt("b", 1, 4));
  core_->OnRouterLost(kRouter, now_);
  ServeAll();
  StepAll();
  EXPECT_THAT(TokensOf("b"), IsEmpty());
  ExpectNothingHeld();
}

TEST_F(StoredBlocksTest, AFullDiskEndsSavesForAWhile) {
  Start(Prompt("a", 1, 4));
  ASSERT_THAT(pending_, SizeIs(4));
  for (const storage::StorageCommand& command : std::exchange(pending_, {}))
    Answer(Refused(command, absl::ResourceExhaustedError("full")));
  EXPECT_EQ(resources_->counters().saves_failed(), 4);
  EXPECT_THAT(Serve("b", 2, 3), SizeIs(3));
  EXPECT_THAT(pending_, IsEmpty());
  EXPECT_EQ(core_->load().blocks_stored(), 0);
  now_ += node::StoredBlocks::kPause;
  core_->OnTick(now_);
  Serve("c", 3, 3);
  EXPECT_EQ(core_->load().blocks_stored(), 3);
  ExpectNothingHeld();
}

TEST_F(StoredBlocksTest, WhatMadeRoomIsHeardOfNoMore) {
  Serve("a", 1, 4);
  Crowd();
  ASSERT_GE(HeardOnDisk(), 4);
  const kv::BlockHash gone = OnDiskOnly().front();
  Start(Prompt("b", 2, 3));
  ASSERT_FALSE(pending_.empty());
  const auto save = std::get<storage::SaveBlock>(pending_[0]);
  pending_.erase(pending_.begin());
  Answer(storage::BlockSaved{.block = save.block, .tiers = tiers_, .changed = {{gone, {}}}});
  EXPECT_FALSE(heard_.contains(gone));
  ServeAll();
}

TEST_F(StoredBlocksTest, BlocksThatAreBeingSavedAreNotOverwritten) {
  Start(Prompt("a", 1, 4));  // its four saves are under way
  ASSERT_THAT(pending_, SizeIs(4));
  // Four blocks are left.
  const v1::NodeCommand too_large = Prompt("b", 2, 5);
  EXPECT_EQ(Refusal(Send(too_large)).code(), absl::StatusCode::kResourceExhausted);
  ServeAll();
  EXPECT_THAT(Serve("c", 2, 5), SizeIs(3));
}

TEST_F(StoredBlocksTest, WhatWasWrongInMemoryIsForgottenOnDisk) {
  Serve("a", 1, 4);
  ASSERT_THAT(disk_, SizeIs(4));
  // Damages the second block in memory and asks for the prompt again.
  Start(Prompt("b", 1, 4));
  ServeAll();
  for (int32_t block = 0; block < kBlocks; ++block) {
    for (const auto& [hash, bytes] : disk_) {
      if (BytesOf(BlockId(block)) == bytes)
        engine_->arena().Block(1, BlockId(block))[0] ^= std::byte{1};
    }
  }
  Start(Prompt("c", 1, 4));
  ServeAll();
  EXPECT_THAT(TokensOf("c"), SizeIs(0)) << "the step failed";
  EXPECT_LT(disk_.size(), 4u);
  StepAll();
  EXPECT_THAT(Serve("d", 1, 4), SizeIs(3));
}

TEST_F(StoredBlocksTest, WhatIsSlowerToReadThanToComputeIsComputed) {
  load_time_ = absl::Seconds(1);
  step_time_ = absl::Milliseconds(1);
  for (int kind = 1; kind <= 6; ++kind) Serve("a" + std::to_string(kind), kind, 4);
  for (int kind = 1; kind <= 3; ++kind) Serve("b" + std::to_string(kind), kind, 4);
  const int64_t loaded = resources_->counters().blocks_loaded();
  EXPECT_GT(loaded, 0) << "the first load tells what reading costs";
  for (int kind = 4; kind <= 6; ++kind) Serve("c" + std::to_string(kind), kind, 4);
  EXPECT_EQ(resources_->counters().blocks_loaded(), loaded);
}

TEST_F(StoredBlocksTest, ADiskThatWasSlowIsTriedAgainOnceAfterAWhile) {
  load_time_ = absl::Seconds(1);
  step_time_ = absl::Milliseconds(1);
  for (int kind = 1; kind <= 6; ++kind) Serve("a" + std::to_string(kind), kind, 4);
  for (int kind = 1; kind <= 6; ++kind) Serve("b" + std::to_string(kind), kind, 4);
  const int64_t loaded = resources_->counters().blocks_loaded();
  ASSERT_GT(loaded, 0);
  now_ += absl::Minutes(10);
  for (int kind = 1; kind <= 3; ++kind) Serve("c" + std::to_string(kind), kind, 4);
  EXPECT_EQ(resources_->counters().blocks_loaded(), loaded + 4) << "the sample restores the price";
  // The disk is quick again: after another while every prompt is read.
  load_time_ = absl::Microseconds(10);
  for (int kind = 4; kind <= 6; ++kind) Serve("d" + std::to_string(kind), kind, 4);
  EXPECT_EQ(resources_->counters().blocks_loaded(), loaded + 4);
  for (int round = 0; round < 8; ++round) {
    now_ += absl::Minutes(10);
    for (int kind = 1; kind <= 6; ++kind) Serve("e" + std::to_string(10 * round + kind), kind, 4);
  }
  const int64_t before = resources_->counters().blocks_loaded();
  for (int kind = 1; kind <= 3; ++kind) Serve("f" + std::to_string(kind), kind, 4);
  EXPECT_EQ(resources_->counters().blocks_loaded(), before + 12);
}

TEST_F(StoredBlocksTest, WhatReadsAndWritesCostIsReported) {
  ASSERT_TRUE(resources_->storage_profile().has_value());
  EXPECT_EQ(resources_->storage_profile()->disk->read.samples, 0);
  EXPECT_FALSE(resources_->storage_profile()->host.has_value());
  const double block_bytes = static_cast<double>(engine_->spec().layout.block_bytes());
  save_time_ = absl::Microseconds(200);
  load_time_ = absl::Milliseconds(3);
  Serve("a", 1, 4);
  Crowd();
  Serve("b", 1, 4);
  const cost::TierProfile profile = *resources_->storage_profile()->disk;
  EXPECT_EQ(profile.write.samples, resources_->counters().blocks_saved());
  EXPECT_NEAR(profile.write.PredictUs(block_bytes), 200, 1);
  EXPECT_NEAR(profile.write.bytes_per_second, block_bytes / 200e-6, block_bytes) << "all equal";
  EXPECT_EQ(profile.read.samples, 1);
  EXPECT_EQ(profile.read.actual_us, 3000);
  const node::NodeResources without(
      node::SchedulerOptions{.spec = engine_->spec(), .num_blocks = kBlocks});
  EXPECT_FALSE(without.storage_profile().has_value()) << "nothing is stored";
}

TEST_F(StoredBlocksTest, ScoredPromptsAreComputed) {
  Serve("a", 1, 4);
  Crowd();
  v1::NodeCommand command = Prompt("b", 1, 4);
  command.mutable_start_decode()->mutable_sequence()->mutable_sampling();
  command.mutable_start_decode()->mutable_sequence()->set_prompt_logprobs(0);
  Start(command);
  EXPECT_THAT(TokensOf("b"), SizeIs(3));
  ServeAll();
  EXPECT_EQ(resources_->counters().blocks_loaded(), 0);
}

TEST_F(StoredBlocksTest, PeersFetchWhatLiesOnDisk) {
  Serve("a", 1, 4);
  std::vector<kv::BlockHash> hashes;
  for (const auto& [hash, on_disk] : heard_) hashes.push_back(hash);
  Crowd();
  v1::NodeCommand command;
  v1::SendBlocks& send = *command.mutable_send_blocks();
  send.set_fetch(true);
  send.set_hashes(kv::PackHashes({hashes[0]}));
  send.set_receiver_node_id("peer");
  send.set_lease_id(5);
  send.set_epoch(1);
  node::NodeActions actions = Send(command);
  EXPECT_THAT(actions.transfer, IsEmpty()) << "it waits";
  Keep(std::move(actions));
  const auto load = pending_.at(0);
  pending_.clear();
  const auto& blocks = std::get<storage::LoadBlocks>(load).blocks;
  ASSERT_THAT(blocks, SizeIs(1));
  SetBytes(blocks[0].second, disk_.at(hashes[0]));
  core_->OnStorage(
      storage::BlocksLoaded{.load = std::get<storage::LoadBlocks>(load).load,
                            .loaded = 1,
                            .from = {storage::StoreTier::kDisk},
                            .read = {.disk = {engine_->spec().layout.block_bytes(), load_time_}}},
      now_);
  actions = resources_->TakeActions();
  ASSERT_THAT(actions.transfer, SizeIs(3));
  EXPECT_TRUE(std::holds_alternative<transfer::OpenExport>(actions.transfer[0]));
  EXPECT_TRUE(std::holds_alternative<transfer::PushRange>(actions.transfer[1]));
  Keep(std::move(actions));
  Serve("b", 1, 4);
  EXPECT_EQ(SourcesOf("b").cached(), 4 * kBlockTokens);
  EXPECT_EQ(SourcesOf("b").from_disk(), 3 * kBlockTokens) << "one was read for the peer";
}

}  // namespace
}  // namespace tandem::decode_node
