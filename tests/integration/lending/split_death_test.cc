// Goal: a split prompt outlives the death of each of its processes, as real processes die. While it
// is computed, when its first token comes, and while its answer is generated, kill -9 ends one of
// its creditors, its prefill node or its decode node. Other nodes take the lost one's place. Tokens
// and log-probabilities are, to the bit, those of one node that holds the whole sequence, on the
// hash engine and on the real model. Afterwards no node that is left holds, lends or owes anything.
#include <random>
#include <tuple>

#include "tests/integration/lending/asked.h"
#include "tests/integration/lending/lent_status.h"
#include "tests/testing/models.h"
#include "tests/testing/process_fleet.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using Flags = std::vector<std::string>;

enum class Point { kPromptComputed, kFirstToken, kAnswerGenerated };
enum class Victim { kCreditor, kPrefill, kDecode };

std::string NameOf(Point point) {
  return point == Point::kPromptComputed ? "WhileComputed"
         : point == Point::kFirstToken   ? "AtTheFirstToken"
                                         : "WhileGenerated";
}
std::string NameOf(Victim victim) {
  return victim == Victim::kCreditor  ? "Creditor"
         : victim == Victim::kPrefill ? "Prefill"
                                      : "Decode";
}

// The nodes of the one request, by id.
struct Parties {
  std::string creditor, prefill, decode;
  const std::string& operator[](Victim victim) const {
    return victim == Victim::kCreditor ? creditor : victim == Victim::kPrefill ? prefill : decode;
  }
};

// A decode node keeps less than half of its pool for the prompt's end; the prompt is longer than
// any pool. So three units or more are lent, by two loans at least: a node lends two units.
struct Engine {
  Flags common, small, large;  // of all; of nodes that lend; of the node that holds everything
  int vocabulary = 0, prompt_tokens = 0, output_tokens = 0;
};

std::optional<Engine> FindEngine(bool real_model) {
  if (!real_model)
    return Engine{
        .common = {"--engine=hash"},
        .small = {"--block-tokens=16", "--kv-blocks=48", "--lend-fraction=0.8",
                  "--max-batch-tokens=64", "--hash-row-time=3ms", "--hash-step-time=10ms"},
        .large = {"--block-tokens=16", "--kv-blocks=200"},
        .vocabulary = 200,
        .prompt_tokens = 1100,
        .output_tokens = 200};
  const auto path = FindModel(kSmolLm2File);
  if (!path.has_value()) return std::nullopt;
  return Engine{.common = {"--model=" + *path},
                .small = {"--block-tokens=32", "--kv-blocks=24", "--lend-fraction=0.8",
                          "--max-batch-tokens=64", "--threads=1"},
                .large = {"--block-tokens=32", "--kv-blocks=100"},
                .vocabulary = 49152,
                .prompt_tokens = 1100,
                .output_tokens = 100};
}

// A router, two prefill nodes and five decode nodes.
std::unique_ptr<ProcessFleet> StartFleet(const Engine& engine) {
  Flags router = engine.common, node = engine.common;
  router.insert(router.end(), {"--heartbeat-interval=20ms", "--node-lost-after=20s",
                               "--placement=affinity", "--local-prefill-tokens=0"});
  node.insert(node.end(), engine.small.begin(), engine.small.end());
  auto fleet = ProcessFleet::Start(router);
  EXPECT_OK(fleet.status());
  if (!fleet.ok()) return nullptr;
  for (const char* id : {"prefill-0", "prefill-1"})
    EXPECT_OK((*fleet)->StartNode("prefill", id, node));
  for (const char* id : {"decode-0", "decode-1", "decode-2", "decode-3", "decode-4"})
    EXPECT_OK((*fleet)->StartNode("decode", id, node));
  const absl::Status joined = (*fleet)->AwaitJoined();
  EXPECT_OK(joined);
  return joined.ok() ? *std::move(fleet) : nullptr;
}

// The request's nodes once `debtor` of them (the prefill node, or the decode node) owes blocks.
Parties AwaitDebt(ProcessFleet& fleet, Victim debtor) {
  Parties parties;
  EXPECT_OK(AwaitStatus(fleet.client(), absl::Seconds(60), [&](const auto& status) -> std::string {
              const auto running = fleet.client().ListRequests(1, absl::Seconds(5));
              if (!running.ok()) return running.status().ToString();
              if (running->requests_size() != 1) return "the request does not run";
              const v1::RunningRequest& request = running->requests(0);
              parties = {.creditor = "",
                         .prefill = request.prefill_node(),
                         .decode = request.decode_node()};
              parties.creditor = CreditorOf(status, parties[debtor]);
              return parties.creditor.empty()
                         ? absl::StrCat(request.ShortDebugString(), " owes nothing")
                         : "";
            }).status());
  return parties;
}

