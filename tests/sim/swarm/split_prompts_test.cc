// Goal: a prompt that no node can hold is computed by a prefill node, which lends its beginning,
// and its decode node takes the loans over without computing a token. Under every fault the answer
// stays the same, and nothing stays lent.
#include <algorithm>
#include <random>

#include "common/telemetry/log.h"
#include "sim/simulation.h"
#include "tests/sim/swarm/lending_schedules.h"
#include "tests/testing/status_matchers.h"

namespace tandem::sim {
namespace {

// A prefill node and three decode nodes of 24 blocks, 192 tokens. No node can hold the prompt of
// 210 tokens: the prefill node lends its beginning while it computes, and the decode node takes the
// loans over. It computes no prompt token.
Schedule LongPromptOnAPrefillNode(int64_t window) {
  Schedule schedule = LendingSchedule(/*prefill_nodes=*/1, /*decode_nodes=*/3, window);
  schedule.requests.push_back(
      {.at_us = 50'000, .own_tokens = 210, .own_seed = 3, .max_tokens = 20});
  return schedule;
}

TEST(Schedule, APromptLongerThanAnyPoolIsSplit) {
  SetLogLevel(LogLevel::kError);
  for (const int64_t window : {0, 20}) {
    const SimReport report = RunSchedule(LongPromptOnAPrefillNode(window));
    SCOPED_TRACE(window);
    ExpectNoViolations(report);
    EXPECT_EQ(report.clients.done, 1);
    EXPECT_GT(report.loans_taken_over, 0);
    EXPECT_EQ(report.loans_lost, 0);
    EXPECT_EQ(report.tokens_computed, 0);
  }
}

// The same, and one process dies, pauses, drains or is cut off at any moment: the answer is the
// same, and nothing stays lent.
TEST(Schedule, ASplitPromptOutlivesEveryProcess) {
  SetLogLevel(LogLevel::kError);
  int64_t taken_over = 0;
  for (const FaultKind kind :
       {FaultKind::kCrash, FaultKind::kPause, FaultKind::kDrain, FaultKind::kPartition}) {
    for (int64_t target = 0; target < 5; ++target) {
      for (int64_t at_us = 55'000; at_us < 200'000; at_us += 7'000) {
        Schedule schedule = LongPromptOnAPrefillNode(at_us % 2 == 0 ? 20 : 0);
        schedule.faults.push_back({.at_us = at_us,
                                   .kind = kind,
                                   .target = target,
                                   .other = (target + 1) % 5,
                                   .lasts_us = 80'000});
        const SimReport report = RunSchedule(schedule);
        SCOPED_TRACE(ToText(schedule));
        ExpectNoViolations(report);
        EXPECT_EQ(report.clients.done, 1);
        taken_over += report.loans_taken_over;
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_GT(taken_over, 0);
}

// In all of these schedules a few prompts are longer than any pool, and there are prefill nodes and
// nodes that lend to them.
TEST(Swarm, SplitPromptsLoseNoToken) {
  SetLogLevel(LogLevel::kError);
  const uint64_t first_seed = (uint64_t{std::random_device()()} << 20) | 1;
  std::cout << "seeds from " << first_seed << "\n";
  int64_t split = 0, taken_over = 0, lost = 0;
  for (uint64_t seed = first_seed; split < 1000; ++seed) {
    Schedule schedule = DrawSchedule(seed);
    Topology& t = schedule.topology;
    if (t.lend_blocks == 0 || t.prefill_nodes == 0 || t.decode_nodes < 3) continue;
    ++split;
    schedule.requests.resize(std::min<size_t>(schedule.requests.size(), 4));
    for (SimRequest& r : schedule.requests) {
      const int64_t room = (t.blocks_per_node + t.lend_blocks / 2) * t.block_tokens;
      r.own_tokens =
          std::max(r.own_tokens, std::min<int64_t>(room, 900) - r.max_tokens - r.shared_tokens);
      r.answers = 1;
      r.beams = 0;
      r.turn_tokens = 0;
    }
    const SimReport report = RunSchedule(schedule);
    taken_over += report.loans_taken_over;
    lost += report.loans_lost;
    ASSERT_TRUE(report.violations.empty())
        << "seed " << seed << ": " << report.violations.front().what;
  }
  std::cout << taken_over << " loans taken over, " << lost << " lost\n";
  EXPECT_GT(taken_over, 0);
  EXPECT_GT(lost, 0);
}

}  // namespace
}  // namespace tandem::sim
