// Goal: what a node reports of its steps' cost shows in the status, and a figure that cannot be
// ends the node's stream.
#include <gmock/gmock.h>

#include "tests/testing/status_matchers.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

TEST(StepCost, AStepsCostShowsInStatusAndAnImpossibleOneEndsTheStream) {
  CoreHarness h;
  h.JoinDecode(1, "d0");
  v1::NodeMessage message;
  v1::StepCost& cost = *message.mutable_step_cost();
  cost.set_step_us(900);
  cost.set_samples(3);
  h.SayMessage(1, message);
  const auto status = [&] { return h.core().GetStatus(h.now()); };
  ASSERT_EQ(status().nodes_size(), 1);
  EXPECT_EQ(status().nodes(0).step_cost().step_us(), 900);
  h.SayMessage(1, v1::NodeMessage());  // a heartbeat without it changes nothing
  EXPECT_EQ(status().nodes(0).step_cost().samples(), 3);
  cost.set_step_us(-1);
  h.SayMessage(1, message);
  ASSERT_EQ(h.disconnects().size(), 1u);
  EXPECT_THAT(h.disconnects()[0].second,
              testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step_us: -1")));
}

}  // namespace
}  // namespace tandem::router
