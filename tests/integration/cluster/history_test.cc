// Goal: the second turn of a conversation computes its new tokens and no history but the answer's
// last token, which has no KV. The history's beginning lies on the prefill node, the rest on the
// decode node that generated it; the prefill node fetches that, since it is predicted to take less
// time than computing it. The answers are those of a cluster that fetches nothing, and of one that
// has lost the history.
#include <gmock/gmock.h>

#include "tests/integration/cluster/turn.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

constexpr int kPrompt = 200, kAnswer = 170, kNew = 90;

// Prompt tokens that prefill nodes computed, and blocks that they fetched.
struct Work {
  int64_t computed = 0, fetched = 0;
};
Work WorkOf(TestCluster& cluster) {
  const auto status = cluster.client().GetStatus(absl::Seconds(10));
  EXPECT_OK(status.status());
  Work work;
  for (const v1::NodeStatus& node : status->nodes()) {
    if (node.role() != "prefill") continue;
    work.computed += node.counters().prompt_tokens().computed();
    work.fetched += node.counters().blocks_fetched();
  }
  return work;
}

// Nodes report their counters with their heartbeats.
Work AwaitComputed(TestCluster& cluster, int64_t computed) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  Work work = WorkOf(cluster);
  while (work.computed < computed && absl::Now() < deadline) work = WorkOf(cluster);
  return work;
}

struct Conversation {
  std::vector<int32_t> second_answer;
  Work first, both;
};

Conversation Converse(TestCluster& cluster) {
  Conversation conversation;
  std::vector<int32_t> history;
  for (int i = 0; i < kPrompt; ++i) history.push_back(1 + i % 200);
  const Answer first = cluster.Generate(Turn(history, kAnswer));
  EXPECT_OK(first.status);
  conversation.first = AwaitComputed(cluster, kPrompt);
  history.insert(history.end(), first.tokens.begin(), first.tokens.end());
  for (int i = 0; i < kNew; ++i) history.push_back(1 + (i * 7) % 200);
  const Answer second = cluster.Generate(Turn(history, 30));
  EXPECT_OK(second.status);
  conversation.second_answer = second.tokens;
  conversation.both = AwaitComputed(cluster, conversation.first.computed + kNew);
  return conversation;
}

std::unique_ptr<TestCluster> Start(const std::string& flag) {
  auto cluster =
      TestCluster::Start({"--engine=hash", "--hash-row-time=1ms", "--kv-blocks=256", "--prefill=1",
                          "--decode=1", "--local-prefill-tokens=0", flag});
  EXPECT_OK(cluster.status());
  return *std::move(cluster);
}

TEST(History, IsFetchedAndNotComputed) {
  const auto fetching = Start("--fetch-tokens=1");
  const Conversation fetched = Converse(*fetching);
  const int64_t block_tokens = 32;
  EXPECT_EQ(fetched.first.computed, kPrompt);
  EXPECT_EQ(fetched.first.fetched, 0);
  EXPECT_GE(fetched.both.fetched, (kPrompt + kAnswer - 1) / block_tokens - kPrompt / block_tokens);
  EXPECT_LE(fetched.both.computed - fetched.first.computed, kNew + 1);
  EXPECT_EQ(fetching->Stop(), "exit code 0");

  const auto computing = Start("--fetch-tokens=0");
  const Conversation computed = Converse(*computing);
  EXPECT_EQ(computed.both.fetched, 0);
  EXPECT_GE(computed.both.computed - computed.first.computed, kNew + kAnswer);
  EXPECT_EQ(computed.second_answer, fetched.second_answer);
  EXPECT_EQ(computing->Stop(), "exit code 0");
}

}  // namespace
}  // namespace tandem::testing
