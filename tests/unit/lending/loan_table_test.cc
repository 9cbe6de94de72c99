// Goal: the table of loans keeps its header's promises, and a share of processor time is what it
// says.
#include "common/lending/loan_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "common/lending/compute_share.h"
#include "tests/unit/lending/lending_world.h"

namespace tandem::lending {
namespace {

const DebtorId kA = {.node = NodeId("a"), .incarnation = Incarnation(1)};
const DebtorId kB = {.node = NodeId("a"), .incarnation = Incarnation(2)};
const absl::Time kStart = absl::UnixEpoch();

ServeLoan Serve(const DebtorId& debtor, uint64_t loan, engine::UnitSpan units, int32_t first) {
  return {.key = {.debtor = debtor, .loan = LoanId(loan)},
          .units = units,
          .blocks = BlocksFrom(first, static_cast<size_t>(units.size()) * kUnitBlocks)};
}

TEST(LoanTableTest, AUseGetsTheBlocksOfItsUnitsEvenWhileTheLoanGrows) {
  LoanTable table;
  table.Serve(Serve(kA, 1, {.first = 4, .end = 7}, 100), kStart);
  const auto use = table.BeginUse(kA, LoanId(1), {.first = 5, .end = 7}, kStart);
  ASSERT_TRUE(use.ok());
  table.Serve(Serve(kA, 1, {.first = 7, .end = 9}, 500), kStart);
  EXPECT_EQ(std::vector<BlockId>(use->blocks.begin(), use->blocks.end()), BlocksFrom(106, 4));
  table.EndUse();
  const auto grown = table.BeginUse(kA, LoanId(1), {.first = 7, .end = 9}, kStart);
  ASSERT_TRUE(grown.ok());
  EXPECT_EQ(std::vector<BlockId>(grown->blocks.begin(), grown->blocks.end()), BlocksFrom(500, 4));
  table.EndUse();
  const std::vector<engine::UnitSpan> wrong = {{3, 5}, {8, 10}, {5, 5}, {6, 5}};
  for (const engine::UnitSpan& units : wrong) {
    EXPECT_EQ(table.BeginUse(kA, LoanId(1), units, kStart).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  // Another incarnation of the node is another debtor.
  EXPECT_EQ(table.BeginUse(kB, LoanId(1), {.first = 5, .end = 6}, kStart).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(LoanTableTest, ALoanEndsOnceWhenItsDebtorIsSilentAndStaysUntilStop) {
  LoanTable table;
  table.Serve(Serve(kA, 1, {.first = 0, .end = 1}, 0), kStart);
  table.Serve(Serve(kA, 2, {.first = 0, .end = 1}, 0), kStart);
  EXPECT_TRUE(table.Renew(kA, LoanId(2), kStart + absl::Seconds(1)).ok());
  EXPECT_TRUE(table.TakeEnded(kStart).empty());
  const auto ended = table.TakeEnded(kStart + absl::Seconds(1));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(std::get<LoanExpired>(ended[0]).key.loan, LoanId(1));
  EXPECT_TRUE(table.TakeEnded(kStart + absl::Seconds(1)).empty());
  EXPECT_EQ(table.Renew(kA, LoanId(1), kStart + absl::Seconds(1)).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(table.Return(kA, LoanId(1)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table.size(), 2u);
  table.Stop({.debtor = kA, .loan = LoanId(1)});
  table.Stop({.debtor = kA, .loan = LoanId(1)});  // no effect
  EXPECT_TRUE(table.Return(kA, LoanId(2)).ok());
  EXPECT_TRUE(std::holds_alternative<LoanReturned>(table.TakeEnded(kStart)[0]));
  table.Stop({.debtor = kA, .loan = LoanId(2)});
  EXPECT_EQ(table.size(), 0u);
}

TEST(LoanTableTest, LoansBeyondTheBoundsOfADebtorAndOfAllEndAtOnce) {
  LoanTable table;
  for (uint64_t debtor = 0; debtor < 4; ++debtor) {
    const DebtorId id = {.node = NodeId("n"), .incarnation = Incarnation(debtor)};
    for (uint64_t loan = 0; loan < LoanTable::kLoansOfDebtorMax; ++loan) {
      table.Serve(Serve(id, loan, {.first = 0, .end = 1}, 0), kStart);
    }
    EXPECT_TRUE(table.TakeEnded(kStart).empty());
  }
  EXPECT_EQ(table.size(), LoanTable::kLoansMax);
  table.Serve(Serve(kA, 1, {.first = 0, .end = 1}, 0), kStart);
  ASSERT_EQ(table.TakeEnded(kStart).size(), 1u);
  EXPECT_FALSE(table.Renew(kA, LoanId(1), kStart).ok());
  // Room again.
  table.Stop({.debtor = kA, .loan = LoanId(1)});
  table.Stop({.debtor = {.node = NodeId("n"), .incarnation = Incarnation(0)}, .loan = LoanId(7)});
  table.Serve(Serve(kA, 2, {.first = 0, .end = 1}, 0), kStart);
  EXPECT_TRUE(table.Renew(kA, LoanId(2), kStart).ok());
}

TEST(LoanTableTest, StopWaitsForTheUseOfThisLoanOnly) {
  LoanTable table;
  table.Serve(Serve(kA, 1, {.first = 0, .end = 1}, 0), kStart);
  table.Serve(Serve(kA, 2, {.first = 0, .end = 1}, 0), kStart);
  ASSERT_TRUE(table.BeginUse(kA, LoanId(1), {.first = 0, .end = 1}, kStart).ok());
  table.Stop({.debtor = kA, .loan = LoanId(2)});
  std::atomic<bool> in_use{true};
  std::thread stopping([&] {
    table.Stop({.debtor = kA, .loan = LoanId(1)});
    EXPECT_FALSE(in_use.load());
  });
  while (table.size() > 0) {
  }
  in_use.store(false);
  table.EndUse();
  stopping.join();
}

TEST(ComputeShareTest, AShareIsKeptOverTimeAndNoAnswerWaitsForEver) {
  absl::Time now = kStart;
  ComputeShare share(0.25, now);
  // What is saved may be used at once.
  EXPECT_EQ(share.Delay(now), absl::ZeroDuration());
  share.Spend(absl::Milliseconds(240));
  now += absl::Milliseconds(240);
  EXPECT_EQ(share.Delay(now), absl::ZeroDuration());
  absl::Duration busy;
  const absl::Time began = now;
  for (int i = 0; i < 200; ++i) {
    now += share.Delay(now);
    share.Spend(absl::Milliseconds(20));
    now += absl::Milliseconds(20);
    busy += absl::Milliseconds(20);
  }
  const double part = absl::FDivDuration(busy, now - began);
  EXPECT_GT(part, 0.24);
  EXPECT_LT(part, 0.28);
  share.Spend(absl::Seconds(100));
  EXPECT_LE(share.Delay(now), ComputeShare::kDelayMax);
  EXPECT_GT(share.Delay(now), absl::Milliseconds(190));
  ComputeShare whole(1, now), least(0, now);
  whole.Spend(absl::Seconds(100));
  EXPECT_EQ(whole.Delay(now), absl::ZeroDuration());
  least.Spend(absl::Seconds(100));
  EXPECT_LE(least.Delay(now), ComputeShare::kDelayMax);
}

}  // namespace
}  // namespace tandem::lending
