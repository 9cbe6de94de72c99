// Goal: the throughput line counts what happened since the last one, and comes only with work.
#include "router/front_end/throughput_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/telemetry/log.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

TEST(ThroughputLine, CountsTheIntervalAndLeavesIdleOnesOut) {
  SetLogLevel(LogLevel::kInfo);  // other tests of this process may have changed it
  RequestMetrics metrics("m");
  absl::Time now = absl::FromUnixSeconds(1000);
  ThroughputLine line(metrics, absl::Seconds(10), now);
  const auto tick = [&](absl::Duration later, RequestCounts now_served) {
    ::testing::internal::CaptureStderr();
    line.OnTick(now += later, now_served);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(tick(absl::Seconds(10), {}), "");
  metrics.OnTokens(50, absl::ZeroDuration());
  v1::Finished finished;
  finished.set_reason(v1::FINISH_REASON_STOP);
  finished.mutable_usage()->set_prompt_tokens(200);
  finished.mutable_usage()->set_cached_tokens(50);
  metrics.OnFinished(finished);
  metrics.OnRequestFinished(finished.reason(), absl::ZeroDuration(), absl::Seconds(1));
  EXPECT_EQ(tick(absl::Seconds(9), {2, 1}), "");
  EXPECT_THAT(tick(absl::Seconds(1), {2, 1}),
              HasSubstr("throughput requests_per_s=0.1 prompt_tokens_per_s=20 cached_percent=25 "
                        "output_tokens_per_s=5 running=2 queued=1\n"));
  EXPECT_THAT(tick(absl::Seconds(10), {0, 1}),
              HasSubstr("output_tokens_per_s=0 running=0 queued=1\n"));
  EXPECT_EQ(tick(absl::Seconds(10), {}), "");
  ThroughputLine off(metrics, absl::ZeroDuration(), now);
  ::testing::internal::CaptureStderr();
  off.OnTick(now + absl::Hours(1), {1, 0});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace tandem::router
