// Goal: the sequences that a draining decode node retains are sent whole, to a router that asks for
// just that, and freed in every other case; blocks adopted from a draining peer are found once they
// have come.
#include "decode_node/retained_sequences.h"

#include <string>
#include <variant>
#include <vector>

#include "tests/unit/node/decode_core_fixture.h"

namespace tandem::decode_node {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RetainedSequencesTest : public DecodeCoreTest {
 protected:
  // A sequence of 20 prompt tokens and one generated token, retained by a node that drains.
  void KeepOne() {
    Send(Run("a", 20, -1));
    node::NodeActions actions = Step();
    first_ = actions.events.back().second.tokens().steps(0).tokens(0);
    core_->BeginDrain(now_, absl::Seconds(1));
    core_->StartMigration(now_, absl::Seconds(10));
    EXPECT_THAT(resources_->TakeActions().events, IsEmpty()) << "it is whole after its next step";
    actions = Step();
    ASSERT_THAT(actions.events, SizeIs(1)) << "the step's token is not reported yet";
    EXPECT_TRUE(actions.events[0].second.leg_failed().retained());
    EXPECT_THAT(core_->PlanStep(now_), IsEmpty());
    EXPECT_FALSE(core_->idle());
  }
  v1::NodeCommand Prefill(int first_ordinal = 1) const {
    v1::NodeCommand command;
    v1::Prefill& prefill = *command.mutable_prefill();
    prefill.mutable_leg()->set_request_id("a");
    prefill.mutable_leg()->set_attempt(3);
    for (int i = 0; i < 20; ++i) prefill.mutable_sequence()->add_prompt(i);
    prefill.mutable_sequence()->add_prompt(first_.token_id());
    prefill.mutable_sequence()->set_delivered_tokens(1);
    prefill.set_lease_id(9);
    prefill.set_epoch(1);
    prefill.set_first_ordinal(first_ordinal);
    prefill.set_receiver_node_id("decode-1");
    prefill.set_deadline_s(5);
    return command;
  }
  v1::GeneratedToken first_;
};

TEST_F(RetainedSequencesTest, AreSentWholeWithTheTokenThatFollows) {
  KeepOne();
  const node::NodeActions actions = Send(Prefill());
  ASSERT_THAT(actions.transfer, SizeIs(3));
  const auto& open = std::get<transfer::OpenExport>(actions.transfer[0]);
  EXPECT_EQ(open.lease, LeaseId(9));
  EXPECT_EQ(open.first_ordinal, 1);
  EXPECT_THAT(open.blocks, SizeIs(1)) << "of two: the first lies at the receiver";
  const auto& push = std::get<transfer::PushRange>(actions.transfer[1]);
  EXPECT_EQ(push.ordinal_count, 1);
  EXPECT_EQ(push.layer_count, engine_->spec().layout.num_layers);
  const auto& fin = std::get<transfer::FinishExport>(actions.transfer[2]);
  EXPECT_EQ(fin.first_token.index(), 1);
  EXPECT_EQ(fin.tokens.cached(), 21);
  EXPECT_EQ(fin.tokens.computed(), 0);
  ASSERT_THAT(actions.events, SizeIs(2));
  EXPECT_EQ(actions.events[0].second.tokens().steps(0).tokens(0).token_id(),
            fin.first_token.token_id());
  EXPECT_TRUE(actions.events[1].second.has_prefill_finished());
  EXPECT_EQ(core_->load().exports(), 1);
  Send(transfer::ExportDone{.export_id = open.export_id, .bytes_sent = 7});
  EXPECT_TRUE(core_->idle());
  EXPECT_EQ(used(), 0);
}

TEST_F(RetainedSequencesTest, AreNotSentForOtherTokens) {
  KeepOne();
  v1::NodeCommand other = Prefill();
  other.mutable_prefill()->mutable_sequence()->set_prompt(20, first_.token_id() + 1);
  EXPECT_THAT(Refusal(Send(other)), testing::StatusIs(absl::StatusCode::kFailedPrecondition,
                                                      HasSubstr("whose KV this node retains")));
  EXPECT_TRUE(core_->idle());
}

TEST_F(RetainedSequencesTest, AreFreedByAbortsLostRoutersAndTime) {
  for (const int way : {0, 1, 2}) {
    SCOPED_TRACE(way);
    MakeFresh();
    KeepOne();
    if (way == 0) Send(Abort("a"));
    if (way == 1) core_->OnRouterLost(kRouter, now_);
    if (way == 2) core_->OnTick(now_ + absl::Seconds(5));
    EXPECT_TRUE(core_->idle());
    EXPECT_EQ(used(), 0);
    EXPECT_THAT(Refusal(Send(Prefill())),
                testing::StatusIs(absl::StatusCode::kUnavailable, HasSubstr("does not retain")));
  }
}

TEST_F(RetainedSequencesTest, AreReportedWhenTheirTransferFails) {
  KeepOne();
  const auto actions = Send(Prefill(0));
  const auto id = std::get<transfer::OpenExport>(actions.transfer[0]).export_id;
  const auto failed =
      Send(transfer::ExportFailed{.export_id = id, .status = absl::UnavailableError("gone")});
  ASSERT_THAT(failed.events, SizeIs(1));
  EXPECT_TRUE(failed.events[0].second.leg_failed().sender_side());
  EXPECT_EQ(failed.events[0].second.leg_failed().leg().attempt(), 3u);
  EXPECT_TRUE(core_->idle());
}

// The peer of a node that drains: a block is found only once it has arrived.
TEST_F(DecodeCoreTest, AdoptedBlocksAreFoundOnceTheyAreInstalled) {
  const std::vector<kv::BlockHash> hashes = {{1, 2}, {3, 4}};
  v1::NodeCommand command;
  command.mutable_adopt_blocks()->set_from_node_id("decode-1");
  command.mutable_adopt_blocks()->set_hashes(kv::PackHashes(hashes));
  command.mutable_adopt_blocks()->set_deadline_s(5);
  for (const bool arrives : {false, true}) {
    node::NodeActions actions = Send(command);
    ASSERT_THAT(actions.events, SizeIs(1));
    const v1::BlocksWanted& wanted = actions.events[0].second.blocks_wanted();
    EXPECT_EQ(wanted.from_node_id(), "decode-1");
    EXPECT_EQ(wanted.hashes(), kv::PackHashes(hashes));
    const auto& open = std::get<transfer::OpenLease>(actions.transfer.at(0));
    EXPECT_THAT(resources_->CachedBlocks(), IsEmpty());
    EXPECT_FALSE(core_->idle());
    if (arrives) {
      actions = Send(transfer::LeaseInstalled{.lease = open.lease, .epoch = open.epoch});
      EXPECT_EQ(actions.broadcast.at(0).blocks_stored().hashes().size(), 32u);
    } else {
      Send(transfer::LeaseFailed{open.lease, open.epoch, absl::DeadlineExceededError("late")});
      EXPECT_EQ(core_->load().blocks_quarantined(), 2);
      Send(transfer::LeaseDrained{open.lease});
      EXPECT_EQ(core_->load().blocks_free(), kBlocks);
    }
    EXPECT_TRUE(core_->idle());
  }
  EXPECT_THAT(resources_->CachedBlocks(), SizeIs(2));
  EXPECT_EQ(resources_->counters().blocks_adopted(), 2);
  // Nothing is left to want; nor of what is no row of hashes.
  EXPECT_EQ(Send(command).events.at(0).second.blocks_wanted().hashes(), "");
  command.mutable_adopt_blocks()->set_hashes("no hash");
  EXPECT_EQ(Send(command).events.at(0).second.blocks_wanted().hashes(), "");
}

// A peer says how long it will take to send; the blocks that wait for it are this node's.
TEST_F(DecodeCoreTest, AnAdoptionHoldsBlocksForABoundedTime) {
  v1::NodeCommand command;
  command.mutable_adopt_blocks()->set_from_node_id("decode-1");
  command.mutable_adopt_blocks()->set_hashes(kv::PackHashes({{1, 2}}));
  command.mutable_adopt_blocks()->set_deadline_s(1e300);
  const node::NodeActions actions = Send(command);
  ASSERT_THAT(actions.transfer, SizeIs(1));
  EXPECT_EQ(std::get<transfer::OpenLease>(actions.transfer[0]).deadline, now_ + absl::Seconds(30));
}

TEST_F(DecodeCoreTest, AnAdoptionWhoseSenderHasLeftEnds) {
  v1::NodeCommand command;
  command.mutable_adopt_blocks()->set_from_node_id("decode-1");
  command.mutable_adopt_blocks()->set_hashes(kv::PackHashes({{1, 2}, {3, 4}}));
  command.mutable_adopt_blocks()->set_deadline_s(5);
  const v1::NodeEvent event = Send(command).events.at(0).second;
  const uint64_t lease = event.blocks_wanted().lease_id();
  v1::NodeCommand other, gone;
  other.mutable_send_blocks()->set_lease_id(lease + 1);
  EXPECT_THAT(Send(other).transfer, IsEmpty());
  EXPECT_EQ(core_->load().blocks_used(), 2);
  gone.mutable_send_blocks()->set_lease_id(lease);
  const node::NodeActions actions = Send(gone);
  ASSERT_THAT(actions.transfer, SizeIs(1));
  EXPECT_EQ(std::get<transfer::CloseLease>(actions.transfer[0]).lease, LeaseId(lease));
  EXPECT_EQ(core_->load().blocks_quarantined(), 2);
  EXPECT_THAT(Send(gone).transfer, IsEmpty());
  Send(transfer::LeaseDrained{LeaseId(lease)});
  EXPECT_EQ(core_->load().blocks_free(), kBlocks);
  EXPECT_TRUE(core_->idle());
}

}  // namespace
}  // namespace tandem::decode_node
