// Goal: real processes lend KV memory to each other: sequences longer than any node's pool are
// answered, by their answers and by their prompts, with the tokens of a node that is large enough;
// so they are on the real model; a creditor that is killed costs time and no token, one that drains
// costs no computation; nothing stays lent.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/testing/models.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using Flags = std::vector<std::string>;

v1::GenerateRequest Request(int prompt, int max_tokens, int seed) {
  v1::GenerateRequest request;
  for (int i = 0; i < prompt; ++i) request.mutable_tokens()->add_ids(1 + (i * 7 + seed) % 200);
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_return_token_ids(true);
  request.mutable_sampling()->set_temperature(0.8);
  request.mutable_sampling()->set_seed(static_cast<uint64_t>(seed));
  return request;
}

std::unique_ptr<TestCluster> Start(Flags flags) {
  auto cluster = TestCluster::Start(std::move(flags));
  EXPECT_OK(cluster.status());
  return cluster.ok() ? *std::move(cluster) : nullptr;
}

struct Lent {
  int64_t units = 0, answers = 0, lost = 0, taken_over = 0;
  int64_t moved = 0;                   // to another creditor, or home
  int64_t blocks_lent = 0, debts = 0;  // now
};
Lent LentIn(TestCluster& cluster) {
  Lent lent;
  const auto status = cluster.client().GetStatus(absl::Seconds(10));
  EXPECT_OK(status.status());
  if (!status.ok()) return lent;
  for (const v1::NodeStatus& node : status->nodes()) {
    lent.units += node.counters().units_lent();
    lent.answers += node.counters().lending_answers();
    lent.lost += node.counters().loans_lost();
    lent.taken_over += node.counters().loans_taken_over();
    lent.moved += node.counters().loans_moved() + node.counters().loans_home();
    lent.blocks_lent += node.load().blocks_lent();
    lent.debts += node.load().debts_size();
  }
  return lent;
}

// As LentIn, once units were lent, and with `split` loans taken over: nodes report with heartbeats
// of their own.
Lent AwaitLent(TestCluster& cluster, bool split = false) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  Lent lent = LentIn(cluster);
  const auto misses = [&] {
    return lent.units == 0 || lent.answers == 0 || (split && lent.taken_over == 0);
  };
  while (misses() && absl::Now() < deadline) lent = LentIn(cluster);
  return lent;
}

// Likewise, this asks until nothing is lent.
void ExpectNothingLent(TestCluster& cluster) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  Lent lent = LentIn(cluster);
  while (lent.blocks_lent + lent.debts > 0 && absl::Now() < deadline) lent = LentIn(cluster);
  EXPECT_EQ(lent.blocks_lent, 0);
  EXPECT_EQ(lent.debts, 0);
}

// 640 tokens a node, units of 256. A second node's 20 blocks make 960.
const Flags kSmall = {"--engine=hash",  "--prefill=0",       "--decode=2",
                      "--kv-blocks=40", "--block-tokens=16", "--lend-fraction=0.8"};
const Flags kLarge = {"--engine=hash", "--prefill=0", "--decode=1", "--kv-blocks=200",
                      "--block-tokens=16"};

TEST(Lending, SequencesLongerThanAnyPoolGetTheSameTokens) {
  const auto small = Start(kSmall), large = Start(kLarge);
  ASSERT_TRUE(small != nullptr && large != nullptr);
  for (const auto& [prompt, output] : {std::pair(60, 820), std::pair(800, 60)}) {
    const v1::GenerateRequest request = Request(prompt, output, prompt);
    const Answer expected = large->Generate(request);
    ASSERT_OK(expected.status);
    const Answer answer = small->Generate(request);
    ASSERT_OK(answer.status) << prompt << " prompt tokens";
    EXPECT_EQ(answer.tokens, expected.tokens) << prompt << " prompt tokens";
  }
  const Lent lent = AwaitLent(*small);
  EXPECT_GT(lent.units, 0);
  EXPECT_GT(lent.answers, 0);
  EXPECT_EQ(lent.lost, 0);
  ExpectNothingLent(*small);
  EXPECT_EQ(small->Stop(), "exit code 0");
}

