// Goal: what a cluster logs. On a terminal it starts with a line for each process. As JSON each
// line is an object. An access line has a request's ids, times and counts, and nothing of its text.
// A throughput line comes while there is work. A node logs its configuration in one line.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/terminal_session.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;
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
