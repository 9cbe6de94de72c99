// Goal: the checker of ledgers reports a router that still does not know a node's debts when a
// heartbeat was due, names both, and says nothing while a heartbeat may be on its way.
#include "sim/checkers/ledger_checker.h"

#include <gmock/gmock.h>

namespace tandem::sim {
namespace {

using ::testing::HasSubstr;

class LedgerCheckerTest : public ::testing::Test {
 protected:
  static v1::NodeLoad Owes(int64_t blocks) {
    v1::NodeLoad load;
    v1::Debt& debt = *load.add_debts();
    debt.set_creditor_node_id("decode-1");
    debt.set_blocks(blocks);
    debt.set_loans(1);
    return load;
  }
  // At so many milliseconds, with a heartbeat at least every 100 ms.
  void At(int64_t ms, const v1::NodeLoad& owed, const v1::NodeLoad& known, bool reachable = true,
          uint64_t connection = 1) {
    checker_.Check({.router = "router-0",
                    .node = "decode-0",
                    .connection = connection,
                    .reachable = reachable,
                    .running = absl::UnixEpoch() + absl::Milliseconds(ms),
                    .heartbeat = absl::Milliseconds(100)},
                   owed, known);
  }

  World world_{1};
  RunLog log_{world_, /*timeline=*/false};
  LedgerChecker checker_{log_};
};

TEST_F(LedgerCheckerTest, ADebtThatNoHeartbeatBroughtIsReportedOnce) {
  for (int64_t ms = 0; ms <= 300; ms += 20) At(ms, Owes(8), {});
  ASSERT_EQ(log_.violations().size(), 1u);
  EXPECT_EQ(log_.violations()[0].checker, "ledger");
  EXPECT_THAT(log_.violations()[0].what,
              HasSubstr("router-0 says that decode-0 owes nothing, it owes decode-1 8 blocks"));
}

TEST_F(LedgerCheckerTest, ADebtThatIsOverIsReportedAsWell) {
  for (int64_t ms = 0; ms <= 120; ms += 20) At(ms, {}, Owes(8));
  EXPECT_EQ(log_.violations().size(), 1u);
}

TEST_F(LedgerCheckerTest, AHeartbeatMayBeOnItsWay) {
  for (int64_t ms = 0; ms <= 100; ms += 20) At(ms, Owes(8), {});
  At(120, Owes(8), Owes(8));
  EXPECT_FALSE(checker_.follows_any());
  // Debts that change, another connection and a partition begin the time anew.
  for (int64_t ms = 200; ms < 500; ms += 20) At(ms, Owes(ms), {});
  for (int64_t ms = 500; ms < 800; ms += 20) At(ms, Owes(8), {}, true, static_cast<uint64_t>(ms));
  for (int64_t ms = 800; ms < 1'000; ms += 20) At(ms, Owes(8), {}, /*reachable=*/false);
  EXPECT_TRUE(log_.violations().empty());
}

}  // namespace
}  // namespace tandem::sim
