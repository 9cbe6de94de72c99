// Goal: a node reports as often as its most impatient router asks, and the first time so: one that
// joined just now must not be silent until its own plan says otherwise.
#include "common/node/heartbeat_pace.h"

#include <gtest/gtest.h>

namespace tandem::node {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(10);

// The longest time without a report, looked at each 10 ms.
absl::Duration LongestSilence(HeartbeatPace& pace, absl::Time from, absl::Duration length) {
  absl::Time last = from;
  absl::Duration longest;
  for (absl::Time now = from; now < from + length; now += kTick) {
    longest = std::max(longest, now - last);
    if (pace.TakeDue(now)) last = now;
  }
  return longest;
}

TEST(HeartbeatPace, IsTheAskedOneFromTheMomentItIsAsked) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  HeartbeatPace pace(absl::Seconds(1));
  EXPECT_TRUE(pace.TakeDue(start));  // before it has joined
  EXPECT_FALSE(pace.TakeDue(start + absl::Milliseconds(100)));
  pace.RequestInterval(absl::Milliseconds(250), start + absl::Milliseconds(100));
  EXPECT_LE(LongestSilence(pace, start + absl::Milliseconds(100), absl::Seconds(5)),
            absl::Milliseconds(250));
}

TEST(HeartbeatPace, FollowsTheMostImpatientRouter) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  HeartbeatPace pace(absl::Seconds(1));
  pace.RequestInterval(absl::Seconds(5), start);
  EXPECT_EQ(LongestSilence(pace, start, absl::Minutes(1)), absl::Seconds(5));
  pace.RequestInterval(absl::Milliseconds(500), start + absl::Minutes(1));
  pace.RequestInterval(absl::Seconds(2), start + absl::Minutes(1));
  EXPECT_LE(LongestSilence(pace, start + absl::Minutes(1), absl::Minutes(1)),
            absl::Milliseconds(500));
  pace.RequestInterval(absl::ZeroDuration(), start + absl::Minutes(2));
  EXPECT_GE(LongestSilence(pace, start + absl::Minutes(2), absl::Minutes(1)), HeartbeatPace::kMin);
}

}  // namespace
}  // namespace tandem::node
