// Goal: under random workloads, topologies and faults in virtual time every promise is kept: each
// accepted request gets the oracle's tokens once and in order, blocks have one owner, stale senders
// write nothing, everything ends. Two thousand fresh seeds a run; a failing seed repeats the run.
#include "sim/swarm.h"

#include <random>

#include "common/telemetry/log.h"
#include "tests/testing/status_matchers.h"

namespace tandem::sim {
namespace {

TEST(Swarm, TwoThousandFreshSchedulesKeepEveryPromise) {
  SetLogLevel(LogLevel::kError);
  std::random_device device;
  SwarmOptions options;
  options.first_seed = (uint64_t{device()} << 20) | 1;
  options.schedules = 2000;
  options.threads = 2;
  const SwarmReport report = RunSwarm(options);
  std::cout << "seeds from " << options.first_seed << "\n" << ToText(report);
  EXPECT_TRUE(report.failures.empty());
  EXPECT_EQ(report.schedules, options.schedules);
  EXPECT_EQ(report.clients.done + report.clients.cancelled, report.requests);
}

TEST(Swarm, EveryFaultMeetsEveryState) {
  SetLogLevel(LogLevel::kError);
  const SwarmReport report = RunSwarm({.first_seed = 1, .schedules = 3000, .threads = 2});
  std::cout << CoverageTable(report.coverage);
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    int64_t hit = 0;
    for (const int64_t count : report.coverage[kind]) hit += count > 0 ? 1 : 0;
    EXPECT_GE(hit, 9) << FaultName(static_cast<FaultKind>(kind));
  }
}

TEST(Schedule, EqualSeedsRunTheSameEvents) {
  SetLogLevel(LogLevel::kError);
  for (uint64_t seed = 1; seed < 40; ++seed) {
    const SimReport first = RunSchedule(DrawSchedule(seed), /*timeline=*/true);
    const SimReport second = RunSchedule(DrawSchedule(seed), /*timeline=*/true);
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
    EXPECT_EQ(TimelineText(DrawSchedule(seed), first), TimelineText(DrawSchedule(seed), second));
  }
}

TEST(Schedule, IsReadBackAsItWasPrinted) {
  for (uint64_t seed = 1; seed < 200; ++seed) {
    const std::string text = ToText(DrawSchedule(seed));
    const auto parsed = ParseSchedule(text);
    ASSERT_OK(parsed);
    EXPECT_EQ(ToText(*parsed), text);
  }
}

TEST(Schedule, BadTextIsRefusedByLineAndField) {
  const std::string text = ToText(DrawSchedule(1));
  const auto refused = [](const std::string& bad) {
    return std::string(ParseSchedule(bad).status().message());
  };
  EXPECT_THAT(refused("nonsense x=1"), ::testing::HasSubstr("line 1: \"nonsense\""));
  EXPECT_THAT(refused(text + "fault kind=flood at_us=1"), ::testing::HasSubstr("kind=flood"));
  EXPECT_THAT(refused(text + "request at_us=soon"), ::testing::HasSubstr("at_us=soon"));
  EXPECT_THAT(refused(text + "fault kind=crash at_us=1 target=99 other=0 lasts_us=1 amount=0"),
              ::testing::HasSubstr("target=99"));
}

}  // namespace
}  // namespace tandem::sim
