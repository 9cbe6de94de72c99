// Goal: without prefill nodes, a prompt whose beginning one decode node holds is answered by
// another one, because the first has no place for it: that node fetches the beginning and computes
// the rest. The answer is that of a cluster that fetches nothing.
#include <gmock/gmock.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster/turn.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

constexpr int kShared = 320, kOwn = 40, kBlockTokens = 32;

v1::GenerateRequest Prompt(int own_first, int max_tokens) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < kShared; ++i) tokens.push_back(1 + i % 200);
  for (int i = 0; i < kOwn; ++i) tokens.push_back(1 + (own_first + i * 7) % 200);
  return Turn(tokens, max_tokens);
}

struct Result {
  Answer answer;
  int64_t fetched_blocks = 0, computed = 0;  // of both nodes
};

// While a long answer runs on the only place of one node, the other one answers a prompt that
// begins in the same way.
Result AnswerBesideTheHolder(const std::string& fetch_flag) {
  auto cluster = TestCluster::Start({"--engine=hash", "--hash-row-time=1ms", "--hash-step-time=5ms",
                                     "--kv-blocks=256", "--prefill=0", "--decode=2",
                                     "--max-sequences=1", fetch_flag});
  EXPECT_OK(cluster.status());
  Answer stream;
  std::thread streaming([&] { stream = (*cluster)->Generate(Prompt(0, 800)); });
  EXPECT_OK(AwaitStatus((*cluster)->client(), absl::Seconds(20), [](const auto& status) {
              for (const v1::NodeStatus& node : status.nodes())
                if (node.counters().generated_tokens() > 0) return std::string();
              return std::string("nothing is generated");
            }).status());
  Result result{.answer = (*cluster)->Generate(Prompt(5, 30))};
  EXPECT_OK(result.answer.status);
  streaming.join();
  EXPECT_OK(stream.status);
  EXPECT_OK(AwaitStatus((*cluster)->client(), absl::Seconds(20), [&](const auto& status) {
              result.fetched_blocks = result.computed = 0;
              for (const v1::NodeStatus& node : status.nodes()) {
                result.fetched_blocks += node.counters().blocks_fetched();
                result.computed += node.counters().prompt_tokens().computed();
              }
              return result.computed >= kShared + 2 * kOwn
                         ? std::string()
                         : absl::StrCat(result.computed, " prompt tokens computed");
            }).status());
  EXPECT_EQ((*cluster)->Stop(), "exit code 0");
  return result;
}

TEST(DecodeFetch, ABeginningThatTheBusyNodeHoldsIsFetched) {
  const Result fetched = AnswerBesideTheHolder("--fetch-tokens=1");
  EXPECT_GE(fetched.fetched_blocks, kShared / kBlockTokens);
  EXPECT_EQ(fetched.computed, kShared + 2 * kOwn);
  EXPECT_EQ(fetched.answer.finished.route().decode_tokens().fetched(), kShared);
  const Result computed = AnswerBesideTheHolder("--fetch-tokens=0");
  EXPECT_EQ(computed.fetched_blocks, 0);
  EXPECT_EQ(computed.computed, 2 * (kShared + kOwn));
  EXPECT_EQ(fetched.answer.tokens, computed.answer.tokens);
}

}  // namespace
}  // namespace tandem::testing
