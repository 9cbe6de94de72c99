// Goal: when the first token, which another node computed, leaves the constraint no next token,
// the request is at fault, and no node: no other one is to try it.
#include "tests/unit/node/decode_core_fixture.h"

namespace tandem::decode_node {
namespace {

using FirstTokenFaultTest = DecodeCoreTest;

TEST_F(FirstTokenFaultTest, AConstraintThatLeavesNoTokenIsTheRequestsFault) {
  v1::NodeCommand command = Run("a", 4);
  v1::SequenceSpec& sequence = *command.mutable_start_decode()->mutable_sequence();
  sequence.mutable_guided()->set_regex("7x");
  sequence.mutable_sampling()->add_allowed_token_ids('7');
  CompileFor(sequence);
  const node::NodeActions reserved = Send(command);
  ASSERT_EQ(reserved.events.size(), 1u);
  const uint64_t lease = reserved.events[0].second.reserved().lease_id();
  ASSERT_NE(lease, 0u);
  v1::LegFailed failed;
  for (const auto& [router, event] : Send(Installed(lease, '7')).events)
    if (event.has_leg_failed()) failed = event.leg_failed();
  EXPECT_TRUE(failed.request_at_fault());
  EXPECT_EQ(failed.status().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(core_->idle());
}

}  // namespace
}  // namespace tandem::decode_node
