// Goal: a prefill node fetches a conversation's history from the decode node that generated it, and
// that node is killed (SIGKILL) before the history has come. The request finishes with the tokens
// of a cluster in which nobody died, and so does the stream that ran on the killed node.
#include <gmock/gmock.h>
#include <signal.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster/turn.h"
#include "tests/testing/program_run.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

constexpr int kPrompt = 200, kAnswer = 170, kNew = 90;

v1::GenerateRequest FirstTurn() {
  std::vector<int32_t> tokens;
  for (int i = 0; i < kPrompt; ++i) tokens.push_back(1 + i % 200);
  return Turn(tokens, kAnswer);
}
v1::GenerateRequest SecondTurn(const Answer& first) {
  const v1::GenerateRequest turn = FirstTurn();
  std::vector<int32_t> tokens(turn.tokens().ids().begin(), turn.tokens().ids().end());
  tokens.insert(tokens.end(), first.tokens.begin(), first.tokens.end());
  for (int i = 0; i < kNew; ++i) tokens.push_back(1 + (i * 7) % 200);
  return Turn(tokens, 30);
}
// Takes some seconds on a node whose steps take 5 ms.
v1::GenerateRequest LongStream() { return Turn({9, 8, 7, 6, 5}, 600); }

struct Answers {
  Answer first, second, stream;
};

Answers OfAnUndisturbedCluster() {
  const auto cluster =
      TestCluster::Start({"--engine=hash", "--kv-blocks=256", "--prefill=1", "--decode=1",
                          "--local-prefill-tokens=0", "--fetch-tokens=0"});
  EXPECT_OK(cluster.status());
  Answers answers;
  answers.first = (*cluster)->Generate(FirstTurn());
  answers.second = (*cluster)->Generate(SecondTurn(answers.first));
  answers.stream = (*cluster)->Generate(LongStream());
  return answers;
}

class HolderKilled : public ::testing::Test {
 protected:
  void SetUp() override {
    auto router = RunningProgram::Start(
        {"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0",
         "--http=", "--heartbeat-interval=50ms", "--node-lost-after=60s",
         "--local-prefill-tokens=0", "--fetch-tokens=1"});
    ASSERT_OK(router.status());
    router_ = *std::move(router);
    const std::string grpc = router_->AwaitField("router started", "grpc");
    ASSERT_FALSE(grpc.empty()) << router_->log();
    fleet_ = router_->AwaitField("router started", "fleet");
    client_ = cli::Client::Create(grpc);
  }
  std::unique_ptr<RunningProgram> StartNode(const std::string& kind, const std::string& id,
                                            const std::vector<std::string>& flags) {
    std::vector<std::string> words = {absl::StrCat("tandem-", kind, "-node"), "--engine=hash",
                                      "--id=" + id, "--routers=" + fleet_, "--kv-blocks=256"};
    words.insert(words.end(), flags.begin(), flags.end());
    auto node = RunningProgram::Start(words);
    EXPECT_OK(node.status());
    EXPECT_FALSE((*node)->AwaitLine("joined router").empty()) << (*node)->log();
    return *std::move(node);
  }
  // Waits until `holds` of the node's status is true.
  template <typename Holds>
  void Await(const std::string& id, const std::string& what, Holds holds) {
    EXPECT_OK(AwaitStatus(*client_, absl::Seconds(20), [&](const v1::GetStatusResponse& status) {
                for (const v1::NodeStatus& node : status.nodes())
                  if (node.node_id() == id && holds(node)) return std::string();
                return absl::StrCat(id, ": not ", what);
              }).status());
  }

  std::unique_ptr<RunningProgram> router_;
  std::string fleet_;
  std::unique_ptr<cli::Client> client_;
};

TEST_F(HolderKilled, TheFetchIsGivenUpAndTheTokensAreTheSame) {
  const Answers expected = OfAnUndisturbedCluster();
  ASSERT_EQ(expected.second.tokens.size(), 30u);
  const auto prefill = StartNode("prefill", "p0", {"--hash-row-time=1ms"});
  // It runs one sequence at a time, so that the second turn decodes elsewhere.
  const auto holder = StartNode("decode", "holder", {"--hash-step-time=5ms", "--max-sequences=1"});
  const Answer first = Collect(*client_, FirstTurn());
  ASSERT_OK(first.status);
  ASSERT_EQ(first.tokens, expected.first.tokens);
  Answer stream, second;
  std::thread streaming([&] { stream = Collect(*client_, LongStream()); });
  Await("holder", "busy", [](const v1::NodeStatus& node) {
    return node.load().sequences_running() > 0 && node.load().blocks_cached() > 0;
  });
  const auto other = StartNode("decode", "other", {});
  // It hears that its blocks are wanted, and sends none.
  holder->Signal(SIGSTOP);
  std::thread asking([&] { second = Collect(*client_, SecondTurn(first)); });
  Await("p0", "fetching", [](const v1::NodeStatus& node) { return node.load().leases() > 0; });
  holder->Signal(SIGKILL);
  EXPECT_EQ(holder->AwaitEnd(), "signal 9");
  asking.join();
  streaming.join();
  EXPECT_OK(second.status);
  EXPECT_EQ(second.tokens, expected.second.tokens);
  EXPECT_OK(stream.status);
  EXPECT_EQ(stream.tokens, expected.stream.tokens);
  Await("p0", "told of a failed fetch",
        [](const v1::NodeStatus& node) { return node.counters().fetches_failed() == 1; });
  EXPECT_FALSE(prefill->AwaitLine("cannot fetch a prompt's beginning, computing it").empty());
  EXPECT_OK(AwaitStatus(*client_, absl::Seconds(20), Holdings).status()) << "something is held";
}

}  // namespace
}  // namespace tandem::testing
