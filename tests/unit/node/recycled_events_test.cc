// Goal: an event that a driver gave back is used again, and nothing that was in it is sent twice.
#include <gmock/gmock.h>

#include "tests/unit/node/decode_core_fixture.h"

namespace tandem::decode_node {
namespace {

using ::testing::ElementsAre;

// A driver gives back the events that it has sent; what was in one is in no later one.
TEST_F(DecodeCoreTest, AnEventThatIsUsedAgainHoldsNewTokensAlone) {
  v1::NodeCommand numbered = Run("a", 4, -1);
  numbered.mutable_start_decode()->mutable_leg()->set_number(9);
  Send(numbered);
  v1::NodeCommand unnumbered = Run("b", 4, -1);
  Send(unnumbered);
  node::NodeActions actions;
  int32_t steps = 0;
  for (int32_t index = 0; index < 3; ++index) {
    core_->OnStepDone(engine_->Step(core_->PlanStep(now_), [](int) {}), now_);
    resources_->TakeActions(actions);
    for (auto& [router, event] : actions.events) {
      if (!event.has_tokens()) continue;
      ++steps;
      const v1::TokensGenerated& tokens = event.tokens();
      EXPECT_THAT(tokens.plain().leg_numbers(), ElementsAre(9u));
      EXPECT_THAT(tokens.plain().leg_attempts(), ElementsAre(1u));
      EXPECT_THAT(tokens.plain().indices(), ElementsAre(index));
      EXPECT_EQ(tokens.plain().token_ids_size(), 1);
      EXPECT_EQ(tokens.plain().logprobs_size(), 1);
      ASSERT_EQ(tokens.steps_size(), 1);
      EXPECT_EQ(tokens.steps(0).leg().request_id(), "b");
      EXPECT_EQ(tokens.steps(0).tokens(0).index(), index);
    }
    for (auto& [router, event] : actions.events) resources_->Recycle(std::move(event));
  }
  EXPECT_EQ(steps, 3);
}

}  // namespace
}  // namespace tandem::decode_node
