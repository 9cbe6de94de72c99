// Goal: with real processes under load, nodes that are killed (SIGKILL), stopped (SIGSTOP) or
// restarted one after the other (SIGTERM) change no token of any stream and fail no request; a
// request whose router was killed is answered the same by another one.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "tests/testing/oracle_load.h"
#include "tests/testing/program_run.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

class Failover : public ::testing::Test {
 protected:
  static constexpr int kClients = 6;

  void StartRouters(int count) {
    for (int i = 0; i < count; ++i) {
      auto router = RunningProgram::Start(
          {"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0",
           "--heartbeat-interval=100ms", "--node-lost-after=1s", absl::StrCat("--id=router-", i)});
      ASSERT_OK(router.status());
      routers_.push_back(*std::move(router));
      const std::string grpc = routers_.back()->AwaitField("router started", "grpc");
      ASSERT_FALSE(grpc.empty()) << routers_.back()->log();
      clients_.push_back(cli::Client::Create(grpc));
      const std::string fleet = routers_.back()->AwaitField("router started", "fleet");
      absl::StrAppend(&fleet_, fleet_.empty() ? "" : ",", fleet);
    }
  }
  // Waits until it joined each router.
  std::unique_ptr<RunningProgram> StartNode(const std::string& kind, const std::string& id) {
    auto node = RunningProgram::Start({absl::StrCat("tandem-", kind, "-node"), "--engine=hash",
                                       "--id=" + id, "--routers=" + fleet_, "--kv-blocks=1024",
                                       "--hash-step-time=2ms", "--drain-timeout=20s"});
    EXPECT_OK(node.status());
    for (size_t i = 0; i < routers_.size(); ++i)
      EXPECT_FALSE((*node)->AwaitLine(absl::StrCat("router_id=router-", i)).empty())
          << (*node)->log();
    return *std::move(node);
  }
  // With steps of 20 ms, and little time to drain.
  std::unique_ptr<RunningProgram> StartSlowDecode(const std::string& id) {
    auto node = RunningProgram::Start({"tandem-decode-node", "--engine=hash", "--id=" + id,
                                       "--routers=" + fleet_, "--kv-blocks=1024",
                                       "--hash-step-time=20ms", "--drain-timeout=2s"});
    EXPECT_OK(node.status());
    EXPECT_FALSE((*node)->AwaitLine("router_id=router-0").empty()) << (*node)->log();
    return *std::move(node);
  }
  void StartNodes() {
    for (const char* id : {"prefill-0", "prefill-1"}) nodes_.push_back(StartNode("prefill", id));
    for (const char* id : {"decode-0", "decode-1"}) nodes_.push_back(StartNode("decode", id));
  }

  void StartLoad() {
    std::vector<cli::Client*> clients;
    for (const auto& client : clients_) clients.push_back(client.get());
    load_.Start(clients, kClients);
  }
  void AwaitAnswers(int64_t count) { load_.AwaitAnswers(count); }
  void Stop(cli::Client& client) {
    load_.Stop();
    ASSERT_OK(AwaitQuiet(client, absl::Seconds(30)));
  }

  std::vector<std::unique_ptr<RunningProgram>> routers_, nodes_;
  std::vector<std::unique_ptr<cli::Client>> clients_;
  std::string fleet_;
  OracleLoad load_;
};

TEST_F(Failover, KilledNodesChangeNoStream) {
  StartRouters(1);
  StartNodes();
  StartLoad();
  AwaitAnswers(10);
  const std::string names[] = {"prefill-0", "prefill-1", "decode-0", "decode-1"};
  for (const size_t victim : {2, 0, 3, 1}) {
    nodes_[victim]->Signal(SIGKILL);
    EXPECT_EQ(nodes_[victim]->AwaitEnd().value_or("goes on"), "signal 9");
    AwaitAnswers(10);
    nodes_[victim] = StartNode(victim < 2 ? "prefill" : "decode", names[victim]);
    AwaitAnswers(10);
  }
  Stop(*clients_[0]);
}

