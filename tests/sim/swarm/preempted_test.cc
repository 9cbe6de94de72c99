// Goal: a sequence that is preempted for longer than its router waits for a token keeps its place:
// the node says that it waits, so it goes on as soon as there is memory.
#include "common/telemetry/log.h"
#include "tests/sim/swarm/lending_schedules.h"

namespace tandem::sim {
namespace {

constexpr int64_t kStepUs = 20'000, kTokens = 120;

// One decode node of 24 blocks, and two answers that need 20 each. The second waits for more than a
// second of virtual time until the first has ended; the token deadline is 0.8 s.
TEST(Preempted, ASequenceGoesOnAfterMoreThanTheTokenDeadline) {
  SetLogLevel(LogLevel::kError);
  Schedule schedule;
  Topology& t = schedule.topology;
  t.prefill_nodes = 0;
  t.blocks_per_node = 24;
  t.step_us = kStepUs;
  t.row_us = 1;
  for (int64_t i = 0; i < 2; ++i)
    schedule.requests.push_back(
        {.at_us = 50'000 + i, .own_tokens = 40, .own_seed = i + 1, .max_tokens = kTokens});
  const SimReport report = RunSchedule(schedule);
  ExpectNoViolations(report);
  EXPECT_EQ(report.clients.done, 2);
  EXPECT_EQ(report.clients.asked_again, 0);
  // While both ran they filled the pool: 96 tokens each, 40 of them the prompt's.
  constexpr int64_t kRest = kTokens - (96 - 40);
  EXPECT_GT(kRest * kStepUs, 1'000'000) << "the second waits so long";
  // A node that is given up gets nothing for a second, so a second placement would come later.
  EXPECT_LT(report.answered_us[1] - report.answered_us[0], (kRest + 10) * kStepUs);
}

}  // namespace
}  // namespace tandem::sim