// The prompt is longer than any node's pool. The prefill node lends its beginning to the other
// decode nodes, and the decode node takes the loans over. The trace names the creditors.
TEST(Lending, APrefillNodesLongPromptIsSplit) {
  const auto small = Start({"--engine=hash", "--hash-row-time=200us", "--prefill=1", "--decode=3",
                            "--kv-blocks=48", "--block-tokens=16", "--lend-fraction=0.8"});
  const auto large = Start(kLarge);
  ASSERT_TRUE(small != nullptr && large != nullptr);
  v1::GenerateRequest request = Request(850, 40, 11);
  const Answer expected = large->Generate(request);
  ASSERT_OK(expected.status);
  request.set_request_id("long");
  const Answer answer = small->Generate(request);
  ASSERT_OK(answer.status);
  EXPECT_EQ(answer.tokens, expected.tokens);
  EXPECT_EQ(answer.finished.route().prefill_node(), "prefill-0");
  EXPECT_EQ(answer.finished.route().decode_tokens().computed(), 0);
  const v1::LentUse& lent = answer.finished.route().lent();
  ASSERT_GT(lent.creditors_size(), 0);
  EXPECT_GE(lent.tokens_max(), 256);
  EXPECT_GT(lent.steps(), 0);
  EXPECT_LT(lent.locality(), 1);
  const ProgramRun trace = RunProgram({"tandem", "trace", "--router=" + small->address(), "long"});
  EXPECT_EQ(trace.exit_code, 0) << trace.output;
  EXPECT_THAT(trace.output, ::testing::HasSubstr(absl::StrCat("at most ", lent.tokens_max())));
  EXPECT_THAT(trace.output, ::testing::HasSubstr(lent.creditors(0).node_id()));
  EXPECT_GT(AwaitLent(*small, /*split=*/true).taken_over, 0);
  ExpectNothingLent(*small);
  EXPECT_EQ(small->Stop(), "exit code 0");
}

// The router's trace of a finished request, once it names loans; nodes report them after the end.
v1::RequestTrace AwaitLoansInTrace(TestCluster& cluster, const std::string& request_id) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  v1::RequestTrace trace;
  while (absl::Now() < deadline) {
    const auto found = cluster.client().GetTrace(request_id);
    if (found.ok()) trace = *found;
    if (trace.sequences_size() > 0 && trace.sequences(0).route().has_lent()) break;
  }
  return trace;
}

// The router alone knows that these answers end, so it aborts them; their traces name the creditors
// all the same.
TEST(Lending, TheTraceOfAnAnswerThatTheRouterEndsNamesItsCreditors) {
  Flags slow = kSmall;  // the client leaves in time
  slow.push_back("--hash-step-time=4ms");
  const auto small = Start(slow), large = Start(kLarge);
  ASSERT_TRUE(small != nullptr && large != nullptr);
  v1::GenerateRequest request = Request(60, 820, 7);
  const std::string text = large->Generate(request).text;
  // Found late in the answer, and nowhere before.
  ASSERT_GT(text.size(), 100u);
  size_t end = text.size() - 40;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  const std::string tail = text.substr(end);
  ASSERT_EQ(text.find(tail), end);
  request.mutable_stop()->add_stop(tail);
  request.set_request_id("stopped");
  const Answer stopped = small->Generate(request);
  ASSERT_OK(stopped.status);
  ASSERT_EQ(stopped.finished.reason(), v1::FINISH_REASON_STOP);
  const v1::RequestTrace trace = AwaitLoansInTrace(*small, "stopped");
  ASSERT_EQ(trace.sequences_size(), 1);
  const v1::LentUse& lent = trace.sequences(0).route().lent();
  ASSERT_GT(lent.creditors_size(), 0);
  EXPECT_GE(lent.tokens_max(), 256);
  EXPECT_GT(lent.steps(), 0);

  request.mutable_stop()->clear_stop();
  request.set_request_id("cancelled");
  int64_t tokens = 0;
  ASSERT_OK(small->client().Generate(request, [&](const v1::GenerateResponse& part) {
    tokens += part.delta().tokens_size();
    return tokens < 640;  // beyond that it lends, or could not go on
  }));
  const v1::RequestTrace cancelled = AwaitLoansInTrace(*small, "cancelled");
  ASSERT_EQ(cancelled.sequences_size(), 1);
  EXPECT_EQ(cancelled.sequences(0).reason(), v1::FINISH_REASON_ABORTED);
  EXPECT_GT(cancelled.sequences(0).route().lent().creditors_size(), 0);
  ExpectNothingLent(*small);
}

TEST(Lending, WithoutLendingTheSameRequestIsRefusedByName) {
  Flags flags = kSmall;
  flags.pop_back();
  const auto cluster = Start(flags);
  ASSERT_NE(cluster, nullptr);
  const Answer answer = cluster->Generate(Request(60, 820, 1));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(answer.status.message()), ::testing::HasSubstr("640"));
}

TEST(Lending, WhatTheNodesCannotHoldIsRefusedAtOnce) {
  // 28 blocks of another node may be lent: one unit of 16, and 12 that no loan can use. Of the
  // unit, a prompt may count on three quarters, and an answer that grows on all of it.
  Flags flags = kSmall;
  flags.back() = "--lend-fraction=0.7";
  const auto cluster = Start(flags);
  ASSERT_NE(cluster, nullptr);
  const auto refused = [&](int prompt, int max_tokens, const char* most) {
    const Answer answer = cluster->Generate(Request(prompt, max_tokens, 2));
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(answer.status.message()), ::testing::HasSubstr(most));
  };
  refused(60, 960, "896");
  refused(850, 10, "831");
  refused(832, 1, "831");
}

