// Goal: a trace in virtual time takes the time that the cost model says, reuses what an unlimited
// cache could, repeats exactly, and balances work; what cannot be simulated is refused.
#include "sim/trace/trace_simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "sim/trace/shrunk_source.h"
#include "sim/trace/token_engine.h"

namespace tandem::sim {
namespace {

using ::testing::HasSubstr;

class ListSource final : public WorkloadSource {
 public:
  explicit ListSource(std::vector<TraceRequest> requests) : requests_(std::move(requests)) {}
  absl::StatusOr<std::optional<TraceRequest>> Next() override {
    if (next_ == requests_.size()) return std::optional<TraceRequest>();
    return std::optional<TraceRequest>(requests_[next_++]);
  }

 private:
  const std::vector<TraceRequest> requests_;
  size_t next_ = 0;
};

TraceOptions SmallFleet() {
  SetLogLevel(LogLevel::kError);
  TraceOptions options;
  options.prefill_nodes = options.decode_nodes = 2;
  options.step_cost = {.step_us = 1000, .prompt_row_us = 100, .generated_row_us = 10};
  options.kv_bytes_per_token = 1000;
  options.link = {.bytes_per_second = 1e9, .latency = absl::Microseconds(50)};
  return options;
}

absl::StatusOr<TraceResult> Replay(const TraceOptions& options,
                                   const std::vector<TraceRequest>& requests) {
  ListSource survey(requests);
  auto summary = Summarize(survey);
  if (!summary.ok()) return summary.status();
  ListSource load(requests);
  return RunTrace(options, *summary, load);
}

// Conversations whose turns repeat the turns before them, in the order in which they arrive.
std::vector<TraceRequest> Conversations(uint64_t seed, int conversations, int turns,
                                        absl::Duration gap) {
  std::mt19937_64 random(seed);
  std::vector<TraceRequest> requests;
  std::vector<std::vector<uint64_t>> blocks(static_cast<size_t>(conversations));
  uint64_t next = 1;
  for (int turn = 0; turn < turns; ++turn) {
    for (auto& conversation : blocks) {
      const size_t added = 1 + random() % 6;
      for (size_t i = 0; i < added; ++i) conversation.push_back(next++);
      TraceRequest request;
      request.line = static_cast<int64_t>(requests.size()) + 1;
      request.at = static_cast<double>(requests.size()) * gap;
      request.blocks = conversation;
      request.prompt_tokens = static_cast<int64_t>(conversation.size()) * kTraceBlockTokens -
                              static_cast<int64_t>(random() % 300);
      request.output_tokens = 1 + static_cast<int64_t>(random() % 40);
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

double Ceiling(const std::vector<TraceRequest>& requests) {
  ListSource source(requests);
  return Summarize(source)->ceiling();
}

// With what the turn before left of its last block, which is not full.
double CeilingWithParts(const std::vector<TraceRequest>& requests) {
  int64_t prompts = 0, parts = 0;
  std::map<uint64_t, int64_t> before;  // tokens of a conversation's last prompt, by its first block
  for (const TraceRequest& request : requests) {
    int64_t& last = before[static_cast<uint64_t>(request.blocks.front())];
    parts += last % kTraceBlockTokens;
    prompts += last = request.prompt_tokens;
  }
  return Ceiling(requests) + static_cast<double>(parts) / static_cast<double>(prompts);
}

TEST(TraceSimulation, OneRequestTakesWhatTheCostModelSays) {
  // 2,000 rows in one step: 1 + 200 ms. Then 9 steps of one row: 1.01 ms each.
  const auto result =
      Replay(SmallFleet(), {{.line = 1, .prompt_tokens = 2000, .output_tokens = 10}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->answered, 1);
  EXPECT_EQ(result->output_tokens, 10);
  // Beside the steps: four control messages of at most 0.3 ms.
  EXPECT_GE(result->ttft.max_ms(), 201);
  EXPECT_LE(result->ttft.max_ms(), 201 + 1.2);
  EXPECT_EQ(result->itl.count(), 9);
  // The second token waits for the transfer: 4 blocks of 512,000 bytes at 1 GB/s, once the step has
  // ended.
  EXPECT_NEAR(result->itl.max_ms(), 1.01 + 4 * 0.512, 1.0);
  EXPECT_NEAR(result->itl.PercentileMs(50), 1.01, 0.3);
  double busy = 0;
  for (const NodeResult& node : result->nodes) busy += node.busy_s;
  EXPECT_NEAR(busy, 0.201 + 9 * 0.00101, 1e-9);
  EXPECT_EQ(result->hit(), 0);
}

// A node's engine thread reads its messages between two steps, and works between them.
TEST(TraceSimulation, ANodeHearsOfARequestWhenItsStepHasEnded) {
  TraceOptions options = SmallFleet();
  options.prefill_nodes = 0;
  options.decode_nodes = 1;
  options.step_cost = {.step_us = 20'000, .prompt_row_us = 1};
  options.step_gap = absl::Milliseconds(5);
  // The first generates from 20 ms on, a token every 25 ms. The second comes at 60 ms, during the
  // step from 50 to 70 ms; its own step begins at 75 ms and ends at 95 ms.
  const auto result =
      Replay(options,
             {{.line = 1, .prompt_tokens = 10, .output_tokens = 10},
              {.line = 2, .at = absl::Milliseconds(60), .prompt_tokens = 10, .output_tokens = 1}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->answered, 2);
  EXPECT_NEAR(result->itl.PercentileMs(50), 25, 0.5);
  EXPECT_NEAR(result->ttft.max_ms(), 35, 1);
}

// A sixteenth of each prompt, in blocks of a sixteenth: equal hits, and a sixteenth of the rows.
TEST(TraceSimulation, AShrunkTraceSharesAsMuch) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto requests = Conversations(seed, 8, 5, absl::Seconds(2));
  constexpr int64_t kShrink = 16;
  std::vector<TraceRequest> shrunk = requests;
  for (TraceRequest& request : shrunk)
    request.prompt_tokens = ShrunkTokens(request.prompt_tokens, kShrink);
  const auto open = [&] {
    return ShrinkPrompts(std::make_unique<ListSource>(requests), static_cast<int32_t>(kShrink));
  };
  const auto summary = Summarize(*open(), kTraceBlockTokens / kShrink);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_NEAR(summary->ceiling(), Ceiling(requests), 0.02);
  const auto load = open();
  const auto result = RunTrace(SmallFleet(), *summary, *load);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->answered, requests.size());
  int64_t prompt_tokens = 0;
  for (const TraceRequest& request : shrunk) prompt_tokens += request.prompt_tokens;
  EXPECT_EQ(result->sources.prompt, prompt_tokens);
  EXPECT_GE(result->hit(), 0.9 * summary->ceiling());
}

TEST(TraceSimulation, ReusesWhatACacheWithoutLimitCould) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto requests = Conversations(seed, 12, 6, absl::Seconds(2));
  TraceOptions options = SmallFleet();
  const auto result = Replay(options, requests);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->answered, requests.size());
  EXPECT_GT(Ceiling(requests), 0.3);
  EXPECT_DOUBLE_EQ(result->ceiling(), Ceiling(requests)) << "all were answered";
  EXPECT_GE(result->hit(), 0.95 * Ceiling(requests));
  EXPECT_LE(result->hit(), CeilingWithParts(requests) + 1e-9);
  // What the report calls hits is what the engines did not compute.
  int64_t computed = 0;
  for (const NodeResult& node : result->nodes) computed += node.prompt_tokens;
  EXPECT_EQ(result->sources.prompt - result->sources.hits(), computed);

  // A pool that holds two conversations at most keeps less.
  options.blocks_per_node = 60;
  const auto small = Replay(options, requests);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->answered, requests.size());
  EXPECT_LT(small->hit(), result->hit());
}

// Prompts that begin alike are short, and all others so long that none is answered: hits are
// compared with the ceiling of what was answered.
TEST(TraceSimulation, TheCeilingUnderOverloadIsThatOfAnsweredRequests) {
  std::vector<TraceRequest> requests;
  uint64_t unique = 100;
  for (int i = 0; i < 120; ++i) {
    TraceRequest request = {.line = i + 1, .at = i * absl::Milliseconds(200), .output_tokens = 5};
    for (uint64_t block = 0; block < (i % 2 == 0 ? 10u : 200u); ++block)
      request.blocks.push_back(i % 2 == 0 ? block : unique++);
    request.prompt_tokens = static_cast<int64_t>(request.blocks.size()) * kTraceBlockTokens;
    requests.push_back(std::move(request));
  }
  TraceOptions options = SmallFleet();
  options.prefill_nodes = options.decode_nodes = 1;
  options.queue_deadline = absl::Seconds(5);
  options.prefill_wait_max = absl::Seconds(2);
  options.default_tier = {.ttft_slo = absl::Seconds(5), .late = router::LatePolicy::kRefuse};
  const auto result = Replay(options, requests);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->answered, 20);
  EXPECT_LT(result->answered, 90);
  EXPECT_GT(result->hit(), 2 * Ceiling(requests)) << "most of what could not hit is not answered";
  EXPECT_GT(result->sources.ceiling, 0);
  const int64_t parts = result->answered * (kTraceBlockTokens - 1);
  EXPECT_LE(result->sources.hits(), result->sources.ceiling + parts);
  EXPECT_GE(result->sources.hits(), result->sources.ceiling / 2);
}

// A block of 512 tokens of a large model has 168 MB, more than a fetch over a link that was never
// measured may have otherwise. Were it not fetched, no link would ever be measured.
TEST(TraceSimulation, FetchesLargeBlocksFromOtherNodes) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto requests = Conversations(seed, 13, 6, absl::Seconds(2));  // turns change nodes
  TraceOptions options = SmallFleet();
  options.kv_bytes_per_token = 327'680;
  options.link.bytes_per_second = 25e9;
  options.placement = router::PlacementPolicy::kRoundRobin;
  const auto result = Replay(options, requests);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->sources.fetched, 0);
  EXPECT_GE(result->hit(), 0.95 * Ceiling(requests));
}

