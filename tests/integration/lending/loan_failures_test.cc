// Goal: what docs/LENDING.md says of the end of a loan holds for real processes. A debtor that is
// killed gets nothing more: its creditor ends the loan by itself, and the request is answered
// elsewhere. A creditor that is stopped costs its debtor time and no token, costs other requests
// nothing, and leaks nothing when it goes on. A router that dies ends no loan, and the next one
// learns the ledger anew. `tandem debts` shows a loan while it lasts. Each answer has the tokens
// and log-probabilities of one node that holds the whole sequence.
#include <gmock/gmock.h>
#include <signal.h>

#include <map>
#include <random>

#include "nlohmann/json.hpp"
#include "tests/integration/lending/asked.h"
#include "tests/integration/lending/lent_status.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;
using Flags = std::vector<std::string>;

// Of 880 tokens, more than a node's 640; with steps of 8 ms it takes some seconds.
v1::GenerateRequest LongRequest() {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  v1::GenerateRequest request;
  for (int i = 0; i < 60; ++i) request.mutable_tokens()->add_ids(static_cast<int>(random() % 200));
  request.mutable_stop()->set_max_tokens(820);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_return_token_ids(true);
  request.mutable_sampling()->set_temperature(0.8);
  request.mutable_sampling()->set_seed(random() >> 1);
  request.mutable_sampling()->set_logprobs(1);
  return request;
}

struct Debt {
  std::string debtor, creditor;
};

// The first debt that a status has.
std::optional<Debt> DebtIn(const v1::GetStatusResponse& status) {
  for (const v1::NodeStatus& node : status.nodes())
    if (const std::string creditor = CreditorOf(status, node.node_id()); !creditor.empty())
      return Debt{node.node_id(), creditor};
  return std::nullopt;
}

int64_t LoansLost(const v1::GetStatusResponse& status) {
  int64_t lost = 0;
  for (const v1::NodeStatus& node : status.nodes()) lost += node.counters().loans_lost();
  return lost;
}

// Three decode nodes, and one or two routers.
class LoanFailures : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto large = TestCluster::Start(
        {"--engine=hash", "--prefill=0", "--decode=1", "--kv-blocks=200", "--block-tokens=16"});
    ASSERT_OK(large.status());
    expected_ = (*large)->Generate(request_);
    ASSERT_OK(expected_.status);
  }

  // `fleet`: where nodes join it.
  void StartRouter(const std::string& id, const std::string& fleet = "127.0.0.1:0") {
    auto router = RunningProgram::Start({"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0",
                                         "--fleet=" + fleet, "--id=" + id,
                                         "--heartbeat-interval=20ms", "--node-lost-after=1s"});
    ASSERT_OK(router.status());
    grpc_[id] = (*router)->AwaitField("router started", "grpc");
    fleet_[id] = (*router)->AwaitField("router started", "fleet");
    ASSERT_FALSE(grpc_[id].empty()) << (*router)->log();
    clients_[id] = cli::Client::Create(grpc_[id]);
    processes_[id] = *std::move(router);
  }
  // Nodes that join all routers.
  void StartNodes() {
    std::string routers;
    for (const auto& [id, address] : fleet_)
      absl::StrAppend(&routers, routers.empty() ? "" : ",", address);
    for (const char* id : {"decode-0", "decode-1", "decode-2"}) {
      auto node = RunningProgram::Start(
          {"tandem-decode-node", "--engine=hash", absl::StrCat("--id=", id), "--routers=" + routers,
           "--block-tokens=16", "--kv-blocks=40", "--lend-fraction=0.8", "--hash-step-time=8ms"});
      ASSERT_OK(node.status());
      processes_[id] = *std::move(node);
    }
    for (const auto& [id, client] : clients_) AwaitNodes(id, 3);
  }
  void AwaitNodes(const std::string& router, int count) {
    const auto status =
        AwaitStatus(*clients_[router], absl::Seconds(60), [&](const auto& status) -> std::string {
          int ready = 0;
          for (const v1::NodeStatus& node : status.nodes()) ready += node.state() == "ready";
          return ready >= count ? "" : absl::StrCat(ready, " of ", count, " nodes are ready");
        });
    ASSERT_OK(status.status()) << logs();
  }
  // A debt that the router knows of, while the request runs.
  Debt AwaitDebt(const std::string& router) {
    Debt debt;
    EXPECT_OK(AwaitStatus(*clients_[router], absl::Seconds(60),
                          [&](const auto& status) -> std::string {
                            const auto found = DebtIn(status);
                            if (found.has_value()) debt = *found;
                            return found.has_value() ? "" : "no node owes";
                          })
                  .status())
        << logs();
    return debt;
  }
  RunningProgram& process(const std::string& id) { return *processes_.at(id); }
  void Kill(const std::string& id) {
    process(id).Signal(SIGKILL);
    EXPECT_EQ(process(id).AwaitEnd(), "signal 9");
  }
  void ExpectExpected(const Answer& answer) {
    ASSERT_OK(answer.status) << logs();
    EXPECT_EQ(answer.tokens, expected_.tokens) << logs();
    EXPECT_EQ(answer.logprobs, expected_.logprobs);
  }
  // So many nodes are ready, and none holds, lends or owes anything.
  void ExpectNothingHeld(const std::string& router, int nodes) {
    AwaitNodes(router, nodes);
    EXPECT_OK(AwaitStatus(*clients_[router], absl::Seconds(30), HeldOrLent).status()) << logs();
  }
  std::string logs() const {
    std::string all;
    for (const auto& [id, process] : processes_) absl::StrAppend(&all, id, "\n", process->log());
    return all;
  }

  const v1::GenerateRequest request_ = LongRequest();
  Answer expected_;
  std::map<std::string, std::string> grpc_, fleet_;  // by router
  std::map<std::string, std::unique_ptr<cli::Client>> clients_;
  std::map<std::string, std::unique_ptr<RunningProgram>> processes_;
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
  int64_t postponed = 0;
  for (const v1::NodeStatus& node : status->nodes())
    postponed += node.counters().sequences_postponed();
  EXPECT_GT(postponed, 0) << "the sequence waited before it lost the loan";
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
  EXPECT_EQ(LoansLost(*status), 0) << logs();
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
