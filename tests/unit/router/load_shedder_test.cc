// Goal: a request is judged by how long it has waited and by the predicted wait in the core's
// queue; one front end's overload does not refuse the other's requests; a shedder without a delay
// refuses nothing; refusals are counted. A request that waited longer than predicted is refused at
// dispatch. At twice the load that the core can take, its queue stays short.
#include "router/front_end/load_shedder.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <deque>
#include <random>

#include "common/rpc/retry_after.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using FrontEndKind = LoadShedder::FrontEndKind;

constexpr absl::Duration kDelay = absl::Milliseconds(100);

bool Never() { return false; }
bool Yes() { return true; }

class LoadShedderTest : public ::testing::Test {
 protected:
  // Requests that have waited for long, until there is an overload.
  void Overload(LoadShedder& shedder, FrontEndKind front_end) {
    for (int i = 0; i < 2000; ++i) {
      now_ += absl::Milliseconds(1);
      shedder.Admit(front_end, 2 * kDelay, now_, Never).IgnoreError();
    }
  }

  RequestMetrics metrics_{"m"};
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(LoadShedderTest, RefusesWhatHasWaitedForLongAndCounts) {
  LoadShedder shedder({.delay = kDelay}, metrics_);
  EXPECT_TRUE(shedder.Admit(FrontEndKind::kHttp, absl::Seconds(9), now_, Never).ok())
      << "one alone";
  Overload(shedder, FrontEndKind::kHttp);
  EXPECT_EQ(shedder.refused(), 0) << "none waited for more than twice the delay";
  const absl::Status refused =
      shedder.Admit(FrontEndKind::kHttp, absl::Milliseconds(234), now_, Never);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("overloaded"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("234 ms"));
  const auto retry_after = [](const absl::Status& status) {
    return status.GetPayload(rpc::kRetryAfterPayload).value_or(absl::Cord("none"));
  };
  EXPECT_EQ(retry_after(refused), "1");
  EXPECT_EQ(retry_after(shedder.Admit(FrontEndKind::kHttp, absl::Milliseconds(6100), now_, Never)),
            "7");
  EXPECT_EQ(retry_after(shedder.Admit(FrontEndKind::kHttp, absl::Hours(1), now_, Never)), "60");
  EXPECT_TRUE(shedder.Admit(FrontEndKind::kGrpc, absl::Seconds(9), now_, Never).ok());
  EXPECT_TRUE(shedder.Admit(FrontEndKind::kHttp, 2 * kDelay, now_, Never).ok());
  EXPECT_EQ(shedder.refused(), 3);
  EXPECT_THAT(metrics_.Text({}, {}),
              HasSubstr("tandem_requests_refused_total{model_name=\"m\",reason=\"overload\"} 3\n"));
  // One that has not waited ends it.
  EXPECT_TRUE(shedder.Admit(FrontEndKind::kHttp, absl::ZeroDuration(), now_, Never).ok());
  EXPECT_TRUE(shedder.Admit(FrontEndKind::kHttp, absl::Milliseconds(234), now_, Never).ok());
}

TEST_F(LoadShedderTest, SparesTheRestOfAnAnswerForLonger) {
  LoadShedder shedder({.delay = kDelay}, metrics_);
  Overload(shedder, FrontEndKind::kGrpc);
  EXPECT_TRUE(shedder.Admit(FrontEndKind::kGrpc, absl::Milliseconds(234), now_, Yes).ok());
  EXPECT_FALSE(shedder.Admit(FrontEndKind::kGrpc, absl::Milliseconds(234), now_, Never).ok());
  EXPECT_FALSE(shedder.Admit(FrontEndKind::kGrpc, absl::Seconds(1), now_, Yes).ok())
      << "a resumed request has a limit, too";
}

TEST_F(LoadShedderTest, RefusesAtDispatchWhatWaitedLongerThanPredicted) {
  LoadShedder shedder({.delay = kDelay}, metrics_);
  FrontEndKind front_end = FrontEndKind::kHttp;
  const auto taken_after = [&](absl::Duration wait, bool resumes) {
    const LoadShedder::Position place = shedder.Enter(front_end, now_);
    return shedder.Dequeued(place, resumes, now_ + wait);
  };
  EXPECT_TRUE(taken_after(absl::Seconds(9), false).ok()) << "nothing stands";
  for (const FrontEndKind overloaded : {FrontEndKind::kHttp, FrontEndKind::kGrpc}) {
    Overload(shedder, overloaded);
    front_end = overloaded == FrontEndKind::kHttp ? FrontEndKind::kGrpc : FrontEndKind::kHttp;
    EXPECT_TRUE(taken_after(absl::Seconds(9), false).ok()) << "the other front end is overloaded";
    front_end = overloaded;
    const int64_t before = shedder.refused();
    EXPECT_TRUE(taken_after(3 * kDelay, false).ok());
    EXPECT_TRUE(taken_after(absl::Milliseconds(1100), true).ok());
    EXPECT_EQ(shedder.refused(), before);
    const absl::Status refused = taken_after(absl::Milliseconds(345), false);
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("345 ms"));
    EXPECT_FALSE(taken_after(absl::Seconds(2), true).ok());
    EXPECT_EQ(shedder.refused(), before + 2);
    // One that has not waited ends it.
    EXPECT_TRUE(shedder.Admit(front_end, absl::ZeroDuration(), now_, Never).ok());
    EXPECT_TRUE(taken_after(absl::Milliseconds(345), false).ok());
  }
}

