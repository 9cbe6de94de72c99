// Goal: `tandem status` and `tandem ps` show a real cluster in 80 columns and as JSON whose numbers
// are numbers; --watch shows it again until it is interrupted, whether the router answers or not.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "tests/testing/program_run.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class StatusCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start({"--engine=hash", "--prefill=1", "--decode=1",
                                                       "--hash-step-time=5ms"}));
    router_ = "--router=" + cluster_->address();
  }
  static v1::GenerateRequest Request(const std::string& id, int tokens) {
    v1::GenerateRequest request;
    request.set_request_id(id);
    request.set_text(std::string(300, 'x'));
    request.mutable_stop()->set_max_tokens(tokens);
    request.mutable_stop()->set_ignore_eos(true);
    return request;
  }

  std::string router_;
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(StatusCommandTest, ShowsNodesTransfersAndStepsInEightyColumns) {
  ASSERT_OK(cluster_->Generate(Request("r", 20)).status);
  // Nodes report what their steps cost with their next heartbeats.
  ASSERT_OK(AwaitStatus(cluster_->client(), absl::Seconds(30), [](const auto& status) {
    for (const v1::NodeStatus& node : status.nodes()) {
      if (node.step_cost().samples() == 0) return "no cost of steps";
    }
    return "";
  }));
  const ProgramRun run = RunProgram({"tandem", "status", router_});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.output, AllOf(StartsWith("router "), HasSubstr("1 finished"),
                                HasSubstr("\nprefill-0 "), HasSubstr("\ndecode-0 "),
                                HasSubstr("\nKV FROM "), HasSubstr("\nENGINE STEPS OF ")));
  for (const absl::string_view line : absl::StrSplit(run.output, '\n')) {
    EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST_F(StatusCommandTest, JsonHasNumbers) {
  ASSERT_OK(cluster_->Generate(Request("r", 20)).status);
  const ProgramRun run = RunProgram({"tandem", "status", router_, "--json"});
  const json status = json::parse(run.output);
  EXPECT_EQ(status["router"]["requests_finished"], 1);
  EXPECT_EQ(status["nodes"].size(), 2u);
  EXPECT_TRUE(status["nodes"][0]["load"]["blocks_total"].is_number_integer());
}

TEST_F(StatusCommandTest, WatchShowsItAgainUntilItIsInterrupted) {
  ASSERT_OK_AND_ASSIGN(
      const auto watch,
      RunningProgram::Start({"tandem", "status", router_, "--json", "--watch", "--every=100ms"}));
  EXPECT_FALSE(watch->AwaitLine("\"requests_finished\":0").empty()) << watch->log();
  ASSERT_OK(cluster_->Generate(Request("r", 2)).status);
  EXPECT_FALSE(watch->AwaitLine("\"requests_finished\":1").empty()) << watch->log();
  cluster_->Stop();
  EXPECT_FALSE(watch->AwaitLine("tandem status: ").empty()) << watch->log();
  watch->Signal(SIGINT);
  EXPECT_EQ(watch->AwaitEnd().value_or("goes on"), "exit code 0");
}

TEST_F(StatusCommandTest, TooShortAnIntervalIsRefused) {
  const ProgramRun run = RunProgram({"tandem", "status", router_, "--watch", "--every=1ms"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.output, HasSubstr("every: value '1ms'"));
}

TEST_F(StatusCommandTest, PsListsWhatRuns) {
  EXPECT_EQ(json::parse(RunProgram({"tandem", "ps", router_, "--json"}).output)["requests"].size(),
            0u);
  ASSERT_OK_AND_ASSIGN(
      const auto client,
      RunningProgram::Start({"tandem", "generate", "--json", "--ignore-eos", "--max-tokens=4000",
                             "--request-id=the-long-one", router_, std::string(300, 'x')}));
  ASSERT_FALSE(client->AwaitLine("\"delta\"").empty()) << client->log();
  const ProgramRun table = RunProgram({"tandem", "ps", router_});
  EXPECT_THAT(table.output, AllOf(HasSubstr("REQUEST "), HasSubstr("\nthe-long-one "),
                                  HasSubstr(" generating ")));
  const json listed =
      json::parse(RunProgram({"tandem", "ps", router_, "--json"}).output)["requests"][0];
  EXPECT_EQ(listed["request_id"], "the-long-one");
  EXPECT_GT(listed["output_tokens"], 0);
  EXPECT_EQ(listed["decode_node"], "decode-0");
  client->Signal(SIGKILL);
  EXPECT_TRUE(client->AwaitEnd().has_value());
  ASSERT_OK(AwaitQuiet(cluster_->client(), absl::Seconds(30)));
}

}  // namespace
}  // namespace tandem::testing
