// Goal: a node that is asked to lend units which were lost elsewhere reads those that lie in its
// storage, and then lends them. It reads once: what it has then is what it offers.
#include <gmock/gmock.h>

#include "common/rpc/convert.h"
#include "tests/unit/node/stored_blocks_fixture.h"

namespace tandem::decode_node {
namespace {

class StoredLoansTest : public StoredBlocksTest {
 protected:
  StoredLoansTest()
      : StoredBlocksTest(Setup{.unit_tokens = kBlockTokens, .lend_blocks = kBlocks / 2}) {}
  // A block that lies on disk only.
  void StoreOne() {
    Serve("a", 1, 1);
    ASSERT_EQ(heard_.size(), 1u);
    hashes_ = {heard_.begin()->first};
    Crowd();
    ASSERT_TRUE(heard_.at(hashes_[0])) << "on disk";
  }
  v1::NodeCommand Lend(bool stored) const {
    v1::NodeCommand command;
    v1::LendBlocks& lend = *command.mutable_lend_blocks();
    lend.set_debtor_node_id("d9");
    lend.set_debtor_incarnation(4);
    lend.set_loan(7);
    lend.set_units(1);
    lend.set_hashes(kv::PackHashes(hashes_));
    lend.set_stored(stored);
    return command;
  }
  std::optional<v1::LoanOffered> Offered() const {
    for (const v1::NodeEvent& event : events_)
      if (event.has_loan_offered()) return event.loan_offered();
    return std::nullopt;
  }
  std::vector<kv::BlockHash> hashes_;
};

TEST_F(StoredLoansTest, LostUnitsAreReadAndLent) {
  StoreOne();
  Keep(Send(Lend(/*stored=*/true)));
  EXPECT_FALSE(Offered().has_value()) << "it reads";
  ServeAll();
  ASSERT_TRUE(Offered().has_value());
  EXPECT_OK(rpc::FromWire(Offered()->status()));
  EXPECT_EQ(Offered()->held_blocks(), 1);
  EXPECT_EQ(core_->load().blocks_lent(), 1);
}

TEST_F(StoredLoansTest, ADebtorThatHasTheBlocksSendsThem) {
  StoreOne();
  Keep(Send(Lend(/*stored=*/false)));
  ASSERT_TRUE(Offered().has_value());
  EXPECT_EQ(Offered()->held_blocks(), 0);
}

TEST_F(StoredLoansTest, WhatCannotBeReadIsNotWaitedForTwice) {
  StoreOne();
  disk_.clear();
  Keep(Send(Lend(/*stored=*/true)));
  ServeAll();
  ASSERT_TRUE(Offered().has_value());
  EXPECT_EQ(Offered()->held_blocks(), 0);
}

TEST_F(StoredLoansTest, AReadThatTakesTooLongIsGivenUp) {
  StoreOne();
  Keep(Send(Lend(/*stored=*/true)));
  now_ += node::StoredBlocks::kLoadTimeMax;
  core_->OnTick(now_);
  Take();
  ASSERT_TRUE(Offered().has_value());
  EXPECT_EQ(Offered()->held_blocks(), 0);
}

}  // namespace
}  // namespace tandem::decode_node
