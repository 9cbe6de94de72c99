// Goal: when a creditor dies, its debtor computes the units that it kept, and no other row twice;
// the other creditors go on answering, and no token changes.
#include <iostream>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "tests/sim/swarm/lending_schedules.h"

namespace tandem::sim {
namespace {

TEST(LostLoans, ACreditorsDeathCostsTheRowsOfItsUnits) {
  SetLogLevel(LogLevel::kError);
  int64_t runs = 0, rows_of_sequences = 0, rows_again = 0;
  for (int64_t crash_us = 200'000; crash_us < 500'000; crash_us += 10'000) {
    for (const int64_t target : {1, 2, 3, 4}) {  // the debtor is one of them
      Schedule schedule = LendingSchedule(/*prefill_nodes=*/0, /*decode_nodes=*/4);
      schedule.requests.push_back(
          {.at_us = 50'000, .own_tokens = 20, .own_seed = 3, .max_tokens = 230});
      const int64_t rows = RunSchedule(schedule).rows_computed;
      schedule.faults.push_back(
          {.at_us = crash_us, .kind = FaultKind::kCrash, .target = target, .lasts_us = 50'000});
      const SimReport report = RunSchedule(schedule);
      SCOPED_TRACE(absl::StrCat("process ", target, " at ", crash_us));
      ExpectNoViolations(report);
      EXPECT_EQ(report.clients.done, 1);
      if (report.loans_lost == 0) continue;
      ++runs;
      EXPECT_EQ(report.rebuilds_begun, report.loans_lost);
      EXPECT_EQ(report.rebuilds_done, report.rebuilds_begun);
      rows_of_sequences += rows;
      rows_again += report.rows_computed - rows;
      // Beside them, the row that got no answer.
      EXPECT_LE(report.rows_computed - rows, report.rows_rebuilt + 1);
    }
  }
  std::cout << runs << " sequences of " << rows_of_sequences << " rows computed " << rows_again
            << " again\n";
  EXPECT_GT(runs, 0);
}

// The prefill node still has the blocks of the prompt as prefix cache.
TEST(LostLoans, UnitsThatAnotherNodeHoldsAreLentAgain) {
  SetLogLevel(LogLevel::kError);
  for (const int64_t window : {0, 12}) {
    int64_t regained = 0, rows_again = 0, lost = 0;
    for (int64_t crash_us = 200'000; crash_us < 500'000; crash_us += 20'000) {
      for (const int64_t target : {2, 3, 4}) {
        Schedule schedule = LendingSchedule(/*prefill_nodes=*/1, /*decode_nodes=*/3, window);
        schedule.requests.push_back(
            {.at_us = 50'000, .own_tokens = 150, .own_seed = 3, .max_tokens = 100});
        const int64_t rows = RunSchedule(schedule).rows_computed;
        schedule.faults.push_back(
            {.at_us = crash_us, .kind = FaultKind::kCrash, .target = target, .lasts_us = 50'000});
        const SimReport report = RunSchedule(schedule);
        SCOPED_TRACE(absl::StrCat("window ", window, " process ", target, " at ", crash_us));
        ExpectNoViolations(report);
        EXPECT_EQ(report.clients.done, 1);
        if (report.loans_lost == 0) continue;
        regained += report.units_regained;
        rows_again += report.rows_computed - rows;
        lost += report.loans_lost;
      }
    }
    std::cout << "window " << window << ": " << lost << " losses, " << regained
              << " units regained, " << rows_again << " rows computed again\n";
    EXPECT_GT(regained, 0) << window;
  }
}

}  // namespace
}  // namespace tandem::sim
