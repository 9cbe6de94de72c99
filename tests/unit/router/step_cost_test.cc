// Goal: what a node reports of its steps' and its storage's cost shows in the status, and a figure
// that cannot be ends the node's stream.
#include <gmock/gmock.h>

#include <limits>

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

TEST(StorageCost, ItShowsInStatusAndAnImpossibleOneEndsTheStream) {
  CoreHarness h;
  v1::Registration registration = TestRegistration("d0", v1::NODE_ROLE_DECODE);
  registration.set_max_batch_tokens(512);
  ASSERT_OK(h.Join(1, registration));
  const auto node = [&] { return h.core().GetStatus(h.now()).nodes(0); };
  EXPECT_EQ(node().max_batch_tokens(), 512);
  EXPECT_FALSE(node().has_storage_cost());
  v1::NodeMessage message;
  v1::StorageCost& cost = *message.mutable_storage_cost();
  cost.set_in_memory(true);
  cost.mutable_read()->set_bytes_per_second(2e9);
  cost.mutable_read()->set_samples(7);
  cost.mutable_write()->set_fixed_us(30);
  h.SayMessage(1, message);
  h.SayMessage(1, v1::NodeMessage());  // a heartbeat without it changes nothing
  EXPECT_TRUE(node().storage_cost().in_memory());
  EXPECT_EQ(node().storage_cost().read().bytes_per_second(), 2e9);
  EXPECT_EQ(node().storage_cost().read().samples(), 7);
  EXPECT_EQ(node().storage_cost().write().fixed_us(), 30);
  EXPECT_FALSE(node().storage_cost().has_host_read());
  cost.set_in_memory(false);
  cost.mutable_host_read()->set_bytes_per_second(9e9);
  h.SayMessage(1, message);
  EXPECT_FALSE(node().storage_cost().in_memory());
  EXPECT_EQ(node().storage_cost().read().bytes_per_second(), 2e9);
  EXPECT_EQ(node().storage_cost().host_read().bytes_per_second(), 9e9);
  cost.mutable_write()->set_bytes_per_second(std::numeric_limits<double>::infinity());
  h.SayMessage(1, message);
  ASSERT_EQ(h.disconnects().size(), 1u);
  EXPECT_THAT(h.disconnects()[0].second,
              testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("storage_cost: ")));
}

}  // namespace
}  // namespace tandem::router
