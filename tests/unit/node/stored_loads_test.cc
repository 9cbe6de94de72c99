// Goal: a load begins only if its blocks are there sooner than computed ones, with what the storage
// has to do before; it brings what can be read in time; loads that follow each other end before the
// router or the peer that waits gives up; and a load that nobody wants any more is cancelled,
// leaves no block behind, and lets no prompt wait for a storage that hangs.
#include <gmock/gmock.h>

#include "common/node/prefix_fetch.h"
#include "common/node/stored_blocks.h"
#include "router/core/router_options.h"
#include "tests/unit/node/stored_blocks_fixture.h"

namespace tandem::decode_node {
namespace {

using storage::CancelLoad;
using storage::LoadBlocks;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StoredLoadsTest : public StoredBlocksTest {
 protected:
  // Prompts of these kinds lie in storage alone. The node knows what steps cost, and reads.
  void StoreKinds(int kinds, int blocks) {
    for (int kind = 1; kind <= kinds; ++kind) Serve("s" + std::to_string(kind), kind, blocks);
    Crowd();
    Serve("known", 1, blocks);
    Crowd();
    ASSERT_THAT(pending_, IsEmpty());
  }
  bool Waits(const std::string& id) const { return TokensOf(id).empty(); }
  template <typename Command>
  int64_t Pending() const {
    return std::count_if(pending_.begin(), pending_.end(), [](const auto& command) {
      return std::holds_alternative<Command>(command);
    });
  }
  bool HasReserved(const std::string& id) const {
    return std::any_of(events_.begin(), events_.end(), [&](const v1::NodeEvent& event) {
      return event.has_reserved() && event.reserved().leg().request_id() == id;
    });
  }
  // The storage carries out the first command that waits.
  void ServeOne() {
    const storage::StorageCommand command = pending_.at(0);
    pending_.erase(pending_.begin());
    Serve(command);
  }
  void SendAbort(const std::string& id) {
    core_->OnCommand(kRouter, Abort(id), now_);
    Take();
  }
};

TEST_F(StoredLoadsTest, WhatTheStorageHasToDoBeforeCounts) {
  // Computing is predicted to take a step, 5 ms, with an error of some milliseconds.
  load_time_ = absl::Milliseconds(7);
  StoreKinds(3, 2);
  Start(Prompt("b", 1, 2));
  ASSERT_THAT(pending_, SizeIs(1));
  Start(Prompt("c", 2, 2));
  EXPECT_FALSE(Waits("c")) << "14 ms";
  EXPECT_EQ(SourcesOf("c").computed(), 2 * kBlockTokens + 1);
  EXPECT_TRUE(Waits("b"));
  ServeAll();
  StepAll();
  EXPECT_EQ(SourcesOf("b").from_disk(), 2 * kBlockTokens);
  ServeAll();
  // With nothing before it, it is read.
  Crowd();
  Start(Prompt("d", 2, 2));
  EXPECT_EQ(Pending<LoadBlocks>(), 1);
  ServeAll();
  StepAll();
  ServeAll();
  ExpectNothingHeld();
}

TEST_F(StoredLoadsTest, WhatTheRunningLoadHasDoneDoesNotCount) {
  load_time_ = absl::Milliseconds(4);
  StoreKinds(3, 2);
  Start(Prompt("b", 1, 2));
  now_ += absl::Microseconds(3900);
  Start(Prompt("c", 2, 2));
  EXPECT_TRUE(Waits("c")) << "4.1 ms";
  EXPECT_EQ(Pending<LoadBlocks>(), 2);
  ServeAll();
  StepAll();
  ServeAll();
  ExpectNothingHeld();
}

TEST_F(StoredLoadsTest, ALoadBringsWhatIsReadInTimeAndTheNextOneTheRest) {
  step_time_ = absl::Seconds(2);
  load_time_ = absl::Seconds(1);  // 0.25 s a block: of four, two are read within 1.25 s / 2
  StoreKinds(1, 4);
  Start(Prompt("b", 1, 4));
  ASSERT_THAT(pending_, SizeIs(1));
  EXPECT_THAT(std::get<LoadBlocks>(pending_[0]).blocks, SizeIs(2));
  load_time_ = absl::Milliseconds(500);
  ServeOne();
  ASSERT_THAT(pending_, SizeIs(1));
  EXPECT_THAT(std::get<LoadBlocks>(pending_[0]).blocks, SizeIs(2));
  ServeAll();
  StepAll();
  EXPECT_EQ(SourcesOf("b").from_disk(), 4 * kBlockTokens);
  ServeAll();
  ExpectNothingHeld();
}

// Each load brings one block of six, and takes twice as long as it is predicted to.
TEST_F(StoredLoadsTest, LoadsOfADecodeSequenceEndBeforeItsRouterGivesUp) {
  step_time_ = absl::Seconds(2);
  load_time_ = 6 * absl::Milliseconds(900);
  StoreKinds(1, 6);
  load_time_ = absl::Milliseconds(900);
  v1::NodeCommand command = Prompt("b", 1, 6);
  command.mutable_start_decode()->set_deadline_s(600);
  const absl::Time sent = now_;
  core_->OnCommand(kRouter, command, now_);
  Take();
  while (!HasReserved("b")) {
    ASSERT_EQ(Pending<LoadBlocks>(), 1);
    now_ += absl::Milliseconds(1900);
    ServeOne();
    core_->OnTick(now_);
    Take();
  }
  EXPECT_GE(now_ - sent, node::StoredBlocks::kReserveTimeMax);
  // The prompt may have to be fetched from a node as well before the answer leaves.
  EXPECT_LT(now_ - sent + node::PrefixFetch::kTimeMax, router::RouterOptions().reserve_deadline);
  StepAll();
  ServeAll();
  EXPECT_EQ(SourcesOf("b").from_disk(), 3 * kBlockTokens);
  EXPECT_EQ(SourcesOf("b").computed(), 3 * kBlockTokens + 1);
  ExpectNothingHeld();
}

// Likewise: each load takes twice as long as it is predicted to.
TEST_F(StoredLoadsTest, NothingIsReadForAPeerThatHasGivenUp) {
  step_time_ = absl::Seconds(2);
  load_time_ = 6 * absl::Milliseconds(200);
  StoreKinds(1, 6);
  load_time_ = absl::Milliseconds(200);
  v1::NodeCommand command;
  v1::SendBlocks& send = *command.mutable_send_blocks();
  send.set_fetch(true);
  send.set_hashes(kv::PackHashes(HashesOf(1, 6)));
  send.set_receiver_node_id("peer");
  send.set_lease_id(5);
  send.set_epoch(1);
  const absl::Time sent = now_;
  core_->OnCommand(kRouter, command, now_);
  Take();
  while (transfers_.empty()) {
    ASSERT_EQ(Pending<LoadBlocks>(), 1);
    ASSERT_LT(now_ - sent, node::PrefixFetch::kTimeMax) << "another load has begun";
    now_ += absl::Milliseconds(450);
    ServeOne();
  }
  ASSERT_THAT(transfers_, SizeIs(2));
  ASSERT_TRUE(std::holds_alternative<transfer::CancelExport>(transfers_[1])) << "declined";
  EXPECT_THAT(pending_, IsEmpty());
  core_->OnTransfer(
      transfer::ExportFailed{std::get<transfer::CancelExport>(transfers_[1]).export_id,
                             absl::CancelledError("declined")},
      now_);
  Take();
  ExpectNothingHeld();
}

TEST_F(StoredLoadsTest, AnAbortedPromptsLoadIsNotRead) {
  StoreKinds(3, 2);
  const int64_t loaded = resources_->counters().blocks_loaded();
  Start(Prompt("b", 1, 2));
  const storage::StorageCommand running = pending_.at(0);
  pending_.clear();
  Start(Prompt("c", 2, 2));
  SendAbort("c");
  ASSERT_EQ(Pending<CancelLoad>(), 1);
  pending_.erase(pending_.begin());  // the load, before the storage has begun it
  const auto cancel = std::get<CancelLoad>(pending_.at(0));
  pending_.clear();
  Answer(storage::Cancelled(cancel.load));
  EXPECT_EQ(core_->load().loads(), 1) << "that of b";
  EXPECT_EQ(core_->load().blocks_quarantined(), 0);
  Serve(running);
  StepAll();
  EXPECT_FALSE(Waits("b"));
  EXPECT_EQ(resources_->counters().blocks_loaded(), loaded + 2);
  ServeAll();
  ExpectNothingHeld();
}

TEST_F(StoredLoadsTest, APromptThatJoinsACancelledLoadReadsItAgain) {
  StoreKinds(2, 2);
  Start(Prompt("b", 1, 2));
  SendAbort("b");
  ASSERT_THAT(pending_, SizeIs(2));
  const auto cancel = std::get<CancelLoad>(pending_.at(1));
  pending_.clear();
  Start(Prompt("c", 1, 2));
  EXPECT_THAT(pending_, IsEmpty());
  Answer(storage::Cancelled(cancel.load));
  EXPECT_EQ(Pending<LoadBlocks>(), 1);
  ServeAll();
  StepAll();
  EXPECT_EQ(SourcesOf("c").from_disk(), 2 * kBlockTokens);
  ServeAll();
  ExpectNothingHeld();
}

TEST_F(StoredLoadsTest, ANewerAttemptKeepsTheLoad) {
  StoreKinds(2, 2);
  Start(Prompt("b", 1, 2, /*attempt=*/1));
  Start(Prompt("b", 1, 2, /*attempt=*/2));
  EXPECT_EQ(Pending<CancelLoad>(), 0);
  ServeAll();
  StepAll();
  EXPECT_FALSE(Waits("b"));
  ServeAll();
  ExpectNothingHeld();
}

TEST_F(StoredLoadsTest, AGivenUpLoadThatNeverBeganFreesItsBlocksAtOnce) {
  StoreKinds(3, 1);
  Start(Prompt("b", 1, 1));
  const auto hung = std::get<LoadBlocks>(pending_.at(0));
  pending_.clear();
  now_ += absl::Milliseconds(100);
  Start(Prompt("c", 2, 1));
  const auto queued = std::get<LoadBlocks>(pending_.at(0));
  pending_.clear();
  now_ += absl::Milliseconds(1300);
  core_->OnTick(now_);
  Take();
  EXPECT_EQ(core_->load().blocks_quarantined(), 2);
  ASSERT_EQ(Pending<CancelLoad>(), 2);
  pending_.clear();
  Answer(storage::Cancelled(queued.load));
  EXPECT_EQ(core_->load().blocks_quarantined(), 1) << "that which the storage writes";
  Serve(hung);
  StepAll();
  EXPECT_EQ(SourcesOf("b").computed(), kBlockTokens + 1);
  EXPECT_EQ(SourcesOf("c").computed(), kBlockTokens + 1);
  ServeAll();
  ExpectNothingHeld();
}

TEST_F(StoredLoadsTest, AStorageThatHangsInASaveGetsNoMoreLoads) {
  StoreKinds(3, 2);
  Start(Prompt("new", 50, 1));
  const storage::StorageCommand hung = pending_.at(0);
  ASSERT_TRUE(std::holds_alternative<storage::SaveBlock>(hung));
  pending_.clear();
  Start(Prompt("b", 1, 2));
  const auto queued = std::get<LoadBlocks>(pending_.at(0));
  pending_.clear();
  now_ += absl::Milliseconds(1300);
  core_->OnTick(now_);
  Take();
  pending_.clear();
  Answer(storage::Cancelled(queued.load));
  EXPECT_EQ(core_->load().blocks_quarantined(), 0);
  StepAll();
  pending_.clear();
  Start(Prompt("c", 2, 2));
  EXPECT_EQ(Pending<LoadBlocks>(), 0);
  EXPECT_FALSE(Waits("c"));
  // It answers: it is asked again.
  Serve(hung);
  pending_.clear();
  Start(Prompt("d", 3, 2));
  EXPECT_EQ(Pending<LoadBlocks>(), 1);
}

}  // namespace
}  // namespace tandem::decode_node