TEST_F(Failover, StoppedNodesCostTimeAndNothingElse) {
  StartRouters(1);
  StartNodes();
  StartLoad();
  AwaitAnswers(10);
  for (const size_t victim : {2, 0}) {
    nodes_[victim]->Signal(SIGSTOP);
    AwaitAnswers(20);
    nodes_[victim]->Signal(SIGCONT);
    AwaitAnswers(20);
  }
  Stop(*clients_[0]);
}

TEST_F(Failover, ARollingRestartFailsNothing) {
  StartRouters(1);
  StartNodes();
  StartLoad();
  AwaitAnswers(10);
  const std::string names[] = {"prefill-0", "prefill-1", "decode-0", "decode-1"};
  for (size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i]->Signal(SIGTERM);
    EXPECT_EQ(nodes_[i]->AwaitEnd().value_or("goes on"), "exit code 0") << nodes_[i]->log();
    nodes_[i] = StartNode(i < 2 ? "prefill" : "decode", names[i]);
    AwaitAnswers(10);
  }
  Stop(*clients_[0]);
}

// Answers that take longer than the drain timeout continue on another node before it ends; without
// that the node would end busy.
TEST_F(Failover, ADrainHandsLongAnswersOver) {
  StartRouters(1);
  for (const char* id : {"decode-0", "decode-1"}) nodes_.push_back(StartSlowDecode(id));
  // 400 steps of 20 ms: eight seconds at least.
  std::vector<std::thread> clients;
  std::atomic<int> begun{0};
  absl::Mutex mutex;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      v1::GenerateRequest request;
      request.mutable_tokens()->add_ids(i);
      request.mutable_sampling()->set_temperature(0);
      request.mutable_stop()->set_max_tokens(400);
      request.set_return_token_ids(true);
      std::vector<int32_t> tokens;
      EXPECT_OK(clients_[0]->Generate(request, [&](const v1::GenerateResponse& part) {
        if (tokens.empty() && part.delta().tokens_size() > 0) {
          absl::MutexLock lock(&mutex);
          ++begun;
        }
        for (const auto& token : part.delta().tokens()) tokens.push_back(token.token_id());
        return true;
      }));
      EXPECT_EQ(tokens, Oracle(request));
    });
  }
  {
    const auto all_begun = [&] { return begun == 4; };
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&all_begun), absl::Seconds(60)));
  }
  nodes_[0]->Signal(SIGTERM);
  EXPECT_EQ(nodes_[0]->AwaitEnd().value_or("goes on"), "exit code 0");
  EXPECT_THAT(nodes_[0]->log(), HasSubstr(" drained\n"));
  for (std::thread& client : clients) client.join();
  // With their KV, of which nothing was computed again.
  ASSERT_OK_AND_ASSIGN(const auto status, clients_[0]->GetStatus(absl::Seconds(5)));
  EXPECT_GT(status.router().sequences_migrated(), 0);
  EXPECT_GT(status.router().kv_tokens_moved(), status.router().sequences_migrated() * 20);
  EXPECT_EQ(status.router().kv_tokens_recomputed(), 0);
}

