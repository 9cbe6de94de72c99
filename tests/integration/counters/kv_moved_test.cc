// Goal: the KV really moved. On every node the prompt's tokens by source (computed, received,
// cached) add up to the prompts it took; a decode node receives what prefill nodes computed and
// computes none of it; a repeated prefix is found in the cache. A decode node that recomputed what
// it should have received would fail here, which a cluster made to do so shows.
#include <gmock/gmock.h>

#include <map>
#include <random>

#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kBlockTokens = 32;

std::vector<int32_t> RandomTokens(std::mt19937_64& random, int count) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 256);
  return tokens;
}

v1::GenerateRequest RequestOf(const std::vector<int32_t>& prompt) {
  v1::GenerateRequest request;
  request.mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(8);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

int64_t Sum(const v1::TokensBySource& tokens) {
  return tokens.computed() + tokens.received() + tokens.cached();
}

// What is wrong with the sources of one answer's prompt, which should have gone through a prefill
// node to a decode node: "" when nothing.
std::string SourcesFault(const v1::Finished& finished) {
  const v1::Route& route = finished.route();
  const int64_t prompt = finished.usage().prompt_tokens();
  if (route.prefill_node().empty()) return "no prefill node took part";
  if (Sum(route.prefill_tokens()) != prompt) return "the prefill node's sources do not add up";
  if (Sum(route.decode_tokens()) != prompt) return "the decode node's sources do not add up";
  if (route.prefill_tokens().received() != 0) return "the prefill node received KV";
  if (route.decode_tokens().computed() != 0) return "the decode node computed what it should get";
  if (route.decode_tokens().received() <= 0) return "the decode node received nothing";
  if (route.kv_bytes_moved() <= 0) return "no bytes moved";
  return "";
}

// Sums over all nodes of a role, once their counters account for `prompts` tokens.
struct RoleCounters {
  v1::TokensBySource tokens;
  int64_t total = 0, bytes_sent = 0, bytes_received = 0;
};
std::map<std::string, RoleCounters> ByRole(const v1::GetStatusResponse& status) {
  std::map<std::string, RoleCounters> roles;
  for (const v1::NodeStatus& node : status.nodes()) {
    const v1::NodeCounters& counters = node.counters();
    const v1::TokensBySource& tokens = counters.prompt_tokens();
    // On every node by itself.
    EXPECT_EQ(Sum(tokens), counters.prompt_tokens_total()) << node.node_id();
    RoleCounters& role = roles[node.role()];
    role.tokens.set_computed(role.tokens.computed() + tokens.computed());
    role.tokens.set_received(role.tokens.received() + tokens.received());
    role.tokens.set_cached(role.tokens.cached() + tokens.cached());
    role.total += counters.prompt_tokens_total();
    role.bytes_sent += counters.kv_bytes_sent();
    role.bytes_received += counters.kv_bytes_received();
  }
  return roles;
}

absl::StatusOr<std::map<std::string, RoleCounters>> AwaitCounters(cli::Client& client,
                                                                  int64_t prefill_total,
                                                                  int64_t decode_total) {
  const auto differs = [&](const v1::GetStatusResponse& status) -> std::string {
    std::map<std::string, RoleCounters> roles = ByRole(status);
    if (roles["prefill"].total == prefill_total && roles["decode"].total == decode_total)
      return Holdings(status);
    return absl::StrCat("prefill nodes counted ", roles["prefill"].total, " prompt tokens of ",
                        prefill_total, ", decode nodes ", roles["decode"].total, " of ",
                        decode_total);
  };
  auto status = AwaitStatus(client, absl::Seconds(20), differs);
  if (!status.ok()) return status.status();
  return ByRole(*status);
}

TEST(KvMoved, SourcesAddUpOverManyPrompts) {
  // Measured times decide nothing here: decode nodes never compute prompts themselves.
  ASSERT_OK_AND_ASSIGN(auto cluster,
                       TestCluster::Start({"--engine=hash", "--prefill=2", "--decode=2",
                                           "--kv-blocks=4096", "--local-prefill-tokens=0"}));
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  int64_t prompts = 0, moved = 0;
  for (int i = 0; i < 60; ++i) {
    // Without a prefix in common.
    const std::vector<int32_t> prompt = RandomTokens(random, 40 + static_cast<int>(random() % 400));
    const Answer answer = cluster->Generate(RequestOf(prompt));
    ASSERT_OK(answer.status);
    EXPECT_EQ(SourcesFault(answer.finished), "") << answer.finished.DebugString();
    EXPECT_EQ(answer.finished.usage().cached_tokens(), 0);
    EXPECT_EQ(answer.finished.route().decode_tokens().received(), prompt.size());
    EXPECT_EQ(answer.finished.route().prefill_tokens().computed(), prompt.size());
    prompts += static_cast<int64_t>(prompt.size());
    moved += answer.finished.route().kv_bytes_moved();
  }
  ASSERT_OK_AND_ASSIGN(auto roles, AwaitCounters(cluster->client(), prompts, prompts));
  EXPECT_EQ(roles["prefill"].tokens.computed(), prompts);
  EXPECT_EQ(roles["decode"].tokens.received(), prompts);
  EXPECT_EQ(roles["decode"].tokens.computed(), 0);
  EXPECT_EQ(roles["decode"].bytes_received, moved);
  // A range that is late is asked for again, so more may be sent than counts.
  EXPECT_GE(roles["prefill"].bytes_sent, moved);
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST(KvMoved, RepeatedPrefixesAreFoundInTheCache) {
  // Measured times decide nothing here: a decode node computes what is short, and no more.
  ASSERT_OK_AND_ASSIGN(auto cluster,
                       TestCluster::Start({"--engine=hash", "--prefill=1", "--decode=1",
                                           "--kv-blocks=1024", "--placement=affinity"}));
  std::mt19937_64 random(5);
  const std::vector<int32_t> first = RandomTokens(random, 10 * kBlockTokens);
  ASSERT_OK(cluster->Generate(RequestOf(first)).status);

  // A continuation: both nodes hold the first ten blocks, the rest is computed once and moves.
  std::vector<int32_t> longer = first;
  const std::vector<int32_t> tail = RandomTokens(random, 100);
  longer.insert(longer.end(), tail.begin(), tail.end());
  const Answer continued = cluster->Generate(RequestOf(longer));
  ASSERT_OK(continued.status);
  EXPECT_EQ(SourcesFault(continued.finished), "") << continued.finished.DebugString();
  EXPECT_EQ(continued.finished.usage().cached_tokens(), 10 * kBlockTokens);
  const v1::Route& route = continued.finished.route();
  EXPECT_EQ(route.prefill_tokens().cached(), 10 * kBlockTokens);
  EXPECT_EQ(route.prefill_tokens().computed(), 100);
  EXPECT_EQ(route.decode_tokens().cached(), 10 * kBlockTokens);
  EXPECT_EQ(route.decode_tokens().received(), 100);

  // The very same prompt again: all but its last token is there, and the decode node computes that.
  const Answer again = cluster->Generate(RequestOf(longer));
  ASSERT_OK(again.status);
  EXPECT_EQ(again.finished.route().prefill_node(), "");
  const int64_t size = std::ssize(longer);
  EXPECT_EQ(again.finished.route().decode_tokens().cached(), size - 1);
  EXPECT_EQ(again.finished.route().decode_tokens().computed(), 1);
  EXPECT_EQ(again.finished.usage().cached_tokens(), size - 1);

  // Under another salt nothing is shared.
  v1::GenerateRequest salted = RequestOf(longer);
  salted.set_cache_salt("another tenant");
  const Answer foreign = cluster->Generate(salted);
  ASSERT_OK(foreign.status);
  EXPECT_EQ(SourcesFault(foreign.finished), "") << foreign.finished.DebugString();
  EXPECT_EQ(foreign.finished.usage().cached_tokens(), 0);

  ASSERT_OK_AND_ASSIGN(auto roles,
                       AwaitCounters(cluster->client(), 320 + 2 * size, 320 + 3 * size));
  EXPECT_EQ(roles["prefill"].tokens.cached(), 10 * kBlockTokens);
  EXPECT_EQ(roles["decode"].tokens.cached(), 10 * kBlockTokens + size - 1);
  EXPECT_EQ(roles["decode"].tokens.computed(), 1);
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST(KvMoved, ADecodeNodeThatComputesThePromptItselfIsSeen) {
  // Answers are just as right; only the counters tell.
  ASSERT_OK_AND_ASSIGN(auto cluster,
                       TestCluster::Start({"--engine=hash", "--prefill=1", "--decode=1",
                                           "--kv-blocks=1024", "--local-prefill-tokens=100000"}));
  std::mt19937_64 random(6);
  const Answer answer = cluster->Generate(RequestOf(RandomTokens(random, 300)));
  ASSERT_OK(answer.status);
  EXPECT_NE(SourcesFault(answer.finished), "");
  EXPECT_EQ(answer.finished.route().decode_tokens().computed(), 300);
  ASSERT_OK_AND_ASSIGN(auto roles, AwaitCounters(cluster->client(), 0, 300));
  EXPECT_EQ(roles["decode"].tokens.received(), 0);
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

}  // namespace
}  // namespace tandem::testing
