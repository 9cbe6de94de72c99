// Goal: with real processes, a lost loan's units are lent by another node that holds their blocks,
// and a creditor that needs its memory gets it back, while each answer has the tokens and
// log-probabilities of one node that holds the whole sequence.
#include "tests/integration/lending/loan_fleet.h"

namespace tandem::testing {
namespace {

using LoanPressure = LoanFleet;

// The prefill node keeps the prompt's blocks as prefix cache. A node that lends fetches from it
// what the killed creditor held, before the debtor has computed it again, which takes some 13
// steps. By then the answer has grown into the memory of the lent blocks, so the debtor has them no
// more.
TEST_F(LoanPressure, AKilledCreditorsUnitsAreFetchedFromTheNodeThatComputedThePrompt) {
  std::mt19937_64 random(PrintedSeed());
  const v1::GenerateRequest request = RandomRequest(random, 400, 480);
  const Answer expected = Expected(request);
  StartRouter("router");
  StartNode("tandem-prefill-node", "prefill-0", {"--kv-blocks=200", "--lend-fraction=0"});
  for (const char* id : {"decode-0", "decode-1", "decode-2"}) {
    StartNode("tandem-decode-node", id,
              {"--kv-blocks=40", "--lend-fraction=0.8", "--max-batch-tokens=16"});
  }
  AwaitNodes("router", 4);
  Asked asked(*clients_["router"], request);
  ASSERT_TRUE(asked.AwaitTokens(440));
  const Debt debt = AwaitDebt("router");
  ASSERT_FALSE(debt.debtor.empty());
  Kill(debt.creditor);
  ExpectEqual(asked.AwaitEnd(), expected);
  const auto status = clients_["router"]->GetStatus(absl::Seconds(10));
  ASSERT_OK(status.status());
  EXPECT_GT(SumOf(*status, &v1::NodeCounters::units_regained), 0) << logs();
  ExpectNothingHeld("router", 3);
}

// Short requests come while a long one borrows, and need more than what is left on all nodes.
TEST_F(LoanPressure, ACreditorThatRunsShortOfMemoryRecallsItsLoan) {
  std::mt19937_64 random(PrintedSeed());
  std::vector<v1::GenerateRequest> requests = {RandomRequest(random, 60, 820)};
  for (int i = 0; i < 12; ++i) requests.push_back(RandomRequest(random, 20, 280));
  std::vector<Answer> expected;
  for (const v1::GenerateRequest& request : requests) expected.push_back(Expected(request));
  StartRouter("router");
  StartNodes();
  std::vector<std::unique_ptr<Asked>> asked;
  asked.push_back(std::make_unique<Asked>(*clients_["router"], requests[0]));
  ASSERT_FALSE(AwaitDebt("router").debtor.empty());
  for (size_t i = 1; i < requests.size(); ++i)
    asked.push_back(std::make_unique<Asked>(*clients_["router"], requests[i]));
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectEqual(asked[i]->AwaitEnd(), expected[i]);
  }
  const auto status = clients_["router"]->GetStatus(absl::Seconds(10));
  ASSERT_OK(status.status());
  EXPECT_GT(SumOf(*status, &v1::NodeCounters::loans_recalled), 0) << logs();
  ExpectNothingHeld("router", 3);
}

}  // namespace
}  // namespace tandem::testing