// What a small pool has no room for is read back, from host memory or from a slow disk.
TEST(TraceSimulation, StorageKeepsWhatThePoolHasNoRoomFor) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto requests = Conversations(seed, 12, 6, absl::Seconds(2));
  TraceOptions options = SmallFleet();
  options.blocks_per_node = 60;
  const auto without = Replay(options, requests);
  options.host_memory = {.blocks = 1000, .bytes_per_second = 1e9};
  const auto host = Replay(options, requests), again = Replay(options, requests);
  options.host_memory = {};
  options.disk = {.blocks = 1000, .bytes_per_second = 1e8};
  const auto disk = Replay(options, requests);
  options.disk.bytes_per_second = 1e4;  // a block takes 51 s, its rows 0.05
  const auto slow = Replay(options, requests);
  for (const auto* result : {&without, &host, &again, &disk, &slow}) {
    ASSERT_TRUE(result->ok()) << result->status();
    EXPECT_EQ((*result)->answered, requests.size());
  }
  EXPECT_EQ(without->sources.host_memory + without->sources.disk, 0);
  EXPECT_GT(host->sources.host_memory, 0);
  EXPECT_EQ(host->sources.disk, 0);
  EXPECT_GT(host->hit(), without->hit());
  EXPECT_GE(host->hit(), 0.9 * Ceiling(requests)) << "it has room for all";
  EXPECT_GT(disk->sources.disk, 0);
  EXPECT_EQ(disk->sources.host_memory, 0);
  EXPECT_EQ(host->sources.host_memory, again->sources.host_memory) << "the seed decides all";
  EXPECT_LT(slow->sources.disk, disk->sources.disk) << "reading takes longer than computing";
}

