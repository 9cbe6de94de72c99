// Goal: when a creditor dies, its debtor computes the units that it kept, and no other row twice;
// the other creditors go on answering, and no token changes. Units that another node holds are lent
// again and not computed; those in the debtor's own host memory are read back. A creditor that
// stops for a moment costs no row, and one whose block has lost its hash asks for no loan again and
// again.
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

// Shorter than SimLending::kLateMax: the debtor waits, and loses nothing.
TEST(LostLoans, ACreditorThatStopsForAMomentCostsNoLoan) {
  SetLogLevel(LogLevel::kError);
  Schedule schedule = LendingSchedule(/*prefill_nodes=*/0, /*decode_nodes=*/3);
  schedule.requests.push_back(
      {.at_us = 50'000, .own_tokens = 20, .own_seed = 3, .max_tokens = 230});
  const SimReport without = RunSchedule(schedule);
  int64_t postponed = 0;
  for (int64_t at_us = 200'000; at_us < 500'000; at_us += 20'000) {
    for (const int64_t target : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat("process ", target, " at ", at_us));
      Schedule stops = schedule;
      stops.faults.push_back(
          {.at_us = at_us, .kind = FaultKind::kPause, .target = target, .lasts_us = 100'000});
      const SimReport report = RunSchedule(stops);
      ExpectNoViolations(report);
      EXPECT_EQ(report.clients.done, 1);
      EXPECT_EQ(report.loans_lost, 0);
      // The row that got no answer is computed twice.
      EXPECT_LE(report.rows_computed, without.rows_computed + report.postponed);
      postponed += report.postponed;
    }
  }
  EXPECT_GT(postponed, 0);
}

// The second request has the same prompt. Its blocks take the hashes of the first one's, whose
// window has moved on, and are evicted.
TEST(LostLoans, ABlockWhoseHashWasTakenIsLent) {
  SetLogLevel(LogLevel::kError);
  Schedule schedule;
  Topology& t = schedule.topology;
  t.blocks_per_node = 40;
  t.block_tokens = 4;
  t.max_batch_tokens = 64;
  t.max_sequences = 4;
  t.step_us = 1'000;
  t.lend_blocks = 20;
  t.unit_blocks = 1;
  t.window_slots = 8;
  t.window_tokens = 4;
  const auto request = [](int64_t at_us, int64_t seed, int64_t tokens) {
    return SimRequest{.at_us = at_us,
                      .family = 1,
                      .shared_tokens = 32,
                      .own_tokens = 1,
                      .own_seed = seed,
                      .max_tokens = tokens};
  };
  schedule.requests = {request(20'000, 1, 160), request(40'000, 2, 4)};
  // Without the prefill node the second prompt is computed on the decode node.
  schedule.faults.push_back(
      {.at_us = 36'000, .kind = FaultKind::kCrash, .target = 1, .lasts_us = 8'000});
  const SimReport report = RunSchedule(schedule);
  ExpectNoViolations(report);
  EXPECT_EQ(report.clients.done, 2);
  EXPECT_GT(report.loans_asked, 0);
  EXPECT_LT(report.loans_asked, 20);
}

// The same deaths with and without host memory for all blocks of a node.
TEST(LostLoans, UnitsInHostMemoryAreReadBack) {
  SetLogLevel(LogLevel::kError);
  int64_t rows_again[2] = {};
  for (const int64_t host_blocks : {0, 200}) {
    Schedule schedule = LendingSchedule(/*prefill_nodes=*/0, /*decode_nodes=*/4);
    schedule.topology.host_blocks = host_blocks;
    // Rows take time, so that reading pays.
    schedule.topology.row_us = 100;
    schedule.topology.disk_us = 10;
    schedule.requests.push_back(
        {.at_us = 50'000, .own_tokens = 20, .own_seed = 3, .max_tokens = 230});
    Deaths deaths(schedule);
    int64_t reads = 0;
    for (int64_t at_us = 200'000; at_us < 500'000; at_us += 10'000)
      for (const int64_t target : {1, 2, 3, 4})
        if (const auto report = deaths.Run(target, at_us)) reads += report->rebuild_reads;
    std::cout << host_blocks << " blocks in host memory: " << deaths.losses() << " losses, "
              << reads << " reads, " << deaths.rows_again() << " rows computed again\n";
    EXPECT_GT(deaths.losses(), 0);
    EXPECT_EQ(reads > 0, host_blocks > 0);
    rows_again[host_blocks > 0] = deaths.rows_again();
  }
  EXPECT_LT(rows_again[1], rows_again[0] / 2);
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
