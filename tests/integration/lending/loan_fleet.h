// A fleet of real processes whose nodes lend to each other, for tests of what ends a loan.
// Thread safety: the test's thread uses it.
#pragma once

#include <signal.h>

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/integration/lending/asked.h"
#include "tests/integration/lending/lent_status.h"
#include "tests/testing/printed_seed.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {

using Flags = std::vector<std::string>;

// A request of random tokens that generates to its limit.
inline v1::GenerateRequest RandomRequest(std::mt19937_64& random, int prompt_tokens,
                                         int max_tokens) {
  v1::GenerateRequest request;
  for (int i = 0; i < prompt_tokens; ++i)
    request.mutable_tokens()->add_ids(static_cast<int>(random() % 200));
  request.mutable_stop()->set_max_tokens(max_tokens);
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
inline std::optional<Debt> DebtIn(const v1::GetStatusResponse& status) {
  for (const v1::NodeStatus& node : status.nodes())
    if (const std::string creditor = CreditorOf(status, node.node_id()); !creditor.empty())
      return Debt{node.node_id(), creditor};
  return std::nullopt;
}

// What `counter` of all nodes comes to.
inline int64_t SumOf(const v1::GetStatusResponse& status,
                     int64_t (v1::NodeCounters::*counter)() const) {
  int64_t sum = 0;
  for (const v1::NodeStatus& node : status.nodes()) sum += (node.counters().*counter)();
  return sum;
}

// Decode nodes of 640 tokens each, and one or two routers. Answers are compared with those of one
// node that holds whole sequences.
class LoanFleet : public ::testing::Test {
 protected:
  void SetUp() override {
    auto large = TestCluster::Start(
        {"--engine=hash", "--prefill=0", "--decode=1", "--kv-blocks=400", "--block-tokens=16"});
    ASSERT_OK(large.status());
    large_ = *std::move(large);
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
  // Three decode nodes that join all routers.
  void StartNodes() {
    for (const char* id : {"decode-0", "decode-1", "decode-2"})
      StartNode("tandem-decode-node", id, {"--kv-blocks=40", "--lend-fraction=0.8"});
    for (const auto& [id, client] : clients_) AwaitNodes(id, 3);
  }
  void StartNode(const std::string& program, const std::string& id, const Flags& flags) {
    std::string routers;
    for (const auto& [router, address] : fleet_)
      absl::StrAppend(&routers, routers.empty() ? "" : ",", address);
    Flags words = {program,
                   "--engine=hash",
                   "--id=" + id,
                   "--routers=" + routers,
                   "--block-tokens=16",
                   "--hash-step-time=8ms"};
    words.insert(words.end(), flags.begin(), flags.end());
    auto node = RunningProgram::Start(words);
    ASSERT_OK(node.status());
    processes_[id] = *std::move(node);
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
  // As one node that holds the whole sequence answers.
  Answer Expected(const v1::GenerateRequest& request) {
    Answer answer = large_->Generate(request);
    EXPECT_OK(answer.status);
    return answer;
  }
  void ExpectEqual(const Answer& answer, const Answer& expected) {
    ASSERT_OK(answer.status) << logs();
    EXPECT_EQ(answer.tokens, expected.tokens) << logs();
    EXPECT_EQ(answer.logprobs, expected.logprobs);
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

  std::unique_ptr<TestCluster> large_;
  std::map<std::string, std::string> grpc_, fleet_;  // by router
  std::map<std::string, std::unique_ptr<cli::Client>> clients_;
  std::map<std::string, std::unique_ptr<RunningProgram>> processes_;
};

}  // namespace tandem::testing
