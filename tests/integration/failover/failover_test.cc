// Goal: with real processes under load, nodes that are killed (SIGKILL), stopped (SIGSTOP) or
// restarted one after the other (SIGTERM) change no token of any stream and fail no request; a
// request whose router was killed is answered the same by another one.
#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <random>
#include <thread>

#include "common/engine/hash_engine.h"
#include "common/rpc/convert.h"
#include "tests/testing/program_run.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

v1::GenerateRequest RandomRequest(std::mt19937_64& random, const std::string& id) {
  v1::GenerateRequest request;
  request.set_request_id(id);
  const int prompt_tokens = 1 + static_cast<int>(random() % 400);
  for (int i = 0; i < prompt_tokens; ++i)
    request.mutable_tokens()->add_ids(static_cast<int>(random() % 256));
  request.mutable_sampling()->set_temperature(random() % 2 == 0 ? 0.0 : 1.0);
  request.mutable_sampling()->set_seed(random());
  request.mutable_stop()->set_max_tokens(20 + static_cast<int>(random() % 100));
  request.set_return_token_ids(true);
  return request;
}

std::vector<int32_t> Oracle(const v1::GenerateRequest& request) {
  std::vector<TokenId> tokens(request.tokens().ids().begin(), request.tokens().ids().end());
  const size_t prompt = tokens.size();
  const request::SamplingParams sampling = rpc::FromWire(request.sampling());
  for (int i = 0; i < request.stop().max_tokens(); ++i)
    tokens.push_back(engine::HashEngineNextToken({}, tokens, sampling, 0));
  return {tokens.begin() + static_cast<ptrdiff_t>(prompt), tokens.end()};
}

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
  void StartNodes() {
    for (const char* id : {"prefill-0", "prefill-1"}) nodes_.push_back(StartNode("prefill", id));
    for (const char* id : {"decode-0", "decode-1"}) nodes_.push_back(StartNode("decode", id));
  }

  // Clients ask one request after the other until Stop(); each answer is compared with the oracle.
  void StartLoad() {
    seed_ = std::random_device()();
    std::printf("seed %lu\n", static_cast<unsigned long>(seed_));
    for (int i = 0; i < kClients; ++i) threads_.emplace_back([this, i] { RunClient(i); });
  }
  void RunClient(int index) {
    std::mt19937_64 random(seed_ + index);
    for (int serial = 0; !stop_; ++serial) {
      const auto request = RandomRequest(random, absl::StrCat("c", index, "-", serial));
      size_t router = 0;
      Answer answer = Collect(*clients_[router], request);
      // Only a router that is gone is a reason to ask again: at another one, by the same id.
      while (!answer.status.ok() && router + 1 < clients_.size()) {
        ++asked_again_;
        answer = Collect(*clients_[++router], request);
      }
      EXPECT_OK(answer.status) << request.request_id();
      EXPECT_EQ(answer.tokens, Oracle(request)) << request.request_id();
      absl::MutexLock lock(&mutex_);
      ++answered_;
    }
  }
  // Until `count` more answers came: the load goes on after what was done to it.
  void AwaitAnswers(int64_t count) {
    absl::MutexLock lock(&mutex_);
    const int64_t goal = answered_ + count;
    const auto reached = [&] { return answered_ >= goal; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(90)))
        << answered_ << " answers of " << goal;
  }
  void Stop(cli::Client& client) {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    ASSERT_OK(AwaitQuiet(client, absl::Seconds(30)));
  }

  std::vector<std::unique_ptr<RunningProgram>> routers_, nodes_;
  std::vector<std::unique_ptr<cli::Client>> clients_;
  std::string fleet_;
  uint64_t seed_ = 0;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> asked_again_{0};
  absl::Mutex mutex_;
  int64_t answered_ = 0;  // guarded by mutex_
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

// Answers that take longer than the drain is given go on elsewhere before it ends; without that the
// node would end busy.
TEST_F(Failover, ADrainHandsLongAnswersOver) {
  StartRouters(1);
  for (const char* id : {"decode-0", "decode-1"}) {
    auto node = RunningProgram::Start(
        {"tandem-decode-node", "--engine=hash", absl::StrCat("--id=", id), "--routers=" + fleet_,
         "--kv-blocks=1024", "--hash-step-time=20ms", "--drain-timeout=2s"});
    ASSERT_OK(node.status());
    nodes_.push_back(*std::move(node));
    ASSERT_FALSE(nodes_.back()->AwaitLine("router_id=router-0").empty()) << nodes_.back()->log();
  }
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
  EXPECT_THAT(nodes_[0]->log(), HasSubstr("idle=yes"));
  for (std::thread& client : clients) client.join();
  // With their KV, of which nothing was computed again.
  ASSERT_OK_AND_ASSIGN(const auto status, clients_[0]->GetStatus(absl::Seconds(5)));
  EXPECT_GT(status.router().sequences_moved(), 0);
  EXPECT_GT(status.router().kv_tokens_moved(), status.router().sequences_moved() * 20);
  EXPECT_EQ(status.router().kv_tokens_recomputed(), 0);
}

// A stopped router's connections stay open: only pings show that nobody is behind them. What its
// nodes hold for it ends then, whatever the deadlines of its requests are.
TEST_F(Failover, NodesNoticeARouterThatHangs) {
  StartRouters(1);
  StartNodes();
  StartLoad();
  AwaitAnswers(10);
  routers_[0]->Signal(SIGSTOP);
  for (const auto& node : nodes_) EXPECT_THAT(node->AwaitLine("lost router"), HasSubstr("lost"));
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
  EXPECT_GT(asked_again_, 0);
  Stop(*clients_[1]);
}

}  // namespace
}  // namespace tandem::testing
