// Goal: what a cluster logs. On a terminal it starts with a line for each process. As JSON each
// line is an object. An access line has a request's ids, times and counts, and nothing of its text.
// A throughput line comes while there is work. A node logs its configuration in one line.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "tests/testing/models.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/terminal_session.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

const std::vector<std::string> kSmall = {"--engine=hash", "--prefill=2", "--decode=3",
                                         "--kv-blocks=512"};

std::vector<std::string> With(std::vector<std::string> flags,
                              const std::vector<std::string>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

v1::GenerateRequest Request() {
  v1::GenerateRequest request;
  request.set_request_id("the-request");
  request.set_text("a secret word");
  request.mutable_stop()->set_max_tokens(7);
  return request;
}

TEST(Logs, ATerminalShowsALineForEachProcess) {
  TerminalSession up(With({"tandem", "up", "--grpc=127.0.0.1:0", "--http=0"}, kSmall),
                     {.columns = 500});
  ASSERT_TRUE(up.Await("Ctrl-C drains")) << up.screen();
  EXPECT_THAT(up.screen(), HasSubstr("router-0    serves hash"));
  EXPECT_THAT(up.screen(), HasSubstr("decode-2    ready, 512 KV blocks"));
  const std::vector<std::string> lines = absl::StrSplit(up.screen(), '\n');
  // The router, five nodes, "ready", and what follows the last line break.
  EXPECT_THAT(lines, SizeIs(1 + 5 + 1 + 1)) << up.screen();
  up.Type("\x03");
  EXPECT_EQ(up.Finish(), 0);
  // The router ends first, and five nodes lose it.
  EXPECT_THAT(up.screen(), Not(HasSubstr("WARNING"))) << up.screen();
}

// Quoted values come whole, and a drain that was asked for warns of nothing.
TEST(Logs, ATerminalWarnsOfNothingWhenAllIsWell) {
  const std::optional<std::string> model = FindModel(kSmolLm2File);
  if (!model.has_value()) GTEST_SKIP() << "needs " << ModelFolder() << "/" << kSmolLm2File;
  TerminalSession up(
      {"tandem", "up", "--grpc=127.0.0.1:0", "--http=0", "--model=" + *model, "--kv-blocks=16"},
      {.columns = 200});
  ASSERT_TRUE(up.Await("Ctrl-C drains")) << up.screen();
  EXPECT_THAT(up.screen(), HasSubstr("router-0    serves Smollm2 135M 8k Lc100K Mix1 Ep2\n"));
  up.Type("\x03");
  EXPECT_EQ(up.Finish(), 0);
  EXPECT_THAT(up.screen(), Not(HasSubstr("WARNING"))) << up.screen();
}

// A program that runs alone on a terminal says in one line that it runs; at level debug it also
// says how it came to it.
TEST(Logs, AProgramAloneStartsInOneLine) {
  const std::vector<std::string> words = {"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0",
                                          "--fleet=127.0.0.1:0"};
  TerminalSession brief(words, {.columns = 500});
  ASSERT_TRUE(brief.Await("router started")) << brief.screen();
  std::string lines = brief.screen();
  while (!lines.empty() && lines.back() == '\n') lines.pop_back();
  EXPECT_THAT(lines, Not(HasSubstr("\n")));
  TerminalSession whole(With(words, {"--log-level=debug"}), {.columns = 500});
  ASSERT_TRUE(whole.Await("configured")) << whole.screen();
  EXPECT_TRUE(whole.Await("router started")) << whole.screen();
}

// The flags of a node that packs a real model's weights in every start.
std::vector<std::string> PackingNode(const std::string& model) {
  return {"tandem-decode-node", "--id=d",        "--routers=127.0.0.1:1", "--model=" + model,
          "--weight-cache=off", "--kv-blocks=16"};
}

TEST(Logs, ATerminalShowsHowFarTheWeightsAre) {
  const std::optional<std::string> model = FindModel(kSmolLm2File);
  if (!model.has_value()) GTEST_SKIP() << "needs " << ModelFolder() << "/" << kSmolLm2File;
  TerminalSession node(PackingNode(*model), {.columns = 200});
  EXPECT_TRUE(node.Await("d packing weights [")) << node.screen();
  EXPECT_TRUE(node.Await("#")) << node.screen();
  EXPECT_TRUE(node.Await("node started")) << node.screen();
  // The bar is cleared before other lines come.
  EXPECT_THAT(node.written(), HasSubstr("\r\033[K"));
  node.Type("\x03");
  EXPECT_EQ(node.Finish(), 0);

  TerminalSession up({"tandem", "up", "--grpc=127.0.0.1:0", "--http=0", "--model=" + *model,
                      "--weight-cache=off", "--kv-blocks=16"},
                     {.columns = 200});
  EXPECT_TRUE(up.Await("weights [")) << up.screen();
  EXPECT_TRUE(up.Await("-0 packing")) << up.screen();
  EXPECT_TRUE(up.Await("Ctrl-C drains")) << up.screen();
  EXPECT_THAT(up.screen(), Not(HasSubstr("loading weights"))) << up.screen();
  up.Type("\x03");
  EXPECT_EQ(up.Finish(), 0);
}

TEST(Logs, APipeGetsNoBar) {
  const std::optional<std::string> model = FindModel(kSmolLm2File);
  if (!model.has_value()) GTEST_SKIP() << "needs " << ModelFolder() << "/" << kSmolLm2File;
  ASSERT_OK_AND_ASSIGN(const auto node, RunningProgram::Start(PackingNode(*model)));
  EXPECT_NE(node->AwaitLine("node started"), "") << node->log();
  EXPECT_THAT(node->log(), Not(HasSubstr("weights ["))) << node->log();
  EXPECT_THAT(node->log(), Not(HasSubstr("percent"))) << node->log();
  EXPECT_THAT(node->log(), Not(HasSubstr("\033"))) << node->log();
}

TEST(Logs, AFileGetsTheConfigurationOfEachProcessInOneLine) {
  ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start(kSmall));
  EXPECT_THAT(cluster->LinesWith(" configured "), SizeIs(6));
  EXPECT_THAT(cluster->LinesWith("kv-blocks=512 (flag)"), SizeIs(5));
  EXPECT_THAT(cluster->LinesWith("(default)"), SizeIs(0));
  EXPECT_THAT(cluster->LinesWith("request ended"), SizeIs(0));
}

