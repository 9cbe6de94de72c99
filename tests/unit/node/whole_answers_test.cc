// Goal: an answer that its constraint calls complete with the tokens that were delivered elsewhere
// ends on its next node without another token, wherever its prompt's KV is to come from.
#include <gmock/gmock.h>

#include "tests/unit/node/decode_core_fixture.h"

namespace tandem::decode_node {
namespace {

using ::testing::SizeIs;

class WholeAnswerTest : public DecodeCoreTest {
 protected:
  // A prompt of four tokens and three of the answer.
  static v1::NodeCommand Continued(int local_max) {
    v1::NodeCommand command = Run("a", 4, local_max);
    v1::SequenceSpec& sequence = *command.mutable_start_decode()->mutable_sequence();
    for (const char digit : {'1', '2', '3'}) sequence.add_prompt(digit);
    sequence.set_delivered_tokens(3);
    sequence.mutable_stop()->set_max_tokens(30);
    sequence.mutable_guided()->set_regex("[0-9]{3}");
    return command;
  }
};

TEST_F(WholeAnswerTest, EndsOnADecodeNodeWithoutAnotherToken) {
  for (const int local_max : {-1, 0}) {
    SCOPED_TRACE(local_max);
    MakeFresh();
    const v1::NodeCommand command = Continued(local_max);
    CompileFor(command.start_decode().sequence());
    const node::NodeActions reserved = Send(command);
    ASSERT_THAT(reserved.events, SizeIs(1));
    ASSERT_TRUE(reserved.events[0].second.has_reserved());
    const node::NodeActions ended = Step();
    ASSERT_THAT(ended.events, SizeIs(1));
    ASSERT_TRUE(ended.events[0].second.has_leg_finished());
    EXPECT_EQ(ended.events[0].second.leg_finished().reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(ended.events[0].second.leg_finished().output_tokens(), 3);
    if (local_max == 0) {
      EXPECT_FALSE(core_->idle()) << "the sender may still write to the lease";
      Send(transfer::LeaseDrained{.lease =
                                      LeaseId(reserved.events[0].second.reserved().lease_id())});
    }
    EXPECT_TRUE(core_->idle());
  }
}

// The scores come before any token, and a leg that has ended sends none.
TEST_F(WholeAnswerTest, DoesNotEndBeforeItsPromptIsScored) {
  v1::NodeCommand command = Continued(-1);
  command.mutable_start_decode()->mutable_sequence()->set_prompt_logprobs(0);
  command.mutable_start_decode()->mutable_sequence()->add_eos_token_ids(256);
  CompileFor(command.start_decode().sequence());
  Send(command);
  const node::NodeActions step = Step();
  int scores = 0;
  for (const auto& [router, event] : step.events) scores += event.prompt_scored().tokens_size();
  EXPECT_EQ(scores, 3);
}

}  // namespace
}  // namespace tandem::decode_node