TEST(TraceSimulation, EqualOptionsGiveEqualResults) {
  const auto requests = Conversations(7, 10, 4, absl::Milliseconds(150));
  TraceOptions options = SmallFleet();
  options.routers = 2;
  const auto run = [&](uint64_t seed) {
    options.seed = seed;
    auto result = Replay(options, requests);
    EXPECT_TRUE(result.ok()) << result.status();
    std::string text = absl::StrCat(result->events, " ", result->virtual_s, " ", result->hit());
    for (const NodeResult& node : result->nodes)
      absl::StrAppend(&text, " ", node.busy_s, "/", node.steps);
    return text;
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

TEST(TraceSimulation, StepNoiseSpreadsGapsAndKeepsTheirMean) {
  TraceOptions options = SmallFleet();
  options.prefill_nodes = 0;
  options.decode_nodes = 1;
  options.step_cost = {.step_us = 10'000, .prompt_row_us = 1};
  const std::vector<TraceRequest> one = {
      {.line = 1, .prompt_tokens = 100, .output_tokens = 20'000}};
  const auto exact = Replay(options, one);
  // 5 % of the steps take twice as long as the rest.
  options.step_noise = *StepNoise::Create({{0, 1}, {95, 1}, {95.001, 2}, {100, 2}});
  const auto noisy = Replay(options, one), again = Replay(options, one);
  options.seed = 2;
  const auto other = Replay(options, one);
  ASSERT_TRUE(exact.ok() && noisy.ok() && again.ok() && other.ok());
  // Messages take up to 0.3 ms of 10.
  EXPECT_NEAR(exact->itl.PercentileMs(99) / exact->itl.PercentileMs(50), 1, 0.05);
  EXPECT_NEAR(noisy->itl.PercentileMs(99) / noisy->itl.PercentileMs(50), 2, 0.1);
  EXPECT_NEAR(noisy->itl.mean_ms() / exact->itl.mean_ms(), 1, 0.01);
  EXPECT_EQ(noisy->itl.mean_ms(), again->itl.mean_ms()) << "the seed decides all";
  EXPECT_NE(noisy->itl.mean_ms(), other->itl.mean_ms());
}

TEST(TraceSimulation, EveryPolicyAndTopologyAnswersAll) {
  const auto requests = Conversations(11, 10, 3, absl::Milliseconds(100));
  for (const auto& [name, policy] : router::kPlacementPolicies) {
    for (const int prefill_nodes : {0, 1, 5}) {
      TraceOptions options = SmallFleet();
      options.placement = policy;
      options.prefill_nodes = prefill_nodes;
      options.routers = 1 + prefill_nodes / 2;
      const auto result = Replay(options, requests);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->answered, requests.size()) << name << ", " << prefill_nodes;
      EXPECT_GE(result->max_over_mean(), 1) << name;
      EXPECT_LE(result->max_over_mean(), std::max(1, prefill_nodes) + 2) << name;
    }
  }
}

TEST(TraceSimulation, CountsWhatIsWithinTheObjectives) {
  // The second request waits for the first one's prompt, 201 ms, on the only prefill node.
  TraceOptions options = SmallFleet();
  options.prefill_nodes = options.decode_nodes = 1;
  const std::vector<TraceRequest> requests = {
      {.line = 1, .prompt_tokens = 2000, .output_tokens = 5},
      {.line = 2, .prompt_tokens = 2000, .output_tokens = 5}};
  options.objectives.ttft = absl::Milliseconds(250);
  EXPECT_EQ(Replay(options, requests)->good, 1);
  options.objectives.ttft = absl::Milliseconds(500);
  EXPECT_EQ(Replay(options, requests)->good, 2);
  options.objectives.itl = absl::Microseconds(500);
  EXPECT_EQ(Replay(options, requests)->good, 0);
}

TEST(TraceSimulation, BoundedWaitsKeepGoodputUnderOverload) {
  // A prefill node computes a prompt of 2,000 tokens in about 200 ms: two nodes, ten a second.
  const auto good = [](double requests_per_second, bool bounded) {
    std::vector<TraceRequest> requests;
    for (int i = 0; i < 600; ++i)
      requests.push_back({.line = i + 1,
                          .at = absl::Seconds(i / requests_per_second),
                          .prompt_tokens = 2000,
                          .output_tokens = 5});
    TraceOptions options = SmallFleet();
    options.objectives.ttft = absl::Seconds(3);
    if (bounded) {
      options.prefill_wait_max = absl::Seconds(1);
      options.queue_deadline = absl::Milliseconds(1500);
    }
    const auto result = Replay(options, requests);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->answered + result->failed, 600);
    if (bounded && result->failed > 0) {
      EXPECT_THAT(result->first_error, HasSubstr("--prefill-wait"));
    }
    return result->goodput();
  };
  const double at_capacity = good(10, true);
  EXPECT_GT(at_capacity, 8);
  EXPECT_GE(good(30, true), 0.95 * at_capacity);
  EXPECT_LT(good(30, false), 0.5 * at_capacity) << "the limits make the difference";
}

TEST(TraceSimulation, RefusesWhatDoesNotFit) {
  const std::vector<TraceRequest> requests = {
      {.line = 1, .prompt_tokens = 5000, .output_tokens = 120}};
  TraceOptions options = SmallFleet();
  options.blocks_per_node = 11;  // 5,120 tokens take 10, and two more
  EXPECT_THAT(std::string(Replay(options, requests).status().message()),
              HasSubstr("11 blocks, and the trace's longest sequence takes 12"));
  options.blocks_per_node = 12;
  EXPECT_EQ(Replay(options, requests)->answered, 1);
  options.blocks_per_node = kSimulatedBlocksMax / 4 + 1;
  EXPECT_THAT(std::string(Replay(options, requests).status().message()),
              HasSubstr("expected at most 67108864 blocks in all"));
  options.blocks_per_node = 12;
  options.disk = {.blocks = kSimulatedBlocksMax / 4, .bytes_per_second = 1e9};
  EXPECT_THAT(std::string(Replay(options, requests).status().message()),
              HasSubstr("12 blocks and 16777216 stored ones each"));
  options = SmallFleet();
  options.decode_nodes = kSimulatedNodesMax;
  EXPECT_THAT(std::string(Replay(options, requests).status().message()),
              HasSubstr("4098 nodes, expected at most 4096"));
  options.decode_nodes = 0;
  EXPECT_FALSE(Replay(options, requests).ok());
}

TEST(TraceSimulation, AnErrorOfTheSourceEndsTheRun) {
  class Failing final : public WorkloadSource {
    absl::StatusOr<std::optional<TraceRequest>> Next() override {
      return absl::InvalidArgumentError("line 7 is bad");
    }
  } failing;
  const TraceSummary summary{.requests = 1, .prompt_tokens = 1, .sequence_tokens_max = 2};
  EXPECT_EQ(RunTrace(SmallFleet(), summary, failing).status().message(), "line 7 is bad");
}

}  // namespace
}  // namespace tandem::sim
