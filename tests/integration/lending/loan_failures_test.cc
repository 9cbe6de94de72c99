// Goal: what docs/LENDING.md says of the end of a loan holds for real processes. A debtor that is
// killed gets nothing more: its creditor ends the loan by itself, and the request is answered
// elsewhere. A creditor that is stopped costs its debtor time and no token, costs other requests
// nothing, and leaks nothing when it goes on. A router that dies ends no loan, and the next one
// learns the ledger anew. `tandem debts` shows a loan while it lasts. Each answer has the tokens
// and log-probabilities of one node that holds the whole sequence.
#include <gmock/gmock.h>
#include <signal.h>

#include "nlohmann/json.hpp"
#include "tests/integration/lending/loan_fleet.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;
// Of 880 tokens, more than a node's 640; with steps of 8 ms it takes some seconds.
class LoanFailures : public LoanFleet {
 protected:
  void SetUp() override {
    LoanFleet::SetUp();
    std::mt19937_64 random(PrintedSeed());
    request_ = RandomRequest(random, 60, 820);
    expected_ = Expected(request_);
  }
  void ExpectExpected(const Answer& answer) { ExpectEqual(answer, expected_); }

  v1::GenerateRequest request_;
  Answer expected_;
};

TEST_F(LoanFailures, AKilledDebtorsLoanEndsAtItsCreditorAndTheAnswerComesFromElsewhere) {
  StartRouter("router");
  StartNodes();
  Asked asked(*clients_["router"], request_);
  const Debt debt = AwaitDebt("router");
  ASSERT_FALSE(debt.debtor.empty());
  Kill(debt.debtor);
  const std::string ended =
      process(debt.creditor).AwaitLine("why=\"its debtor was not heard of\"", absl::Seconds(60));
  EXPECT_THAT(ended, HasSubstr("debtor=" + debt.debtor)) << logs();
  const Answer answer = asked.AwaitEnd();
  ExpectExpected(answer);
  EXPECT_GE(answer.finished.route().attempts(), 2);
  EXPECT_NE(answer.finished.route().decode_node(), debt.debtor);
  ExpectNothingHeld("router", 2);
}

TEST_F(LoanFailures, AStoppedCreditorCostsNoTokenAndLeaksNothingWhenItGoesOn) {
  StartRouter("router");
  StartNodes();
  Asked asked(*clients_["router"], request_);
  const Debt debt = AwaitDebt("router");
  ASSERT_FALSE(debt.debtor.empty());
  process(debt.creditor).Signal(SIGSTOP);
  // Another request is answered while the creditor stands still and its debtor goes on.
  v1::GenerateRequest other = request_;
  other.mutable_stop()->set_max_tokens(5);
  const Answer short_answer = Collect(*clients_["router"], other);
  EXPECT_OK(short_answer.status) << logs();
  EXPECT_EQ(short_answer.tokens,
            std::vector<int32_t>(expected_.tokens.begin(), expected_.tokens.begin() + 5));
  ExpectExpected(asked.AwaitEnd());
  process(debt.creditor).Signal(SIGCONT);
  ExpectNothingHeld("router", 3);
  const auto status = clients_["router"]->GetStatus(absl::Seconds(10));
  ASSERT_OK(status.status());
  EXPECT_GT(SumOf(*status, &v1::NodeCounters::sequences_postponed), 0)
      << "the sequence waited before it lost the loan";
}

// The request runs at router a. Router b dies and starts again with nothing.
TEST_F(LoanFailures, ARoutersDeathEndsNoLoanAndTheNextOneLearnsTheLedger) {
  StartRouter("a");
  StartRouter("b");
  StartNodes();
  Asked asked(*clients_["a"], request_);
  const Debt debt = AwaitDebt("a");
  ASSERT_FALSE(debt.debtor.empty());
  Kill("b");
  StartRouter("b", fleet_["b"]);
  const Debt learned = AwaitDebt("b");
  EXPECT_EQ(learned.debtor, debt.debtor);
  const size_t tokens = asked.tokens();
  EXPECT_LT(tokens, expected_.tokens.size()) << "the loan outlived the router";
  ExpectExpected(asked.AwaitEnd());
  const auto status = clients_["a"]->GetStatus(absl::Seconds(10));
  ASSERT_OK(status.status());
  EXPECT_EQ(SumOf(*status, &v1::NodeCounters::loans_lost), 0) << logs();
  for (const char* router : {"a", "b"}) ExpectNothingHeld(router, 3);
}

TEST_F(LoanFailures, TheDebtsCommandFindsTheLoanWhileItLasts) {
  StartRouter("router");
  StartNodes();
  const auto debts = [&](const Flags& flags) {
    Flags words = {"tandem", "debts", "--router=" + grpc_["router"]};
    words.insert(words.end(), flags.begin(), flags.end());
    return RunProgram(words);
  };
  const ProgramRun none = debts({});
  EXPECT_EQ(none.exit_code, 0) << none.output;
  EXPECT_THAT(none.output, HasSubstr("No node has borrowed KV blocks."));
  Asked asked(*clients_["router"], request_);
  const Debt debt = AwaitDebt("router");
  const ProgramRun table = debts({}), json = debts({"--json"});
  EXPECT_LT(asked.tokens(), expected_.tokens.size()) << "the loan had ended";
  EXPECT_EQ(table.exit_code, 0) << table.output;
  EXPECT_THAT(table.output, HasSubstr("OF LENT"));
  EXPECT_THAT(table.output, HasSubstr("> " + debt.creditor + "  ")) << "the edge of the picture";
  const auto parsed = nlohmann::json::parse(json.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(parsed.is_object() && !parsed["debts"].empty()) << json.output;
  EXPECT_EQ(parsed["debts"][0]["debtor"], debt.debtor);
  EXPECT_EQ(parsed["debts"][0]["creditor"], debt.creditor);
  EXPECT_GE(parsed["debts"][0]["blocks"], 16) << "a unit";
  ExpectExpected(asked.AwaitEnd());
  ExpectNothingHeld("router", 3);
}

}  // namespace
}  // namespace tandem::testing
