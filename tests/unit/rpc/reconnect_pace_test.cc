// Goal: a node that has just lost its router tries to reach it often, because requests wait there
// for the node; it tries a router that stays away less often.
#include "common/rpc/reconnect_pace.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::rpc {
namespace {

// The times of the tries while no router answers; the pace is asked every 50 ms, as nodes do.
std::vector<absl::Duration> Tries(ReconnectPace& pace, absl::Time from, absl::Duration length) {
  std::vector<absl::Duration> tries;
  for (absl::Duration at; at < length; at += absl::Milliseconds(50)) {
    if (!pace.Due(from + at)) continue;
    pace.OnTry(from + at);
    tries.push_back(at);
  }
  return tries;
}

void ExpectOftenThenSeldom(const std::vector<absl::Duration>& tries) {
  ASSERT_GT(tries.size(), 1u);
  EXPECT_EQ(tries.front(), absl::ZeroDuration());
  int often = 0, seldom = 0;
  for (size_t i = 1; i < tries.size(); ++i) {
    const absl::Duration gap = tries[i] - tries[i - 1];
    EXPECT_GE(gap, absl::Milliseconds(100));
    if (tries[i] < absl::Seconds(15)) {
      ++often;
      EXPECT_LE(gap, absl::Milliseconds(250)) << "before " << tries[i];
    } else if (tries[i] > absl::Seconds(25)) {
      ++seldom;
      EXPECT_EQ(gap, absl::Seconds(2)) << "before " << tries[i];
    }
  }
  EXPECT_GE(often, 50);
  EXPECT_GE(seldom, 15);
}

TEST(ReconnectPace, TriesOftenWhileTheRouterIsLikelyToReturn) {
  ReconnectPace pace;
  ExpectOftenThenSeldom(Tries(pace, absl::FromUnixSeconds(1000), absl::Minutes(1)));
}

TEST(ReconnectPace, StartsAgainAfterAMessage) {
  ReconnectPace pace;
  Tries(pace, absl::FromUnixSeconds(1000), absl::Minutes(1));
  pace.OnMessage();
  ExpectOftenThenSeldom(Tries(pace, absl::FromUnixSeconds(5000), absl::Minutes(1)));
}

}  // namespace
}  // namespace tandem::rpc
