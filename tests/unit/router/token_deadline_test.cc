// Goal: a deadline that moves later with each token, and with each word that the sequence waits,
// still comes when these stop.
#include <gmock/gmock.h>

#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

enum class Word { kToken, kWaits };

void ExpectTheDeadlineAfter(Word word) {
  RouterOptions options;
  options.token_deadline = absl::Seconds(60);
  options.node_lost_after = absl::Hours(1);
  CoreHarness h(options);
  h.JoinDecode(1, "d0");
  ASSERT_OK(h.Submit("r", 4, 100));
  const v1::Leg leg = h.NextRun(1).leg();
  v1::NodeEvent reserved, installed;
  *reserved.mutable_reserved()->mutable_leg() = leg;
  reserved.mutable_reserved()->set_computes_locally(true);
  *installed.mutable_installed()->mutable_leg() = leg;
  h.Say(1, {reserved, installed});
  // A word each 40 s moves the deadline past several of its former times.
  for (int32_t index = 0; index < 8; ++index) {
    v1::NodeEvent event;
    v1::TokensGenerated::Step& step = *event.mutable_tokens()->add_steps();
    *step.mutable_leg() = leg;
    if (word == Word::kToken) {
      step.add_tokens()->set_token_id(7);
      step.mutable_tokens(0)->set_index(index);
    }
    h.Say(1, {event});
    h.Advance(absl::Seconds(40));
  }
  EXPECT_TRUE(h.Quiet(1));
  h.Advance(absl::Seconds(21));
  h.ExpectAbort(1, leg.attempt());
}

TEST(TokenDeadline, ComesAfterTokensThatMovedIt) { ExpectTheDeadlineAfter(Word::kToken); }

// A sequence that was preempted has no token for long, and its node is not at fault.
TEST(TokenDeadline, ComesAfterWordsThatTheSequenceWaits) { ExpectTheDeadlineAfter(Word::kWaits); }

}  // namespace
}  // namespace tandem::router
