// Goal: a node that has too many leases open already refuses the leg, at once and as its own fault:
// the router looks for another decode node and blames no sender.
#include <gmock/gmock.h>

#include "tests/unit/node/decode_core_fixture.h"

namespace tandem::decode_node {
namespace {

using ::testing::SizeIs;

class RefusedLeaseTest : public DecodeCoreTest {
 protected:
  void ExpectRefused(const node::NodeActions& actions) {
    ASSERT_THAT(actions.events, SizeIs(1));
    const v1::LegFailed& failed = actions.events[0].second.leg_failed();
    EXPECT_FALSE(failed.sender_side());
    EXPECT_EQ(failed.status().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
    ASSERT_THAT(actions.transfer, SizeIs(1));
    EXPECT_EQ(std::get<transfer::CloseLease>(actions.transfer[0]).lease, LeaseId(1));
    Send(transfer::LeaseDrained{LeaseId(1)});
    EXPECT_EQ(used(), 0);
    EXPECT_TRUE(core_->idle());
  }
  const transfer::LeaseFailed refused_{LeaseId(1), Epoch(1),
                                       absl::ResourceExhaustedError("4096 leases are open")};
};

TEST_F(RefusedLeaseTest, EndsTheLeg) {
  Send(Run("a", 20));
  ExpectRefused(Send(refused_));
}

TEST_F(RefusedLeaseTest, AlsoWhenItsSenderWasReplacedMeanwhile) {
  Send(Run("a", 20));
  Send(NewEpoch("a", 1, 2));
  ExpectRefused(Send(refused_));
}

}  // namespace
}  // namespace tandem::decode_node
