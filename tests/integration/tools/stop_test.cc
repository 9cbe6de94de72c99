// Goal: a closed terminal (SIGHUP) drains servers as SIGTERM does, and is nothing under nohup; a
// process that still starts ends at once; who cut answers off says so by exit code 1.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"
#include "tests/testing/test_folder.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string>& Router() {
  static const std::vector<std::string> words = {"tandem-router", "--engine=hash",
                                                 "--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0"};
  return words;
}

// A mask of signals in /proc/PID/status, such as "SigIgn".
uint64_t MaskOf(pid_t pid, const std::string& name) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/status"));
  uint64_t mask = 0;
  for (std::string line; std::getline(in, line);) {
    if (!absl::StartsWith(line, name + ":\t")) continue;
    EXPECT_TRUE(absl::SimpleHexAtoi(line.substr(name.size() + 2), &mask));
  }
  return mask;
}

TEST(Stop, AClosedTerminalDrainsServers) {
  ASSERT_OK_AND_ASSIGN(const auto router, RunningProgram::Start(Router()));
  const std::string fleet = router->AwaitField("router started", "fleet");
  ASSERT_OK_AND_ASSIGN(const auto node,
                       RunningProgram::Start({"tandem-decode-node", "--engine=hash",
                                              "--kv-blocks=64", "--routers=" + fleet}));
  ASSERT_FALSE(node->AwaitLine("joined router").empty()) << node->log();
  for (const auto& program : {node.get(), router.get()}) {
    program->Signal(SIGHUP);
    EXPECT_EQ(program->AwaitEnd().value_or("goes on"), "exit code 0") << program->log();
    EXPECT_THAT(program->log(), HasSubstr("drained"));
  }
}

TEST(Stop, NohupKeepsServersRunning) {
  signal(SIGHUP, SIG_IGN);
  const auto started = RunningProgram::Start(
      {"tandem-decode-node", "--engine=hash", "--kv-blocks=64", "--routers=127.0.0.1:1"});
  signal(SIGHUP, SIG_DFL);
  ASSERT_OK(started.status());
  RunningProgram& node = **started;
  ASSERT_FALSE(node.AwaitLine("node started").empty()) << node.log();
  EXPECT_EQ(MaskOf(node.pid(), "SigIgn") & 1, 1U);
  EXPECT_EQ(MaskOf(node.pid(), "SigBlk") & 1, 0U);
  node.Signal(SIGTERM);
  EXPECT_EQ(node.AwaitEnd().value_or("goes on"), "exit code 0") << node.log();
}

// A secret that never comes stands for a model that takes long to load.
TEST(Stop, EndsAStartAtOnce) {
  const TestFolder folder("stop");
  const std::string secret = folder / "secret";
  ASSERT_EQ(::mkfifo(secret.c_str(), 0600), 0);
  std::vector<std::string> router = Router();
  for (std::vector<std::string> words :
       {router, {"tandem-decode-node", "--engine=hash", "--routers=127.0.0.1:1"}}) {
    words.push_back("--fleet-secret-file=" + secret);
    ASSERT_OK_AND_ASSIGN(const auto program, RunningProgram::Start(words));
    ASSERT_FALSE(program->AwaitLine("configured").empty()) << program->log();
    program->Signal(SIGTERM);
    EXPECT_EQ(program->AwaitEnd().value_or("goes on"), "exit code 0") << program->log();
    EXPECT_THAT(program->log(), HasSubstr("stopped before it had started"));
  }
}

TEST(Stop, SaysWhenAnswersWereCutOff) {
  ASSERT_OK_AND_ASSIGN(
      const auto cluster,
      TestCluster::Start({"--engine=hash", "--prefill=1", "--decode=1", "--kv-blocks=256",
                          "--hash-step-time=20ms", "--drain-timeout=100ms"}));
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(1);
  request.mutable_stop()->set_max_tokens(2000);
  request.mutable_stop()->set_ignore_eos(true);
  absl::Mutex mutex;
  bool begun = false;
  std::thread client([&] {
    const Answer answer = Collect(cluster->client(), request, [&](const Answer& so_far) {
      absl::MutexLock lock(&mutex);
      begun = begun || !so_far.text.empty();
    });
    EXPECT_FALSE(answer.status.ok());
  });
  {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&begun), absl::Seconds(60)));
  }
  const std::string ended = cluster->Stop();
  client.join();
  EXPECT_EQ(ended, "exit code 1");
}

}  // namespace
}  // namespace tandem::testing
