// Goal: what a constraint says of the token after an answer's last one does not matter, wherever
// the last one was generated: the answer ends as it would without the constraint.
#include <gmock/gmock.h>

#include "tests/unit/node/decode_core_fixture.h"

namespace tandem::decode_node {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LastTokenTest : public DecodeCoreTest {
 protected:
  // After a 7 the constraint demands an x, which is not allowed.
  static v1::NodeCommand Stuck(int local_max) {
    v1::NodeCommand command = Run("a", 4, local_max);
    v1::SequenceSpec& sequence = *command.mutable_start_decode()->mutable_sequence();
    sequence.mutable_guided()->set_regex("7x");
    sequence.mutable_sampling()->add_allowed_token_ids('7');
    return command;
  }
  // The event that ended the leg.
  static v1::NodeEvent EndOf(const node::NodeActions& actions) {
    v1::NodeEvent end;
    for (const auto& [router, event] : actions.events) {
      if (event.has_leg_finished() || event.has_leg_failed()) end = event;
    }
    return end;
  }
};

TEST_F(LastTokenTest, EndsTheAnswerThoughTheConstraintHasNoOtherToken) {
  for (const bool by_length : {true, false}) {
    SCOPED_TRACE(by_length);
    MakeFresh();
    v1::NodeCommand command = Stuck(-1);
    v1::StopParams& stop = *command.mutable_start_decode()->mutable_sequence()->mutable_stop();
    if (by_length) stop.set_max_tokens(1);
    if (!by_length) stop.add_stop_token_ids('7');
    CompileFor(command.start_decode().sequence());
    Send(command);
    const v1::NodeEvent end = EndOf(Step());
    EXPECT_THAT(end.leg_failed().status().message(), IsEmpty());
    EXPECT_EQ(end.leg_finished().reason(),
              by_length ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_STOP);
    EXPECT_EQ(end.leg_finished().output_tokens(), 1);
    EXPECT_TRUE(core_->idle());
  }
}

// The constraint reads what was delivered, and then the last token, before the next step.
TEST_F(LastTokenTest, EndsAnAnswerThatBeganElsewhere) {
  for (const bool fits : {true, false}) {
    SCOPED_TRACE(fits);
    MakeFresh();
    v1::NodeCommand command = Stuck(0);
    v1::SequenceSpec& sequence = *command.mutable_start_decode()->mutable_sequence();
    sequence.mutable_guided()->set_regex("[0-9]7x");
    sequence.add_prompt(fits ? '1' : 'x');
    sequence.set_delivered_tokens(1);
    sequence.mutable_stop()->set_max_tokens(2);
    CompileFor(sequence);
    const node::NodeActions reserved = Send(command);
    ASSERT_THAT(reserved.events, SizeIs(1));
    ASSERT_TRUE(reserved.events[0].second.has_reserved());
    Send(Installed(reserved.events[0].second.reserved().lease_id(), '7', 1));
    const v1::NodeEvent end = EndOf(Step());
    EXPECT_EQ(end.leg_finished().reason(), fits ? v1::FINISH_REASON_LENGTH : 0);
    EXPECT_EQ(end.leg_failed().request_at_fault(), !fits)
        << "a text that does not fit is no answer";
    EXPECT_TRUE(core_->idle());
  }
}

}  // namespace
}  // namespace tandem::decode_node
