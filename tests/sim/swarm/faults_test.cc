// Goal: the end of a fault undoes what that fault did, and nothing that another fault still does: a
// drain goes on, a node that is down stays down, a pause and slowness last until the last of their
// faults ends.
#include <algorithm>

#include "absl/strings/match.h"
#include "common/telemetry/log.h"
#include "tests/sim/swarm/lending_schedules.h"
#include "tests/testing/status_matchers.h"

namespace tandem::sim {
namespace {

constexpr int kDecodeNode = 2;  // the only one
constexpr absl::string_view kStartsAgain = "starts again", kDrained = "drained: the process ends";

// A long answer by one router, one prefill node and one decode node; a step takes 2 ms.
Schedule LongAnswer() {
  Schedule schedule;
  Topology& t = schedule.topology;
  t.step_us = 2'000;
  t.row_us = 1;  // steps take exactly step_us and this for each row
  schedule.requests = {{.at_us = 20'000, .own_tokens = 20, .own_seed = 3, .max_tokens = 100}};
  return schedule;
}

// When `process` did what the timeline says with `text`.
std::vector<int64_t> When(const SimReport& report, int process, absl::string_view text) {
  std::vector<int64_t> times;
  for (const TimelineEntry& entry : report.timeline)
    if (entry.row == process && absl::StrContains(entry.text, text)) times.push_back(entry.at_us);
  return times;
}

SimReport RunServed(const Schedule& schedule) {
  SetLogLevel(LogLevel::kError);
  SimReport report = RunSchedule(schedule, /*timeline=*/true);
  ExpectNoViolations(report);
  EXPECT_EQ(report.clients.done, 1);
  return report;
}

TEST(Faults, NoOtherFaultEndsADrain) {
  for (const FaultKind kind : {FaultKind::kCorruptBlock, FaultKind::kPause, FaultKind::kSlow}) {
    SCOPED_TRACE(FaultName(kind));
    Schedule schedule = LongAnswer();
    schedule.topology.drain_us = 2'000'000;
    schedule.faults = {
        {.at_us = 40'000, .kind = FaultKind::kDrain, .target = kDecodeNode},
        {.at_us = 45'000, .kind = kind, .target = kDecodeNode, .lasts_us = 5'000, .amount = 2}};
    const SimReport report = RunServed(schedule);
    const std::vector<int64_t> drained = When(report, kDecodeNode, kDrained);
    const std::vector<int64_t> started = When(report, kDecodeNode, kStartsAgain);
    ASSERT_EQ(drained.size(), 1u);
    ASSERT_EQ(started.size(), 1u);
    EXPECT_LT(drained[0], started[0]);
    EXPECT_EQ(started[0], 40'000 + LastsUs(schedule.faults[0], schedule.topology));
  }
}

TEST(Faults, NoOtherFaultStartsANodeThatIsDown) {
  for (const FaultKind kind : {FaultKind::kPause, FaultKind::kSlow}) {
    SCOPED_TRACE(FaultName(kind));
    Schedule schedule = LongAnswer();
    schedule.faults = {
        {.at_us = 40'000, .kind = kind, .target = kDecodeNode, .lasts_us = 20'000, .amount = 2},
        {.at_us = 50'000, .kind = FaultKind::kCrash, .target = kDecodeNode, .lasts_us = 300'000}};
    EXPECT_THAT(When(RunServed(schedule), kDecodeNode, kStartsAgain),
                ::testing::ElementsAre(350'000));
  }
}

// A drain that ends while its node, which died on the way, is to stay down for longer.
TEST(Faults, ANodeStaysDownUntilTheLastFaultThatHoldsItDownEnds) {
  Schedule schedule = LongAnswer();
  schedule.faults = {
      {.at_us = 40'000, .kind = FaultKind::kDrain, .target = kDecodeNode, .lasts_us = 1'000},
      {.at_us = 50'000, .kind = FaultKind::kCrash, .target = kDecodeNode, .lasts_us = 900'000}};
  EXPECT_THAT(When(RunServed(schedule), kDecodeNode, kStartsAgain),
              ::testing::ElementsAre(950'000));
  schedule.faults[1].lasts_us = 100'000;
  const int64_t drain_us = LastsUs(schedule.faults[0], schedule.topology);
  EXPECT_THAT(When(RunServed(schedule), kDecodeNode, kStartsAgain),
              ::testing::ElementsAre(40'000 + drain_us));
}

TEST(Faults, APauseLastsUntilTheLastOneEnds) {
  Schedule schedule = LongAnswer();
  schedule.faults = {
      {.at_us = 40'000, .kind = FaultKind::kPause, .target = kDecodeNode, .lasts_us = 20'000},
      {.at_us = 50'000, .kind = FaultKind::kPause, .target = kDecodeNode, .lasts_us = 250'000}};
  const int64_t both_us = RunServed(schedule).answered_us.at(0);
  schedule.faults = {
      {.at_us = 40'000, .kind = FaultKind::kPause, .target = kDecodeNode, .lasts_us = 260'000}};
  const int64_t one_us = RunServed(schedule).answered_us.at(0);
  EXPECT_GT(both_us, 300'000);
  EXPECT_NEAR(static_cast<double>(both_us), static_cast<double>(one_us), 20'000);
}

// A slow process, and a slow link, while a second fault of the same kind comes and goes.
TEST(Faults, SlownessLastsUntilTheLastOneEnds) {
  for (const FaultKind kind : {FaultKind::kSlow, FaultKind::kSlowLink}) {
    SCOPED_TRACE(FaultName(kind));
    Schedule schedule = LongAnswer();
    const bool link = kind == FaultKind::kSlowLink;
    schedule.topology.local_prefill_tokens = 0;  // prompts always go over the link
    schedule.requests[0].own_tokens = 200;
    const Fault slow{.at_us = 10'000,
                     .kind = kind,
                     .target = link ? 1 : kDecodeNode,
                     .other = link ? kDecodeNode : 0,
                     .lasts_us = 3'000'000,
                     .amount = link ? 500 : 10};
    const int64_t calm_us = RunServed(schedule).answered_us.at(0);
    schedule.faults = {slow};
    const int64_t slow_us = RunServed(schedule).answered_us.at(0);
    ASSERT_GT(slow_us, calm_us + 20'000);
    schedule.faults.push_back(slow);
    schedule.faults.back().at_us = 12'000;
    schedule.faults.back().lasts_us = 1'000;
    EXPECT_GE(RunServed(schedule).answered_us.at(0), slow_us - (slow_us - calm_us) / 2);
  }
}

}  // namespace
}  // namespace tandem::sim
