// Goal: what a sequence has lost with a creditor is read from its own node's storage, as far as
// that has it, and is not computed; the tokens are those of a sequence that lost nothing, whatever
// the storage does, other sequences go on meanwhile, and nothing is left behind.
#include <gmock/gmock.h>

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "tests/unit/node/block_bytes.h"
#include "tests/unit/node/lost_units_fixture.h"

namespace tandem::decode_node {
namespace {

using ::testing::SizeIs;

class StoredUnitsTest : public LostUnitsTest {
 protected:
  StoredUnitsTest()
      : LostUnitsTest(Setup{.unit_tokens = kUnitTokens,
                            .context_tokens = 1000,
                            .lend_blocks = kLendable,
                            .blocks = kPool,
                            .stored_blocks = std::make_shared<const storage::StorageContents>(
                                storage::StorageContents{
                                    .tiers = storage::TierSet::Of(storage::StoreTier::kHost)})}) {}

  // Host memory of any size. Loads wait for ServeLoads.
  void OnStorageCommand(const storage::StorageCommand& command) override {
    if (const auto* save = std::get_if<storage::SaveBlock>(&command)) {
      host_[save->block.first] = node::BytesOf(*engine_, save->block.second);
      storage::BlockSaved saved{.block = save->block};
      saved.tiers.Add(storage::StoreTier::kHost);
      saved.written.host = {engine_->spec().layout.block_bytes(), absl::Microseconds(1)};
      core_->OnStorage(saved, now_);
    } else if (const auto* load = std::get_if<storage::LoadBlocks>(&command)) {
      loads_.push_back(*load);
    }
  }
  void ServeLoads() {
    for (const storage::LoadBlocks& load : std::exchange(loads_, {})) {
      storage::BlocksLoaded loaded{.load = load.load};
      for (const auto& [hash, block] : load.blocks) {
        const auto found = host_.find(hash);
        if (found == host_.end()) {
          loaded.changed.push_back({hash, {}});
          ++loaded.damaged;
          break;
        }
        node::SetBytes(*engine_, block, found->second);
        ++loaded.loaded;
        loaded.from.push_back(storage::StoreTier::kHost);
        loaded.read.host.bytes += engine_->spec().layout.block_bytes();
        loaded.read.host.time += absl::Microseconds(1);
      }
      core_->OnStorage(loaded, now_);
      AnswerLoans(resources_->TakeActions());
    }
  }
  // The oldest units are lost. Memory has had to make room for others since they were lent.
  int64_t LoseTheOldest() {
    Send(Answer("r", kPrompt, kAnswer));
    RunUntilLoans(4);
    const int64_t rows = UnitsOf(0) * kUnitTokens;
    Lose(LoanOf(0));
    EXPECT_NE(First().rebuild, nullptr);
    return rows;
  }
  void ExpectRightTokens() {
    for (int i = 0; i < 3000 && std::ssize(tokens_["r"]) < kAnswer; ++i) {
      RunStep();
      ServeLoads();
    }
    EXPECT_EQ(tokens_["r"], Expected());
    EXPECT_EQ(core_->load().loads(), 0);
    ExpectAllGone();
  }

  std::map<kv::BlockHash, std::string> host_;
  std::vector<storage::LoadBlocks> loads_;
};

TEST_F(StoredUnitsTest, LostUnitsAreReadInsteadOfComputed) {
  LoseTheOldest();
  const auto tokens = std::ssize(First().tokens);
  const int64_t before = rows_;
  for (int i = 0; i < 100 && First().rebuild != nullptr; ++i) {
    RunStep();
    ServeLoads();
  }
  EXPECT_EQ(First().rebuild, nullptr);
  EXPECT_EQ(rows_ - before, std::ssize(First().tokens) - tokens) << "rows of new tokens alone";
  EXPECT_GT(resources_->counters().blocks_loaded(), 0);
  EXPECT_EQ(resources_->scheduler().rebuilds().rows, 0);
  ExpectRightTokens();
}

TEST_F(StoredUnitsTest, OtherSequencesGoOnWhileItWaits) {
  LoseTheOldest();
  Send(Answer("other", 10, 10));
  RunStep();
  ASSERT_THAT(loads_, SizeIs(1));
  const auto tokens = std::ssize(First().tokens);
  RunToEnd("other", 10);
  EXPECT_EQ(std::ssize(First().tokens), tokens);
  EXPECT_NE(First().rebuild, nullptr);
  ExpectRightTokens();
}

// One that is served before it needs a block meanwhile, and the lost units could take all there
// are.
TEST_F(StoredUnitsTest, AReadLeavesABlockForEachOtherSequence) {
  constexpr int kLate = 20, kTokens = 30;
  v1::NodeCommand late = Answer("r", kPrompt, kAnswer);
  late.mutable_start_decode()->mutable_sequence()->set_priority(kLate);
  Send(late);
  RunUntilLoans(4);
  lends_ = false;
  const auto available = [this] { return resources_->scheduler().block_counts().available(); };
  while (available() > 4) RunStep();
  const int64_t lost = UnitsOf(0) * kUnitBlocks;
  Lose(LoanOf(0));
  Send(Answer("front", 10, kTokens));
  ASSERT_LE(available(), lost);
  RunStep();
  ASSERT_THAT(loads_, SizeIs(1));
  RunToEnd("front", kTokens);
  EXPECT_EQ(resources_->counters().loads_given_up(), 0) << "it has waited for the read";
  EXPECT_EQ(resources_->counters().preemptions(), 0);
  ASSERT_NE(First().rebuild, nullptr);
  lends_ = true;
  ExpectRightTokens();
}

TEST_F(StoredUnitsTest, WhatCannotBeReadIsComputed) {
  const int64_t lost = LoseTheOldest();
  host_.clear();
  RunStep();
  ASSERT_THAT(loads_, SizeIs(1));
  ServeLoads();
  EXPECT_EQ(RunThroughRebuild("r"), lost);
  EXPECT_GT(resources_->counters().blocks_damaged(), 0);
  ExpectRightTokens();
}

TEST_F(StoredUnitsTest, AStorageThatHangsCostsItsPatienceOnly) {
  const int64_t lost = LoseTheOldest();
  RunStep();
  ASSERT_THAT(loads_, SizeIs(1));
  EXPECT_EQ(RunStep(), 0) << "it waits";
  now_ += node::StoredBlocks::kLoadTimeMax;
  // What the load was to write takes up room until the storage answers, so a unit that the
  // sequence has kept may have to give way.
  const int64_t rows = RunThroughRebuild("r");
  EXPECT_GE(rows, lost);
  EXPECT_LE(rows, lost + kUnitTokens);
  EXPECT_EQ(resources_->counters().loads_given_up(), 1);
  EXPECT_EQ(resources_->scheduler().rebuilds().begun, 1) << "it has kept the rest";
  ExpectRightTokens();
}

TEST_F(StoredUnitsTest, OneThatIsAbortedMeanwhileLeavesNothing) {
  LoseTheOldest();
  RunStep();
  ASSERT_THAT(loads_, SizeIs(1));
  AnswerLoans(Send(Abort("r")));
  RunStep();
  ServeLoads();
  EXPECT_EQ(core_->load().loads(), 0);
  ExpectAllGone();
}

}  // namespace
}  // namespace tandem::decode_node
