// Goal: real processes measure what their steps and KV transfers cost, and `tandem status` shows
// what was predicted beside what was measured. A limit for the time between tokens changes steps
// and no token, however many prompts run beside them.
#include <gmock/gmock.h>

#include <thread>
#include <vector>

#include "tests/testing/program_run.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::GenerateRequest RequestOf(int number, int prompt_tokens, int max_tokens) {
  v1::GenerateRequest request;
  for (int i = 0; i < prompt_tokens; ++i)
    request.mutable_tokens()->add_ids((number * 31 + i * number) % 256);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

TEST(StepCost, NodesLearnItAndStatusShowsIt) {
  // Every prompt moves: a slow link would keep the next ones on the decode node otherwise.
  ASSERT_OK_AND_ASSIGN(
      auto cluster,
      TestCluster::Start({"--engine=hash", "--prefill=1", "--decode=1", "--hash-step-time=2ms",
                          "--hash-row-time=20us", "--local-prefill-tokens=0"}));
  for (int i = 1; i <= 12; ++i) ASSERT_OK(cluster->Generate(RequestOf(i, 60 * i, 8)).status);
  const auto unmeasured = [](const v1::GetStatusResponse& status) -> std::string {
    for (const v1::NodeStatus& node : status.nodes()) {
      // Four are the probe's. The decode node generates eight tokens of each answer.
      if (node.step_cost().samples() < (node.role() == "decode" ? 4 + 12 * 7 : 4 + 12))
        return absl::StrCat(node.node_id(), " measured ", node.step_cost().samples(), " steps");
    }
    return status.links_size() == 1 && status.links(0).rate_samples() > 0 ? "" : "no link is known";
  };
  ASSERT_OK_AND_ASSIGN(const auto status,
                       AwaitStatus(cluster->client(), absl::Seconds(20), unmeasured));
  for (const v1::NodeStatus& node : status.nodes()) {
    const v1::StepCost& cost = node.step_cost();
    // The engine waits for at least so long; what comes on top is the machine's.
    EXPECT_GE(cost.actual_us(), 2000.0 * static_cast<double>(cost.samples())) << node.node_id();
    EXPECT_GT(cost.predicted_us(), 0) << node.node_id();
    EXPECT_EQ(cost.rejected(), 0) << node.node_id();
  }
  const ProgramRun shown = RunProgram({"tandem", "status", "--router", cluster->address()});
  EXPECT_EQ(shown.exit_code, 0) << shown.output;
  EXPECT_THAT(shown.output, AllOf(HasSubstr("ENGINE STEPS OF"), HasSubstr("PREDICTED"),
                                  HasSubstr("decode-0 "), HasSubstr("prefill-0 ")));
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST(StepCost, ALimitForTheTimeBetweenTokensChangesNoToken) {
  // Answers that generate while prompts arrive; by --itl-slo.
  const auto streams = [](const std::string& slo) {
    std::vector<Answer> answers(12);
    auto cluster =
        TestCluster::Start({"--engine=hash", "--prefill=0", "--decode=1", "--hash-step-time=1ms",
                            "--hash-row-time=50us", "--itl-slo=" + slo});
    EXPECT_OK(cluster.status());
    std::vector<std::thread> clients;
    for (size_t i = 0; i < answers.size(); ++i) {
      clients.emplace_back([&, i] {
        const int number = static_cast<int>(i) + 1;
        const bool generates = i % 2 == 0;
        answers[i] =
            (*cluster)->Generate(RequestOf(number, generates ? 20 : 900, generates ? 120 : 2));
      });
    }
    for (std::thread& client : clients) client.join();
    EXPECT_EQ((*cluster)->Stop(), "exit code 0");
    return answers;
  };
  const std::vector<Answer> free = streams("0");
  for (const char* slo : {"1us", "5ms"}) {
    const std::vector<Answer> limited = streams(slo);
    for (size_t i = 0; i < free.size(); ++i) {
      ASSERT_OK(limited[i].status) << slo;
      EXPECT_EQ(limited[i].tokens, free[i].tokens) << slo << ", request " << i;
    }
  }
}

}  // namespace
}  // namespace tandem::testing
