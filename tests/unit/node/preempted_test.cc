// Goal: a preempted sequence gets from storage what memory has lost of it, instead of computing it
// again; its answer is that of a sequence which ran alone, whatever storage does, and nothing of a
// read stays behind.
#include "common/node/stored_blocks.h"
#include "tests/unit/node/stored_blocks_fixture.h"

namespace tandem::decode_node {
namespace {

using ::testing::SizeIs;

// Two sequences that grow from four to six of eight blocks each: the second is preempted.
class PreemptedTest : public StoredBlocksTest {
 protected:
  static v1::NodeCommand Long(const std::string& id, int kind) {
    v1::NodeCommand command = Prompt(id, kind, 2);
    command.mutable_start_decode()->mutable_sequence()->mutable_stop()->set_max_tokens(60);
    return command;
  }
  // Plans and computes one step; counts its rows. False: there is nothing to compute.
  bool StepOnce() {
    const auto slices = core_->PlanStep(now_);
    Take();
    if (slices.empty()) return false;
    for (const engine::SequenceSlice& slice : slices) rows_ += slice.num_new;
    now_ += step_time_;
    core_->OnStepDone(engine_->Step(slices, [](int) {}), now_);
    Take();
    return true;
  }
  void ServeSaves() {
    std::vector<storage::StorageCommand> loads;
    while (!pending_.empty()) {
      const storage::StorageCommand command = pending_.front();
      pending_.erase(pending_.begin());
      if (std::holds_alternative<storage::LoadBlocks>(command))
        loads.push_back(command);
      else
        Serve(command);
    }
    pending_ = std::move(loads);
  }
  // Until both have ended, or nothing can be computed while the storage reads.
  void RunUntilItReads() {
    core_->OnCommand(kRouter, Long("a", 1), now_);
    core_->OnCommand(kRouter, Long("b", 2), now_);
    Take();
    do ServeSaves();
    while (StepOnce());
  }
  std::vector<TokenId> Alone(const std::string& id, int kind) {
    core_->OnCommand(kRouter, Long(id, kind), now_);
    Take();
    do ServeAll();
    while (StepOnce());
    return TokensOf(id);
  }
  void ExpectTheAnswers() {
    const auto a = TokensOf("a"), b = TokensOf("b");
    EXPECT_EQ(a.size(), 60u);
    EXPECT_EQ(Alone("a again", 1), a);
    EXPECT_EQ(Alone("b again", 2), b);
  }
  int64_t rows_ = 0;
};

TEST_F(PreemptedTest, ItsBlocksAreReadBackInsteadOfComputed) {
  RunUntilItReads();
  EXPECT_EQ(resources_->counters().preemptions(), 1);
  ASSERT_THAT(pending_, SizeIs(1));
  const auto read = std::get<storage::LoadBlocks>(pending_[0]).blocks.size();
  EXPECT_GT(read, 0u);
  EXPECT_EQ(TokensOf("a").size(), 60u);
  EXPECT_LT(TokensOf("b").size(), 60u);
  const int64_t before = rows_;
  ServeAll();
  while (StepOnce()) ServeAll();
  EXPECT_EQ(resources_->counters().blocks_loaded(), static_cast<int64_t>(read));
  // The rest of its answer, and at most one block of what it had computed.
  EXPECT_LE(rows_ - before, 60 + kBlockTokens);
  ExpectTheAnswers();
  ExpectNothingHeld();
}

TEST_F(PreemptedTest, AStorageThatHangsCostsItsPatienceOnly) {
  RunUntilItReads();
  ASSERT_THAT(pending_, SizeIs(1));
  const storage::StorageCommand load = pending_[0];
  pending_.clear();
  EXPECT_FALSE(StepOnce());
  now_ += node::StoredBlocks::kLoadTimeMax + absl::Seconds(1);
  core_->OnTick(now_);
  while (StepOnce()) ServeSaves();
  EXPECT_EQ(TokensOf("b").size(), 60u);
  EXPECT_EQ(resources_->counters().loads_given_up(), 1);
  Serve(load);
  ServeAll();
  ExpectTheAnswers();
  ExpectNothingHeld();
}

TEST_F(PreemptedTest, OneThatEndsWhileItIsReadLeavesNothing) {
  RunUntilItReads();
  ASSERT_THAT(pending_, SizeIs(1));
  core_->OnCommand(kRouter, Abort("b"), now_);
  Take();
  ServeAll();
  EXPECT_FALSE(StepOnce());
  ExpectNothingHeld();
}

TEST_F(PreemptedTest, WhatIsSlowerToReadThanToComputeIsComputed) {
  load_time_ = absl::Seconds(100);
  RunUntilItReads();  // the first load tells how slow the storage is
  ServeAll();
  while (StepOnce()) ServeAll();
  const int64_t loaded = resources_->counters().blocks_loaded();
  core_->OnCommand(kRouter, Long("c", 3), now_);
  core_->OnCommand(kRouter, Long("d", 4), now_);
  Take();
  do ServeAll();
  while (StepOnce());
  EXPECT_EQ(resources_->counters().preemptions(), 2);
  EXPECT_EQ(resources_->counters().blocks_loaded(), loaded);
  EXPECT_EQ(TokensOf("d").size(), 60u);
}

// Goal: the scheduler hears what a victim's blocks would cost, as storage has them.
TEST_F(PreemptedTest, StorageTellsWhatReadingBackWouldCost) {
  const v1::NodeCommand prompt = Prompt("a", 1, 4);
  ASSERT_OK_AND_ASSIGN(
      const node::SequenceInput input,
      node::ParseSequence(prompt.start_decode().sequence(), 0, engine_->spec(), nullptr));
  std::vector<kv::BlockHash> hashes = resources_->scheduler().HashesOf(input);
  ASSERT_THAT(hashes, SizeIs(4));
  EXPECT_EQ(resources_->stored_blocks().ReadOf(hashes).blocks, 0);
  Serve("a", 1, 4);
  Crowd();
  Serve("a again", 1, 4);
  ASSERT_EQ(resources_->counters().blocks_loaded(), 4);
  const node::StoredPrices::Read all = resources_->stored_blocks().ReadOf(hashes);
  EXPECT_EQ(all.blocks, 4);
  EXPECT_GT(all.us, 0);
  const auto part = resources_->stored_blocks().ReadOf(absl::MakeConstSpan(hashes).first(2));
  EXPECT_EQ(part.blocks, 2);
  EXPECT_DOUBLE_EQ(part.us, all.us / 2);
  hashes.resize(7);  // three that it has never seen
  EXPECT_EQ(resources_->stored_blocks().ReadOf(hashes).blocks, 4);
  EXPECT_DOUBLE_EQ(resources_->stored_blocks().ReadOf(hashes).us, all.us);
}

// A node whose sequences may outgrow it.
class HeldBackTest : public PreemptedTest {
 protected:
  static constexpr int64_t kArrived = 100;
  HeldBackTest() {
    core_.reset();
    resources_ = std::make_unique<node::NodeResources>(
        node::SchedulerOptions{.spec = engine_->spec(),
                               .num_blocks = kBlocks,
                               .max_batch_tokens = 64,
                               .max_sequences = 2,
                               .max_waiting = 2,
                               .borrows = true,
                               .stored_blocks = std::make_shared<const storage::StorageContents>(
                                   storage::StorageContents{.tiers = tiers_, .on_disk = {}})});
    core_ = std::make_unique<DecodeCore>(*resources_);
    Take();
  }
  bool IsOfFirst(const kv::BlockHash& hash) const {
    const node::Sequence* first = resources_->scheduler().Find(node::SequenceId(1));
    return first != nullptr &&
           std::find(first->hashes.begin(), first->hashes.end(), hash) != first->hashes.end();
  }
  // A storage that does not keep what is the first one's, unless keeps_first_.
  void ServeKept() {
    while (!pending_.empty()) {
      const storage::StorageCommand command = pending_.front();
      pending_.erase(pending_.begin());
      const auto* save = std::get_if<storage::SaveBlock>(&command);
      if (save != nullptr && !keeps_first_ && IsOfFirst(save->block.first))
        Answer(storage::BlockSaved{.block = save->block});
      else
        Serve(command);
    }
  }
  // Two sequences whose blocks lie in storage alone. The first has given way to an older one of
  // another node.
  void HoldTheFirstBack() {
    v1::NodeCommand first = Long("a", 1);
    first.mutable_start_decode()->mutable_sequence()->mutable_stop()->set_max_tokens(160);
    first.mutable_start_decode()->set_borrow_blocks_max(20);
    first.mutable_start_decode()->set_arrived_us(kArrived);
    core_->OnCommand(kRouter, first, now_);
    core_->OnCommand(kRouter, Long("b", 2), now_);
    Take();
    do ServeKept();
    while (resources_->counters().preemptions() == 0 && StepOnce());
    ASSERT_EQ(resources_->counters().preemptions(), 1);
    ASSERT_TRUE(resources_->scheduler().HoldBack({kArrived - 1, NodeId("d9")}));
    kv::BlockPool& pool = resources_->scheduler().pool();
    ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> others, pool.Allocate(kBlocks));
    for (const BlockId block : others) pool.Unref(block);
    Take();
    ServeKept();
  }
  bool keeps_first_ = true;
};

TEST_F(HeldBackTest, NothingIsReadForOneThatIsHeldBackAndThoseBehindItAreRead) {
  HoldTheFirstBack();
  const size_t before = TokensOf("b").size();
  EXPECT_FALSE(StepOnce()) << "b waits for its blocks";
  ASSERT_THAT(pending_, SizeIs(1));
  const auto& load = std::get<storage::LoadBlocks>(pending_[0]);
  EXPECT_EQ(load.blocks[0].first, HashesOf(2, 2)[0]);
  const auto read = load.blocks.size();
  ServeAll();
  const int64_t rows = rows_;
  while (TokensOf("b").size() == before) ASSERT_TRUE(StepOnce());
  EXPECT_EQ(resources_->counters().blocks_loaded(), static_cast<int64_t>(read));
  EXPECT_LE(rows_ - rows, kBlockTokens);
}

// There is room for one of them, and storage has only the second one's blocks.
TEST_F(HeldBackTest, TheRoomOfTheNextIsNotTakenByAReadForTheOneBehindIt) {
  keeps_first_ = false;
  HoldTheFirstBack();
  resources_->scheduler().EndHoldBack({kArrived, NodeId("d9")});
  EXPECT_TRUE(StepOnce());
  EXPECT_EQ(resources_->scheduler().running().begin()->second->id, node::SequenceId(1));
  for (const storage::StorageCommand& command : pending_)
    EXPECT_FALSE(std::holds_alternative<storage::LoadBlocks>(command));
}

}  // namespace
}  // namespace tandem::decode_node