TEST_F(LoadShedderTest, ZeroRefusesNothing) {
  LoadShedder shedder({.delay = absl::ZeroDuration()}, metrics_);
  Overload(shedder, FrontEndKind::kHttp);
  EXPECT_TRUE(shedder.Admit(FrontEndKind::kHttp, absl::Hours(1), now_, Never).ok());
  EXPECT_TRUE(
      shedder.Dequeued(shedder.Enter(FrontEndKind::kHttp, now_), false, now_ + absl::Hours(1))
          .ok());
}

// Requests wait in the core's queue alone. Random arrivals; each takes a random time; twice as many
// come as can be taken.
TEST_F(LoadShedderTest, TheTurnsLaneStaysShort) {
  constexpr absl::Duration kEach = absl::Microseconds(200);
  constexpr int kRequests = 100'000;
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  std::exponential_distribution<> exponential(1);
  LoadShedder shedder({.delay = kDelay}, metrics_);
  std::deque<LoadShedder::Position> queue;
  absl::Time free = now_;
  const absl::Time begin = now_;
  int accepted = 0;
  const auto take = [&](absl::Time until) {
    while (!queue.empty() && std::max(free, queue.front().since) <= until) {
      const absl::Time taken = std::max(free, queue.front().since);
      const bool goes_on = shedder.Dequeued(queue.front(), /*resumes=*/false, taken).ok();
      if (taken > begin + absl::Seconds(4)) {
        EXPECT_TRUE(goes_on) << "the forecast is good";
        EXPECT_LE(taken - queue.front().since, 3 * kDelay);
      }
      accepted += goes_on;
      free = taken + (goes_on ? exponential(random) * kEach : absl::ZeroDuration());
      queue.pop_front();
    }
  };
  for (int i = 0; i < kRequests; ++i) {
    now_ += exponential(random) * kEach / 2;
    take(now_);
    const FrontEndKind front_end = i % 2 == 0 ? FrontEndKind::kHttp : FrontEndKind::kGrpc;
    if (!shedder.Admit(front_end, absl::ZeroDuration(), now_, Never).ok()) continue;
    queue.push_back(shedder.Enter(front_end, now_));
  }
  take(absl::InfiniteFuture());
  EXPECT_GE(absl::FDivDuration(accepted * kEach, free - begin), 0.9) << "of its capacity";
  EXPECT_GT(shedder.refused(), kRequests / 3);
  // The load falls: at once all are taken.
  now_ = free;
  const int64_t before = shedder.refused();
  for (int i = 0; i < 10'000; ++i) {
    now_ += exponential(random) * kEach * 2;
    take(now_);
    EXPECT_TRUE(shedder.Admit(FrontEndKind::kHttp, absl::ZeroDuration(), now_, Never).ok());
    queue.push_back(shedder.Enter(FrontEndKind::kHttp, now_));
  }
  EXPECT_EQ(shedder.refused(), before);
}

}  // namespace
}  // namespace tandem::router