v1::GenerateRequest RandomRequest(const Engine& engine) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  v1::GenerateRequest request;
  for (int i = 0; i < engine.prompt_tokens; ++i)
    request.mutable_tokens()->add_ids(static_cast<int>(random() % engine.vocabulary));
  request.mutable_stop()->set_max_tokens(engine.output_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_return_token_ids(true);
  request.mutable_sampling()->set_temperature(random() % 2 == 0 ? 0 : 0.8);
  request.mutable_sampling()->set_seed(random() >> 1);
  request.mutable_sampling()->set_logprobs(1);
  return request;
}

Answer AnswerOfOneNode(const Engine& engine, const v1::GenerateRequest& request) {
  Flags flags = {"--prefill=0", "--decode=1"};
  flags.insert(flags.end(), engine.common.begin(), engine.common.end());
  flags.insert(flags.end(), engine.large.begin(), engine.large.end());
  const auto cluster = TestCluster::Start(flags);
  EXPECT_OK(cluster.status());
  return cluster.ok() ? (*cluster)->Generate(request) : Answer{.status = cluster.status()};
}

class SplitDeath : public ::testing::TestWithParam<std::tuple<bool, Point, Victim>> {
 protected:
  // Lets the request come to the test's point; returns its nodes then.
  static Parties AwaitPoint(ProcessFleet& fleet, Asked& asked, Point point) {
    Parties parties = AwaitDebt(fleet, Victim::kPrefill);
    EXPECT_EQ(asked.tokens(), 0u)
        << "the prompt was computed before the prefill node's debt showed";
    if (point == Point::kFirstToken) {
      EXPECT_TRUE(asked.AwaitTokens(1));
    }
    if (point != Point::kAnswerGenerated) return parties;
    EXPECT_TRUE(asked.AwaitTokens(20));
    return {.creditor = AwaitDebt(fleet, Victim::kDecode).creditor,
            .prefill = parties.prefill,
            .decode = parties.decode};
  }
};

TEST_P(SplitDeath, ChangesNoBit) {
  const auto [real_model, point, victim] = GetParam();
  const auto engine = FindEngine(real_model);
  if (!engine.has_value()) GTEST_SKIP() << "no " << kSmolLm2File << " in " << ModelFolder();
  const v1::GenerateRequest request = RandomRequest(*engine);
  const Answer expected = AnswerOfOneNode(*engine, request);
  ASSERT_OK(expected.status);
  const auto fleet = StartFleet(*engine);
  ASSERT_NE(fleet, nullptr);
  Asked asked(fleet->client(), request);
  const Parties parties = AwaitPoint(*fleet, asked, point);
  const size_t before = asked.tokens();
  ASSERT_OK(fleet->Kill(parties[victim]));
  const Answer answer = asked.AwaitEnd();
  std::printf("killed %s after %zu tokens; attempts %d, prefill node \"%s\", decode node %s\n",
              parties[victim].c_str(), before, answer.finished.route().attempts(),
              answer.finished.route().prefill_node().c_str(),
              answer.finished.route().decode_node().c_str());
  EXPECT_LT(before, expected.tokens.size());
  ASSERT_OK(answer.status) << fleet->logs();
  EXPECT_EQ(answer.tokens, expected.tokens) << fleet->logs();
  EXPECT_EQ(answer.logprobs, expected.logprobs);
  EXPECT_EQ(answer.text, expected.text);
  const auto quiet = AwaitStatus(fleet->client(), absl::Seconds(30), HeldOrLent);
  ASSERT_OK(quiet.status()) << fleet->logs();
}

INSTANTIATE_TEST_SUITE_P(
    Processes, SplitDeath,
    ::testing::Combine(::testing::Bool(),
                       ::testing::Values(Point::kPromptComputed, Point::kFirstToken,
                                         Point::kAnswerGenerated),
                       ::testing::Values(Victim::kCreditor, Victim::kPrefill, Victim::kDecode)),
    [](const auto& info) {
      return absl::StrCat(std::get<0>(info.param) ? "RealModel" : "HashEngine",
                          NameOf(std::get<2>(info.param)), NameOf(std::get<1>(info.param)));
    });

}  // namespace
}  // namespace tandem::testing
