// Goal: a loan that no step asks about hears of a recall well within its notice.
#include <gtest/gtest.h>

#include "common/lending/creditor_links.h"
#include "tests/unit/lending/lending_world.h"

namespace tandem::lending {
namespace {

constexpr engine::UnitSpan kUnits = {.first = 0, .end = 2};

// A sequence may sit out steps: only renewals tell it of a recall then. Its creditor keeps the loan
// for a second after it.
TEST(QuietLoans, ALoanThatNothingAsksAboutHearsOfARecallWithinHalfOfItsNotice) {
  ManualClock clock;
  DebtorNode::Options options;
  options.clock = &clock;
  DebtorNode debtor(options);
  CreditorNode creditor({});
  debtor.Borrow(creditor, 1, kUnits, 10);
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (debtor.links->counters().creditors == 0 && absl::Now() < give_up) debtor.links->Progress();
  creditor.service->Handle(RecallLoan{.key = debtor.key(1)});
  clock.Advance(absl::Milliseconds(500));
  EXPECT_EQ(AwaitAtDebtor<LoanRecalled>(debtor).loan, LoanId(1));
}

}  // namespace
}  // namespace tandem::lending