TEST(Logs, AccessAndThroughputAsJson) {
  ASSERT_OK_AND_ASSIGN(const auto cluster,
                       TestCluster::Start(With(kSmall, {"--log-format=json", "--access-log",
                                                        "--throughput-every=1s"})));
  const Answer answer = cluster->Generate(Request());
  ASSERT_OK(answer.status);
  v1::GenerateRequest bad = Request();
  bad.set_request_id("too-long");
  bad.mutable_stop()->set_max_tokens(1 << 30);
  EXPECT_FALSE(cluster->Generate(bad).status.ok());
  const absl::Time give_up = absl::Now() + absl::Seconds(30);
  absl::Mutex mutex;
  const bool never = false;
  while (cluster->LinesWith("\"throughput\"").empty() && absl::Now() < give_up) {
    absl::MutexLock lock(&mutex);
    mutex.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(20));
  }
  ASSERT_THAT(cluster->LinesWith("request ended"), SizeIs(1));
  const auto line = nlohmann::json::parse(cluster->LinesWith("request ended")[0]);
  EXPECT_EQ(line["process"], "router-0");
  EXPECT_EQ(line["request_id"], "the-request");
  EXPECT_EQ(line["front_end"], "grpc");
  EXPECT_EQ(line["status"], "OK");
  EXPECT_EQ(line["reason"], "length");
  EXPECT_EQ(line["prompt_tokens"], answer.finished.usage().prompt_tokens());
  EXPECT_EQ(line["output_tokens"], 7);
  EXPECT_EQ(line["decode"], answer.finished.route().decode_node());
  EXPECT_TRUE(line["total_ms"].is_number());
  EXPECT_THAT(cluster->LinesWith("secret word"), SizeIs(0));
  EXPECT_THAT(cluster->LinesWith(nlohmann::json(answer.text).dump()), SizeIs(0));
  ASSERT_FALSE(cluster->LinesWith("\"throughput\"").empty());
  EXPECT_TRUE(nlohmann::json::parse(cluster->LinesWith("\"throughput\"")[0])["output_tokens_per_s"]
                  .is_number());
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

}  // namespace
}  // namespace tandem::testing
