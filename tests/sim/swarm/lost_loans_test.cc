// Goal: when a creditor dies, its debtor computes the units that it kept, and no other row twice;
// the other creditors go on answering, and no token changes. Units that another node holds are lent
// again and not computed.
#include <cstdint>
#include <iostream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "tests/sim/swarm/lending_schedules.h"

namespace tandem::sim {
namespace {

// What deaths of nodes cost a schedule.
class Deaths {
 public:
  explicit Deaths(const Schedule& schedule)
      : schedule_(schedule), rows_(RunSchedule(schedule).rows_computed) {}

  // The process ends at this time, and begins again. Returns what followed if its debtor lost loans
  // by it.
  std::optional<SimReport> Run(int64_t target, int64_t at_us) {
    Schedule schedule = schedule_;
    schedule.faults.push_back(
        {.at_us = at_us, .kind = FaultKind::kCrash, .target = target, .lasts_us = 50'000});
    SimReport report = RunSchedule(schedule);
    SCOPED_TRACE(absl::StrCat("process ", target, " at ", at_us));
    ExpectNoViolations(report);
    EXPECT_EQ(report.clients.done, std::ssize(schedule.requests));
    if (report.loans_lost == 0) return std::nullopt;
    ++losses_;
    rows_again_ += report.rows_computed - rows_;
    return report;
  }
  int64_t rows() const { return rows_; }  // without a death
  int64_t losses() const { return losses_; }
  int64_t rows_again() const { return rows_again_; }

 private:
  const Schedule schedule_;
  const int64_t rows_;
  int64_t losses_ = 0, rows_again_ = 0;
};

TEST(LostLoans, ACreditorsDeathCostsTheRowsOfItsUnits) {
  SetLogLevel(LogLevel::kError);
  Schedule schedule = LendingSchedule(/*prefill_nodes=*/0, /*decode_nodes=*/4);
  schedule.requests.push_back(
      {.at_us = 50'000, .own_tokens = 20, .own_seed = 3, .max_tokens = 230});
  Deaths deaths(schedule);
  for (int64_t at_us = 200'000; at_us < 500'000; at_us += 10'000) {
    for (const int64_t target : {1, 2, 3, 4}) {  // the debtor is one of them
      const auto report = deaths.Run(target, at_us);
      if (!report.has_value()) continue;
      EXPECT_EQ(report->rebuilds_begun, report->loans_lost);
      EXPECT_EQ(report->rebuilds_done, report->rebuilds_begun);
      // Beside them, the row that got no answer.
      EXPECT_LE(report->rows_computed - deaths.rows(), report->rows_rebuilt + 1);
    }
  }
  std::cout << deaths.losses() << " sequences of " << deaths.rows() << " rows computed "
            << deaths.rows_again() << " again\n";
  EXPECT_GT(deaths.losses(), 0);
}

// Two answers to one prompt, on two nodes: each node has blocks that the other one may lose.
TEST(LostLoans, UnitsThatAnotherNodeHoldsAreLentAgain) {
  SetLogLevel(LogLevel::kError);
  for (const int64_t window : {0, 12}) {
    SCOPED_TRACE(absl::StrCat("window ", window));
    Schedule schedule = LendingSchedule(/*prefill_nodes=*/0, /*decode_nodes=*/5, window);
    // Several steps for the units of a loan.
    schedule.topology.max_batch_tokens = 8;
    for (const int64_t at_us : {50'000, 51'000}) {
      schedule.requests.push_back(
          {.at_us = at_us, .own_tokens = 150, .own_seed = 3, .max_tokens = 100});
    }
    Deaths deaths(schedule);
    int64_t regained = 0;
    for (int64_t at_us = 150'000; at_us < 400'000; at_us += 10'000)
      for (const int64_t target : {1, 2, 3, 4, 5})
        if (const auto report = deaths.Run(target, at_us)) regained += report->units_regained;
    std::cout << "window " << window << ": " << deaths.losses() << " losses, " << regained
              << " units regained, " << deaths.rows_again() << " rows computed again\n";
    EXPECT_GT(regained, 0);
  }
}

}  // namespace
}  // namespace tandem::sim
