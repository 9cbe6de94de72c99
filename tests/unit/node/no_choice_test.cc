// Goal: a sequence for which the engine finds no token to choose ends its own request, with a
// status that says why, and not the step: the others of its batch go on.
#include <vector>

#include "decode_core_fixture.h"

namespace tandem::decode_node {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST_F(DecodeCoreTest, ASequenceWithoutATokenToChooseFailsAloneAndForGood) {
  v1::NodeCommand without = Run("without", 20);
  without.mutable_start_decode()->mutable_sequence()->mutable_sampling()->add_allowed_token_ids(5);
  Send(without);
  Send(Installed(1, 65));
  Send(Run("with", 20));
  Send(Installed(2, 65));
  ASSERT_THAT(core_->PlanStep(now_), SizeIs(2));
  core_->OnStepDone(std::vector<engine::SampledToken>{{.no_choice = true}, {.token = 66}}, now_);
  const node::NodeActions actions = resources_->TakeActions();
  int failed = 0, generated = 0;
  for (const auto& [router, event] : actions.events) {
    if (event.has_leg_failed()) {
      ++failed;
      EXPECT_EQ(event.leg_failed().leg().request_id(), "without");
      EXPECT_TRUE(event.leg_failed().request_at_fault());
      EXPECT_EQ(event.leg_failed().status().code(),
                static_cast<int>(absl::StatusCode::kInvalidArgument));
      EXPECT_THAT(event.leg_failed().status().message(), HasSubstr("at position 21"));
    }
    if (event.has_tokens()) ++generated;
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(generated, 1);
  EXPECT_THAT(core_->PlanStep(now_), SizeIs(1)) << "the other one goes on";
}

// Without a restriction it is the node's fault: its logits are no numbers. Another node may answer.
TEST_F(DecodeCoreTest, ASequenceWhoseLogitsAreNoNumbersMayGoOnElsewhere) {
  Send(Run("without", 20));
  Send(Installed(1, 65));
  ASSERT_THAT(core_->PlanStep(now_), SizeIs(1));
  core_->OnStepDone(std::vector<engine::SampledToken>{{.no_choice = true}}, now_);
  int failed = 0;
  for (const auto& [router, event] : resources_->TakeActions().events) {
    if (!event.has_leg_failed()) continue;
    ++failed;
    EXPECT_FALSE(event.leg_failed().request_at_fault());
    EXPECT_EQ(event.leg_failed().status().code(), static_cast<int>(absl::StatusCode::kInternal));
  }
  EXPECT_EQ(failed, 1);
}

}  // namespace
}  // namespace tandem::decode_node
