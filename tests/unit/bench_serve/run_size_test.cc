// Goal: a run without a given size takes about kRunTime, whether the server or the arrivals limit
// it, and is never too small for percentiles; a probe asks no more than it was told to, and a
// server that answers nothing has no rate.
#include "cli/bench_serve/run_size.h"

#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

RequestRecord Ended(const char* error) {
  RequestRecord record;
  record.error = error;
  return record;
}

TEST(RunSize, TheSlowerOfServerAndArrivalsDecides) {
  EXPECT_EQ(RequestsForRun(3.5, std::nullopt), 70);
  EXPECT_EQ(RequestsForRun(3.5, 20), 70) << "a server that cannot keep up";
  EXPECT_EQ(RequestsForRun(1000, 20), 400) << "a server that waits for arrivals";
  EXPECT_EQ(RequestsForRun(0.1, 20), kSizedRequestsMin);
}

TEST(RunSize, OnlyAnswersCount) {
  LoadResult probe;
  probe.elapsed = absl::Seconds(4);
  EXPECT_EQ(AnswersPerSecond(probe), std::nullopt);
  probe.records = {Ended("refused"), Ended("")};
  EXPECT_EQ(AnswersPerSecond(probe), 0.25);
  probe.records = {Ended("refused")};
  EXPECT_EQ(AnswersPerSecond(probe), std::nullopt);
}

TEST(RunSize, AProbeIsAShortClosedLoop) {
  LoadOptions run;
  run.requests = 0;
  run.concurrency = 0;
  run.warmup = 7;
  run.arrivals = ArrivalOptions{};
  const LoadOptions probe = ProbeOptions(run);
  EXPECT_EQ(probe.duration, kProbeTime);
  EXPECT_EQ(probe.concurrency, 8);
  EXPECT_EQ(probe.warmup, 0);
  EXPECT_FALSE(probe.arrivals.has_value());
  run.concurrency = 5000;
  EXPECT_EQ(ProbeOptions(run).concurrency, 64);
}

}  // namespace
}  // namespace tandem::cli
