// Goal: under random workloads, topologies and faults in virtual time the checkers find no
// violation: each accepted request gets the oracle's tokens once and in order, blocks have one
// owner, stale senders write nothing, everything ends. Two thousand fresh seeds a run; a failing
// seed repeats the run.
#include "sim/swarm.h"

#include <algorithm>
#include <random>

#include "common/telemetry/log.h"
#include "sim/timeline.h"
#include "tests/sim/swarm/lending_schedules.h"
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
  EXPECT_EQ(report.clients.done + report.clients.cancelled,
            report.requests + report.clients.ids_reused);
  EXPECT_GT(report.clients.ids_reused, 0);
  EXPECT_GT(report.sequences_migrated, 0);
  EXPECT_GT(report.blocks_adopted, 0);
  EXPECT_GT(report.blocks_fetched, 0);
  EXPECT_GT(report.clients.turns, 0);
  EXPECT_GT(report.clients.refused, 0);
  EXPECT_GT(report.part_tokens_fetched, 0);
  EXPECT_GT(report.blocks_read_from_host, 0);
  EXPECT_GT(report.blocks_loaded, report.blocks_read_from_host) << "none from a disk";
  EXPECT_GT(report.units_lent, 0);
  EXPECT_GT(report.loans_lost, 0);
  EXPECT_GT(report.rebuilds_done, 0) << "no lost units were computed alone";
  EXPECT_GT(report.loans_planned, 0);
  EXPECT_GT(report.loans_taken_over, 0);
}