// The sequences of one request move together, and each goes on as itself.
TEST_F(Failover, ADrainMovesAllSequencesOfARequest) {
  StartRouters(1);
  for (const char* id : {"decode-0", "decode-1"}) nodes_.push_back(StartSlowDecode(id));
  constexpr int kSequences = 4;
  v1::GenerateRequest request;
  for (int i = 0; i < 100; ++i) request.mutable_tokens()->add_ids(i);
  request.mutable_sampling()->set_temperature(1.0);
  request.mutable_sampling()->set_seed(7);
  request.set_n(kSequences);
  request.mutable_stop()->set_max_tokens(300);
  request.set_return_token_ids(true);
  absl::Mutex mutex;
  std::map<int, std::vector<int32_t>> tokens;
  std::thread client([&] {
    EXPECT_OK(clients_[0]->Generate(request, [&](const v1::GenerateResponse& part) {
      absl::MutexLock lock(&mutex);
      std::vector<int32_t>& of_sequence = tokens[part.delta().sequence_index()];
      for (const auto& token : part.delta().tokens()) of_sequence.push_back(token.token_id());
      return true;
    }));
  });
  {
    const auto all_begun = [&] {
      return tokens.size() == kSequences &&
             std::all_of(tokens.begin(), tokens.end(),
                         [](auto& one) { return !one.second.empty(); });
    };
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&all_begun), absl::Seconds(60)));
  }
  size_t home = 0;
  ASSERT_OK(AwaitStatus(*clients_[0], absl::Seconds(20), [&](const v1::GetStatusResponse& now) {
    for (int i = 0; i < now.nodes_size(); ++i) {
      if (now.nodes(i).load().sequences_running() != kSequences) continue;
      home = now.nodes(i).node_id() == "decode-0" ? 0 : 1;
      return std::string();
    }
    return now.ShortDebugString();
  }));
  nodes_[home]->Signal(SIGTERM);
  EXPECT_EQ(nodes_[home]->AwaitEnd().value_or("goes on"), "exit code 0");
  client.join();
  for (int index = 0; index < kSequences; ++index)
    EXPECT_EQ(tokens[index], Oracle(request, index)) << "sequence " << index;
  ASSERT_OK_AND_ASSIGN(const auto status, clients_[0]->GetStatus(absl::Seconds(5)));
  EXPECT_EQ(status.router().sequences_migrated(), kSequences);
  EXPECT_EQ(status.router().kv_tokens_recomputed(), 0);
}

// What a node that drains holds of prompts is found at its peer, which never saw them.
TEST_F(Failover, ADrainedNodesPrefixesAreFoundAtItsPeer) {
  StartRouters(1);
  nodes_.push_back(StartNode("decode", "decode-0"));
  v1::GenerateRequest request;
  for (int i = 0; i < 400; ++i) request.mutable_tokens()->add_ids((i * 7) % 256);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(20);
  request.set_return_token_ids(true);
  const Answer first = Collect(*clients_[0], request);
  ASSERT_OK(first.status);
  EXPECT_EQ(first.finished.usage().cached_tokens(), 0);
  nodes_.push_back(StartNode("decode", "decode-1"));
  nodes_[0]->Signal(SIGTERM);
  EXPECT_EQ(nodes_[0]->AwaitEnd().value_or("goes on"), "exit code 0") << nodes_[0]->log();
  constexpr int kWholeBlocks = 400 / 32;
  ASSERT_OK_AND_ASSIGN(
      const auto status,
      AwaitStatus(*clients_[0], absl::Seconds(20), [](const v1::GetStatusResponse& now) {
        for (const v1::NodeStatus& node : now.nodes())
          if (node.node_id() == "decode-1" && node.counters().blocks_adopted() >= kWholeBlocks)
            return std::string();
        return now.ShortDebugString();
      }));
  const Answer again = Collect(*clients_[0], request);
  ASSERT_OK(again.status);
  EXPECT_EQ(again.finished.route().decode_node(), "decode-1");
  EXPECT_EQ(again.tokens, Oracle(request));
  EXPECT_EQ(again.finished.usage().cached_tokens(), kWholeBlocks * 32);
  ASSERT_OK(AwaitQuiet(*clients_[0], absl::Seconds(30)));
}

// A stopped router's connections stay open: only pings show that no process serves them. What its
// nodes hold for it ends then, whatever the deadlines of its requests are.
TEST_F(Failover, NodesNoticeARouterThatHangs) {
  StartRouters(1);
  StartNodes();
  StartLoad();
  AwaitAnswers(10);
  routers_[0]->Signal(SIGSTOP);
  for (const auto& node : nodes_)
    EXPECT_THAT(node->AwaitLine("lost the stream to a router"), HasSubstr("lost"));
  routers_[0]->Signal(SIGCONT);
  AwaitAnswers(10);
  Stop(*clients_[0]);
}

TEST_F(Failover, ARequestOfADeadRouterIsAnsweredByAnother) {
  StartRouters(2);
  StartNodes();
  StartLoad();
  AwaitAnswers(20);
  routers_[0]->Signal(SIGKILL);
  AwaitAnswers(60);
  EXPECT_GT(load_.asked_again(), 0);
  Stop(*clients_[1]);
}

}  // namespace
}  // namespace tandem::testing
