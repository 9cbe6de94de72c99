// Goal: a node is lost when it is silent, not when the router itself was stopped and could not hear
// it; and a node that is lost costs work for the sequences that it had alone.
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(20);

TEST(LostNodes, ARouterThatWasStoppedLosesNoNode) {
  CoreHarness h;
  h.JoinDecode(1, "d0");
  h.JoinDecode(2, "d1");
  for (int stops = 0; stops < 3; ++stops) {
    h.Advance(kTick);
    h.Advance(absl::Seconds(6));  // what they said lies in the sockets
    ASSERT_TRUE(h.disconnects().empty()) << "after " << stops << " stops";
    for (const uint64_t key : {1, 2}) h.Say(key, {});
  }
  // One that stays silent is lost all the same.
  const absl::Time silent_since = h.now();
  while (h.disconnects().empty() && h.now() - silent_since < absl::Seconds(6)) {
    h.Say(2, {});
    h.Advance(kTick);
  }
  ASSERT_EQ(h.disconnects().size(), 1u);
  EXPECT_EQ(h.disconnects()[0].first, NodeKey(1));
  EXPECT_LE(h.now() - silent_since, RouterOptions().node_lost_after + kTick);
}

// Nor does one whose nodes may be silent for a short time only.
TEST(LostNodes, AShortStopIsForgivenWhereNodesAreLostSoon) {
  CoreHarness h({.node_lost_after = absl::Milliseconds(400)});
  h.JoinDecode(1, "d0");
  h.Advance(kTick);
  h.Advance(absl::Milliseconds(700));
  EXPECT_TRUE(h.disconnects().empty());
}

TEST(LostNodes, OneThatHadNoSequenceCostsNone) {
  CoreHarness h;
  h.JoinDecode(1, "d0");
  for (int i = 0; i < 10; ++i) ASSERT_OK(h.Submit(absl::StrCat("r", i), 10));
  h.JoinDecode(2, "d1");
  const int64_t settled = h.core().sequences_settled();
  h.Lose(2);
  EXPECT_EQ(h.core().sequences_settled(), settled);
  h.JoinDecode(3, "d2");
  h.Lose(1);
  EXPECT_EQ(h.commands()[3].size(), 10u) << "the others' sequences go on elsewhere";
  EXPECT_LE(h.core().sequences_settled(), settled + 2 * 10);
}

}  // namespace
}  // namespace tandem::router