// In all of these schedules nodes lend to a few long sequences, and decode nodes drain, with the
// time to move their loans.
TEST(Swarm, LoansMoveWithoutAWrongToken) {
  SetLogLevel(LogLevel::kError);
  const uint64_t first_seed = (uint64_t{std::random_device()()} << 20) | 1;
  std::cout << "seeds from " << first_seed << "\n";
  int64_t lending = 0, moved = 0, home = 0;
  for (uint64_t seed = first_seed; lending < 1000 || (moved == 0 && lending < 4000); ++seed) {
    Schedule schedule = DrawSchedule(seed);
    Topology& t = schedule.topology;
    if (t.lend_blocks == 0 || t.decode_nodes < 3) continue;
    ++lending;
    t.drain_us = 3'000'000;
    schedule.requests.resize(std::min<size_t>(schedule.requests.size(), 4));
    for (SimRequest& r : schedule.requests) {
      const int64_t room = (t.blocks_per_node + t.lend_blocks / 2) * t.block_tokens;
      r.max_tokens =
          std::max(r.max_tokens, std::min<int64_t>(room, 900) - r.own_tokens - r.shared_tokens);
      r.answers = 1;
      r.beams = 0;
      r.turn_tokens = 0;
    }
    for (size_t i = 0; i < schedule.requests.size(); ++i) {
      const int64_t node = t.routers + t.prefill_nodes + static_cast<int64_t>(seed + i) % 3;
      schedule.faults.push_back({.at_us = schedule.requests[i].at_us + 40'000,
                                 .kind = FaultKind::kDrain,
                                 .target = node,
                                 .lasts_us = 50'000});
    }
    std::stable_sort(schedule.faults.begin(), schedule.faults.end(),
                     [](const Fault& a, const Fault& b) { return a.at_us < b.at_us; });
    const SimReport report = RunSchedule(schedule);
    moved += report.loans_moved;
    home += report.loans_home;
    ASSERT_TRUE(report.violations.empty())
        << "seed " << seed << ": " << report.violations.front().what;
  }
  std::cout << moved << " loans moved, " << home << " came home\n";
  EXPECT_GT(moved, 0);
  EXPECT_GT(home, 0);
}

// A third of the schedules have a layer that looks back a few tokens and has memory for a part of
// the blocks. In this one test all have.
TEST(Swarm, WindowsChangeNoToken) {
  SetLogLevel(LogLevel::kError);
  const uint64_t first_seed = (uint64_t{std::random_device()()} << 20) | 1;
  std::cout << "seeds from " << first_seed << "\n";
  int64_t windowed = 0, fetched = 0, part_tokens = 0, loaded = 0, lent = 0;
  for (uint64_t seed = first_seed; windowed < 1000; ++seed) {
    const Schedule schedule = DrawSchedule(seed);
    if (schedule.topology.window_slots == 0) continue;
    ++windowed;
    const SimReport report = RunSchedule(schedule);
    fetched += report.blocks_fetched;
    part_tokens += report.part_tokens_fetched;
    loaded += report.blocks_loaded;
    lent += report.units_lent;
    ASSERT_TRUE(report.violations.empty())
        << "seed " << seed << ": " << report.violations.front().what;
  }
  EXPECT_GT(fetched, 0);
  EXPECT_GT(part_tokens, 0);
  EXPECT_GT(loaded, 0);
  EXPECT_GT(lent, 0);
}

// In this test a node's storage hangs in each schedule, mostly while something is to be read, and
// reads are given up.
TEST(Swarm, AStorageThatHangsChangesNoToken) {
  SetLogLevel(LogLevel::kError);
  const uint64_t first_seed = (uint64_t{std::random_device()()} << 20) | 1;
  std::cout << "seeds from " << first_seed << "\n";
  const auto is_hang = [](const Fault& fault) { return fault.kind == FaultKind::kHangStorage; };
  int64_t hung = 0, given_up = 0;
  for (uint64_t seed = first_seed; hung < 1000; ++seed) {
    const Schedule schedule = DrawSchedule(seed);
    if (std::none_of(schedule.faults.begin(), schedule.faults.end(), is_hang)) continue;
    ++hung;
    const SimReport report = RunSchedule(schedule);
    given_up += report.loads_given_up;
    ASSERT_TRUE(report.violations.empty())
        << "seed " << seed << ": " << report.violations.front().what;
  }
  std::cout << given_up << " reads given up\n";
  EXPECT_GT(given_up, 0);
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

// A prompt of 120 tokens, whose prefill node computes 8 a step and dies on the way. At whatever
// moment: no node computes again what the decode node had received, and all of it is used.
TEST(Schedule, APrefillNodesDeathCostsOnlyWhatWasNotVerified) {
  SetLogLevel(LogLevel::kError);
  int64_t partly = 0;
  for (int64_t crash_us = 50'000; crash_us < 90'000; crash_us += 500) {
    Schedule schedule;
    schedule.seed = static_cast<uint64_t>(crash_us);
    schedule.topology.max_batch_tokens = 8;
    schedule.topology.step_us = 2000;
    schedule.requests.push_back(
        {.at_us = 50'000, .own_tokens = 120, .own_seed = 3, .max_tokens = 5});
    schedule.faults.push_back(
        {.at_us = crash_us, .kind = FaultKind::kCrash, .target = 1, .lasts_us = 800'000});
    const SimReport report = RunSchedule(schedule);
    SCOPED_TRACE(absl::StrCat("crash at ", crash_us));
    EXPECT_TRUE(report.violations.empty());
    EXPECT_EQ(report.clients.done, 1);
    EXPECT_EQ(report.tokens_received + report.tokens_computed, 120);
    EXPECT_EQ(report.tokens_cached, 0);
    if (report.tokens_received > 0 && report.tokens_computed > 0) ++partly;
  }
  EXPECT_GT(partly, 10) << "deaths in the middle of a KV transfer";
}

// Two decode nodes, and answers that are not over when the one that writes them drains. Whenever
// that is: what was computed is computed once by all engines together, for one answer or for
// several that share their prompt's blocks.
TEST(Schedule, ADrainMovesSequencesAndNothingIsComputedAgain) {
  SetLogLevel(LogLevel::kError);
  int64_t moved = 0, moved_tokens = 0;
  for (int64_t answers : {1, 3}) {
    for (int64_t drain_us = 100'000; drain_us < 350'000; drain_us += 10'000) {
      Schedule schedule;
      schedule.seed = static_cast<uint64_t>(drain_us);
      schedule.topology.decode_nodes = 2;
      schedule.topology.step_us = 20'000;
      schedule.requests.push_back(
          {.at_us = 50'000,
           .own_tokens = 45,
           .own_seed = 3,
           .max_tokens = 60,
           .sampled = 1,
           .answers = answers});  // sampled: an equal answer would be forked, and not moved
      const SimReport calm = RunSchedule(schedule);
      EXPECT_EQ(calm.sequences_migrated, 0);
      // Placement drew one of the two decode nodes. Both runs draw the same one.
      for (const int64_t target : {2, 3}) {
        schedule.faults = {
            {.at_us = drain_us, .kind = FaultKind::kDrain, .target = target, .lasts_us = 100'000}};
        const SimReport report = RunSchedule(schedule);
        SCOPED_TRACE(absl::StrCat(answers, " answers, drain of ", target, " at ", drain_us));
        EXPECT_TRUE(report.violations.empty());
        EXPECT_EQ(report.clients.done, 1);
        EXPECT_EQ(report.rows_computed, calm.rows_computed);
        moved += report.sequences_migrated;
        moved_tokens += report.kv_tokens_moved;
      }
    }
  }
  EXPECT_GE(moved, 90) << "of 100: nearly every drain found all answers running";
  EXPECT_GT(moved_tokens, moved * 10);
}

// A drain timeout beyond the one of most schedules: the only decode node has the time to end its
// answer, and nothing is computed again.
TEST(Schedule, ADrainLastsAsLongAsItsTimeout) {
  SetLogLevel(LogLevel::kError);
  Schedule schedule;
  schedule.topology.step_us = 20'000;
  schedule.topology.row_us = 1;  // steps take exactly step_us
  schedule.topology.drain_us = 6'000'000;
  schedule.requests.push_back(
      {.at_us = 50'000, .own_tokens = 45, .own_seed = 3, .max_tokens = 100});
  const SimReport calm = RunSchedule(schedule);
  schedule.faults = {{.at_us = 200'000, .kind = FaultKind::kDrain, .target = 2}};
  const SimReport report = RunSchedule(schedule);
  ExpectNoViolations(report);
  EXPECT_EQ(report.clients.done, 1);
  EXPECT_EQ(report.rows_computed, calm.rows_computed);
}

// A router, a prefill node and a decode node that are slow while a request runs: each of them
// delays it.
TEST(Schedule, ASlowProcessDelaysWhatItDoes) {
  SetLogLevel(LogLevel::kError);
  Schedule schedule;
  schedule.requests.push_back({.at_us = 50'000, .own_tokens = 45, .own_seed = 3, .max_tokens = 20});
  const int64_t calm_us = RunSchedule(schedule).answered_us.at(0);
  for (const int64_t target : {0, 1, 2}) {
    schedule.faults = {{.at_us = 40'000,
                        .kind = FaultKind::kSlow,
                        .target = target,
                        .lasts_us = 2'000'000,
                        .amount = 50}};
    const SimReport report = RunSchedule(schedule);
    SCOPED_TRACE(absl::StrCat("target ", target));
    ExpectNoViolations(report);
    EXPECT_EQ(report.clients.done, 1);
    EXPECT_GT(report.answered_us.at(0), calm_us + 5'000);
  }
}

TEST(Schedule, ADrainingNodesPrefixBlocksGoToAPeer) {
  SetLogLevel(LogLevel::kError);
  Schedule schedule;
  schedule.topology.prefill_nodes = schedule.topology.decode_nodes = 2;
  schedule.requests.push_back({.at_us = 50'000, .own_tokens = 45, .own_seed = 3, .max_tokens = 4});
  for (const int64_t first : {1, 3}) {  // the prefill nodes, the decode nodes
    int64_t adopted = 0;
    // Placement drew one node of each role for the prompt. Both runs draw the same one.
    for (const int64_t target : {first, first + 1}) {
      schedule.faults = {
          {.at_us = 300'000, .kind = FaultKind::kDrain, .target = target, .lasts_us = 100'000}};
      const SimReport report = RunSchedule(schedule);
      SCOPED_TRACE(absl::StrCat("target ", target));
      EXPECT_TRUE(report.violations.empty());
      EXPECT_EQ(report.clients.done, 1);
      adopted += report.blocks_adopted;
    }
    EXPECT_GE(adopted, 45 / 8);
  }
}

// Two decode nodes of 24 blocks, 192 tokens. One sequence at a time, longer than either pool: by
// its answer, or by its prompt, which no node could hold at once. It borrows and is answered.
TEST(Schedule, ASequenceLongerThanAnyPoolBorrows) {
  SetLogLevel(LogLevel::kError);
  for (const auto& [long_prompt, window] :
       {std::pair(false, 0), std::pair(true, 0), std::pair(false, 20), std::pair(true, 20)}) {
    Schedule schedule;
    Topology& t = schedule.topology;
    t.prefill_nodes = 0;
    t.decode_nodes = 2;
    t.blocks_per_node = 24;
    t.lend_blocks = 12;
    t.window_tokens = std::max(1, window);
    t.window_slots = window > 0 ? 6 : 0;
    schedule.requests.push_back({.at_us = 50'000,
                                 .own_tokens = long_prompt ? 240 : 20,
                                 .own_seed = 3,
                                 .max_tokens = long_prompt ? 10 : 230});
    const SimReport report = RunSchedule(schedule);
    SCOPED_TRACE(long_prompt ? "prompt" : "answer");
    SCOPED_TRACE(window);
    EXPECT_TRUE(report.violations.empty());
    EXPECT_EQ(report.clients.done, 1);
    EXPECT_GE(report.units_lent, (250 - 192) / 8);
    EXPECT_EQ(report.loans_lost, 0);
  }
}

// The same with the creditor's death while the answer is generated: it is computed again, borrowing
// from the creditor's next life, and no token changes.
TEST(Schedule, ACreditorsDeathCostsItsDebtorTimeAndNoToken) {
  SetLogLevel(LogLevel::kError);
  int64_t lost = 0;
  for (int64_t crash_us = 60'000; crash_us < 400'000; crash_us += 20'000) {
    for (const int64_t target : {1, 2}) {  // the debtor, or the creditor
      Schedule schedule = LendingSchedule(/*prefill_nodes=*/0, /*decode_nodes=*/2);
      schedule.requests.push_back(
          {.at_us = 50'000, .own_tokens = 20, .own_seed = 3, .max_tokens = 230});
      schedule.faults.push_back(
          {.at_us = crash_us, .kind = FaultKind::kCrash, .target = target, .lasts_us = 50'000});
      const SimReport report = RunSchedule(schedule);
      SCOPED_TRACE(absl::StrCat("process ", target, " at ", crash_us));
      ExpectNoViolations(report);
      EXPECT_EQ(report.clients.done, 1);
      lost += report.loans_lost;
    }
  }
  EXPECT_GT(lost, 0);
}

// A sequence of 19 times one pool, as in the paper, on 32 nodes; by its answer, and by its prompt.
TEST(Schedule, ThirtyTwoNodesHoldNineteenTimesOnePool) {
  SetLogLevel(LogLevel::kError);
  for (const bool long_prompt : {false, true}) {
    Schedule schedule;
    Topology& t = schedule.topology;
    t.prefill_nodes = 0;
    t.decode_nodes = 32;
    t.blocks_per_node = 16;
    t.lend_blocks = 13;
    t.block_tokens = 2;
    t.step_us = 200;
    const int64_t pool = t.blocks_per_node * t.block_tokens;
    schedule.requests.push_back({.at_us = 50'000,
                                 .own_tokens = long_prompt ? 19 * pool - 10 : 20,
                                 .own_seed = 3,
                                 .max_tokens = long_prompt ? 11 : 19 * pool - 19});
    const SimReport report = RunSchedule(schedule);
    SCOPED_TRACE(long_prompt ? "prompt" : "answer");
    ExpectNoViolations(report);
    EXPECT_EQ(report.clients.done, 1);
    EXPECT_GE(report.units_lent, 18 * t.blocks_per_node);
  }
}

// Four nodes, and four or five sequences that outgrow them: each borrows, and needs memory that the
// others hold. The oldest goes on, and each younger one gives way and follows. Without that rule
// several of these end with RESOURCE_EXHAUSTED, again and again.
TEST(Schedule, SequencesThatOutgrowTheirNodesDoNotStarveEachOther) {
  SetLogLevel(LogLevel::kError);
  for (const int64_t count : {4, 5}) {
    for (const int64_t blocks : {36, 44, 52, 56}) {
      for (const int64_t later_us : {7, 3'000}) {
        Schedule schedule = LendingSchedule(/*prefill_nodes=*/0, /*decode_nodes=*/4);
        const Topology& t = schedule.topology;
        for (int64_t i = 0; i < count; ++i)
          schedule.requests.push_back({.at_us = 50'000 + i * later_us,
                                       .own_tokens = 20,
                                       .own_seed = i + 1,
                                       .max_tokens = blocks * t.block_tokens - 20});
        const SimReport report = RunSchedule(schedule);
        SCOPED_TRACE(absl::StrCat(count, " of ", blocks, " blocks, each later by ", later_us));
        ExpectNoViolations(report);
        EXPECT_EQ(report.clients.done, count);
        EXPECT_EQ(report.clients.failed, 0);
      }
    }
  }
}

// Three decode nodes; the creditor drains while the borrowed sequence runs. Its loans move to the
// third node, and nothing is computed again. That node has no room in the second case: the units
// come home, or the sequence is computed again.
TEST(Schedule, ADrainedCreditorsLoansMoveAndNothingIsComputedAgain) {
  SetLogLevel(LogLevel::kError);
  int64_t moved = 0;
  for (const int64_t window : {0, 20}) {
    for (int64_t drain_us = 300'000; drain_us < 420'000; drain_us += 20'000) {
      for (const int64_t target : {1, 2, 3}) {
        Schedule schedule = LendingSchedule(/*prefill_nodes=*/0, /*decode_nodes=*/3, window);
        schedule.topology.row_us = 1;
        schedule.topology.drain_us = 2'000'000;
        schedule.requests.push_back(
            {.at_us = 50'000, .own_tokens = 20, .own_seed = 3, .max_tokens = 220});
        const int64_t rows = RunSchedule(schedule).rows_computed;
        schedule.faults.push_back({.at_us = drain_us, .kind = FaultKind::kDrain, .target = target});
        const SimReport report = RunSchedule(schedule);
        SCOPED_TRACE(absl::StrCat("process ", target, " at ", drain_us, " window ", window));
        ExpectNoViolations(report);
        EXPECT_EQ(report.clients.done, 1);
        if (report.loans_moved == 0) continue;
        moved += report.loans_moved;
        EXPECT_EQ(report.loans_lost, 0);
        EXPECT_EQ(report.rows_computed, rows) << "nothing is computed again";
      }
    }
  }
  EXPECT_GT(moved, 0);
}

// Goal: whatever the SLO for the time between tokens, a node that computes prompts beside its
// answers gives every client the stream that the oracle says, and computes each row once. A tight
// SLO cuts prompts into more steps; the virtual clock, a StepProfile, shows it.
TEST(Schedule, AnSloForTheTimeBetweenTokensChangesStepsAndNoStream) {
  SetLogLevel(LogLevel::kError);
  Schedule schedule;
  Topology& t = schedule.topology;
  t.prefill_nodes = 0;
  t.max_batch_tokens = 512;
  t.max_sequences = 16;
  t.blocks_per_node = 512;
  t.step_us = 500;
  t.row_us = 100;
  for (int64_t i = 0; i < 8; ++i)
    schedule.requests.push_back(
        {.at_us = 50'000 + i, .own_tokens = 8, .own_seed = i + 1, .max_tokens = 200});
  for (int64_t i = 0; i < 8; ++i)
    schedule.requests.push_back(
        {.at_us = 90'000 + i, .own_tokens = 300, .own_seed = i + 100, .max_tokens = 2});
  const auto run = [&](int64_t itl_slo_us) {
    t.itl_slo_us = itl_slo_us;
    const SimReport report = RunSchedule(schedule);
    EXPECT_TRUE(report.violations.empty()) << itl_slo_us;
    EXPECT_EQ(report.clients.done, 16) << itl_slo_us;
    return report;
  };
  const SimReport unprotected = run(0), tight = run(3000), impossible = run(1);
  for (const SimReport* report : {&tight, &impossible})
    EXPECT_EQ(report->rows_computed, unprotected.rows_computed);
  EXPECT_GT(unprotected.mixed_step_us_max, 30'000);
  EXPECT_LE(tight.mixed_step_us_max, 3300);
  // A block of 8 rows beside 8 generated ones.
  EXPECT_LE(impossible.mixed_step_us_max, 500 + 16 * 100 + 100);
}

// A control stream that takes no time: what a node answers to a command reaches its router while
// that one still sends. Clients get their tokens in order all the same.
TEST(Schedule, AnAnswerThatTakesNoTimeOvertakesNoToken) {
  SetLogLevel(LogLevel::kError);
  for (uint64_t seed = 1; seed < 400; ++seed) {
    Schedule schedule = DrawSchedule(seed);
    schedule.topology.control_us = 0;
    schedule.faults.clear();
    const SimReport report = RunSchedule(schedule);
    ASSERT_TRUE(report.violations.empty())
        << "seed " << seed << ": " << report.violations.front().what;
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

}  // namespace
}  // namespace tandem::sim