TEST(Lending, TheRealModelsAnswersKeepTheirTokens) {
  TANDEM_FIND_MODEL_OR_SKIP(path, kSmolLm2File);
  const Flags model = {"--model=" + path, "--prefill=0", "--block-tokens=32", "--threads=1"};
  Flags small = model, large = model;
  small.insert(small.end(), {"--decode=2", "--kv-blocks=24", "--lend-fraction=0.8"});  // 768 tokens
  large.insert(large.end(), {"--decode=1", "--kv-blocks=64"});
  const auto lends = Start(small), holds = Start(large);
  ASSERT_TRUE(lends != nullptr && holds != nullptr);
  for (const auto& [prompt, output] : {std::pair(700, 120), std::pair(900, 24)}) {
    const v1::GenerateRequest request = Request(prompt, output, 5);
    const Answer expected = holds->Generate(request);
    ASSERT_OK(expected.status);
    const Answer answer = lends->Generate(request);
    ASSERT_OK(answer.status);
    EXPECT_EQ(answer.tokens, expected.tokens) << prompt << " prompt tokens";
  }
  EXPECT_GT(AwaitLent(*lends).units, 0);
  ExpectNothingLent(*lends);
}

TEST(Lending, TheRealModelsSplitPromptKeepsItsTokens) {
  TANDEM_FIND_MODEL_OR_SKIP(path, kSmolLm2File);
  const Flags model = {"--model=" + path, "--block-tokens=32", "--threads=1"};
  Flags small = model, large = model;
  small.insert(small.end(), {"--prefill=1", "--decode=3", "--kv-blocks=24", "--lend-fraction=0.8",
                             "--placement=affinity"});
  large.insert(large.end(), {"--prefill=0", "--decode=1", "--kv-blocks=64"});
  const auto lends = Start(small), holds = Start(large);
  ASSERT_TRUE(lends != nullptr && holds != nullptr);
  const v1::GenerateRequest request = Request(800, 24, 5);
  const Answer expected = holds->Generate(request);
  ASSERT_OK(expected.status);
  const Answer answer = lends->Generate(request);
  ASSERT_OK(answer.status);
  EXPECT_EQ(answer.tokens, expected.tokens);
  EXPECT_EQ(answer.finished.route().decode_tokens().computed(), 0);
  EXPECT_GT(AwaitLent(*lends, /*split=*/true).taken_over, 0);
  ExpectNothingLent(*lends);
}

// The pid of the cluster's process that serves as this node.
pid_t PidOf(const TestCluster& cluster, const std::string& node) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream stat(entry.path() / "stat"), arguments(entry.path() / "cmdline");
    std::string text((std::istreambuf_iterator<char>(arguments)), {}), word;
    pid_t pid = 0, parent = 0;
    stat >> pid >> word >> word >> parent;
    if (parent == cluster.pid() && text.find("--id=" + node) != std::string::npos) return pid;
  }
  return 0;
}

// Answers a request that borrows, and sends `signal` to its creditor once it has one. The answer's
// tokens are those of a node that holds all of it.
void SignalTheCreditor(TestCluster& cluster, int signal) {
  const auto large = Start(kLarge);
  ASSERT_NE(large, nullptr);
  const v1::GenerateRequest request = Request(60, 820, 3);
  const Answer expected = large->Generate(request);
  ASSERT_OK(expected.status);
  Answer answer;
  std::thread client([&] { answer = cluster.Generate(request); });
  std::string creditor;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (creditor.empty() && absl::Now() < deadline) {
    const auto status = cluster.client().GetStatus(absl::Seconds(10));
    if (!status.ok()) continue;
    for (const v1::NodeStatus& node : status->nodes())
      for (const v1::Debt& debt : node.load().debts()) creditor = debt.creditor_node_id();
  }
  const pid_t pid = creditor.empty() ? 0 : PidOf(cluster, creditor);
  EXPECT_GT(pid, 0) << "creditor \"" << creditor << "\"";
  if (pid > 0) ::kill(pid, signal);
  client.join();
  ASSERT_OK(answer.status);
  EXPECT_EQ(answer.tokens, expected.tokens);
}

Flags WithSteps(const char* step_time) {
  Flags flags = kSmall;
  flags[2] = "--decode=3";
  flags.push_back(step_time);
  return flags;
}

TEST(Lending, AKilledCreditorCostsNoToken) {
  const auto cluster = Start(WithSteps("--hash-step-time=4ms"));
  ASSERT_NE(cluster, nullptr);
  SignalTheCreditor(*cluster, SIGKILL);
  EXPECT_GT(LentIn(*cluster).lost, 0);
}

TEST(Lending, ADrainingCreditorsLoansMoveAndNothingIsComputedAgain) {
  const auto cluster = Start(WithSteps("--hash-step-time=10ms"));
  ASSERT_NE(cluster, nullptr);
  SignalTheCreditor(*cluster, SIGTERM);
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  Lent lent = LentIn(*cluster);
  while (lent.moved == 0 && absl::Now() < deadline) lent = LentIn(*cluster);
  EXPECT_GT(lent.moved, 0);
  EXPECT_EQ(lent.lost, 0);
  ExpectNothingLent(*cluster);
}

}  // namespace
}  // namespace tandem::testing
