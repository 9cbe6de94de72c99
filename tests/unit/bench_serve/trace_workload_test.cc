// Goal: prompts that a trace lets begin alike do so exactly as far as it says, at every shrinking;
// times and lengths are the trace's; a measured load is reported in the simulator's form.
#include "cli/bench_trace/trace_workload.h"

#include <gtest/gtest.h>

#include <random>

#include "cli/bench_trace/trace_measurement.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

class ListSource final : public sim::WorkloadSource {
 public:
  explicit ListSource(std::vector<sim::TraceRequest> requests) : requests_(std::move(requests)) {}
  absl::StatusOr<std::optional<sim::TraceRequest>> Next() override {
    if (next_ == requests_.size()) return std::optional<sim::TraceRequest>();
    return std::optional<sim::TraceRequest>(requests_[next_++]);
  }

 private:
  const std::vector<sim::TraceRequest> requests_;
  size_t next_ = 0;
};

std::unique_ptr<TraceWorkload> Load(std::vector<sim::TraceRequest> requests, int32_t shrink = 1) {
  auto workload =
      TraceWorkload::Create({.shrink = shrink}, std::make_unique<ListSource>(std::move(requests)));
  EXPECT_OK(workload.status());
  return *std::move(workload);
}

size_t CommonTokens(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  return i;
}

TEST(TraceWorkload, PromptsBeginAlikeAsFarAsTheTraceSays) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (const int32_t shrink : {1, 4, 32}) {
    std::vector<sim::TraceRequest> requests;
    for (int i = 0; i < 60; ++i) {
      sim::TraceRequest request = {.line = i + 1, .output_tokens = 3};
      // Few names, so that many prompts share some.
      for (size_t b = 0, blocks = 1 + random() % 6; b < blocks; ++b)
        request.blocks.push_back(random() % 2 == 0 ? random() % sim::kBlockNamesMax : random() % 2);
      request.prompt_tokens =
          static_cast<int64_t>(request.blocks.size()) * 512 - static_cast<int64_t>(random() % 512);
      requests.push_back(std::move(request));
    }
    const auto workload = Load(requests, shrink);
    const size_t block = 512 / static_cast<size_t>(shrink);
    std::vector<std::vector<int32_t>> prompts;
    for (const sim::TraceRequest& request : requests) {
      prompts.push_back(workload->Next().tokens);
      EXPECT_EQ(prompts.back().size(),
                static_cast<size_t>((request.prompt_tokens + shrink - 1) / shrink));
      for (const int32_t token : prompts.back()) {
        EXPECT_GE(token, 33);
        EXPECT_LE(token, 126);
      }
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        size_t blocks = 0;
        while (blocks < requests[i].blocks.size() && blocks < requests[j].blocks.size() &&
               requests[i].blocks[blocks] == requests[j].blocks[blocks])
          ++blocks;
        const size_t alike = CommonTokens(prompts[i], prompts[j]);
        const size_t shorter = std::min(prompts[i].size(), prompts[j].size());
        EXPECT_GE(alike, std::min(blocks * block, shorter));
        if (blocks * block < shorter) {
          EXPECT_LT(alike / block, blocks + 1);
        }
      }
    }
  }
}

TEST(TraceWorkload, PromptsWithoutNamesShareNoBlock) {
  const auto workload =
      Load({{.line = 1, .prompt_tokens = 2000, .output_tokens = 1},
            {.line = 2, .prompt_tokens = 2000, .output_tokens = 1},
            {.line = 3, .prompt_tokens = 2000, .output_tokens = 1, .blocks = {1, 2, 3, 4}}});
  const auto a = workload->Next().tokens, b = workload->Next().tokens, c = workload->Next().tokens;
  EXPECT_LT(CommonTokens(a, b), 16u);
  EXPECT_LT(CommonTokens(a, c), 16u);
}

TEST(TraceWorkload, TimesAndLengthsAreTheTraces) {
  const auto workload =
      Load({{.line = 1, .at = absl::Seconds(0), .prompt_tokens = 7, .output_tokens = 5},
            {.line = 2, .at = absl::Seconds(3), .prompt_tokens = 9, .output_tokens = 6}});
  EXPECT_EQ(workload->NextGap(), absl::ZeroDuration());
  EXPECT_EQ(workload->Next().max_tokens, 5);
  EXPECT_EQ(workload->NextGap(), absl::Seconds(3));
  EXPECT_EQ(workload->Next().max_tokens, 6);
  EXPECT_EQ(workload->NextGap(), std::nullopt);
}

TEST(TraceWorkload, RefusesWhatCannotBe) {
  for (const TraceWorkload::Options& options :
       {TraceWorkload::Options{.shrink = 0}, TraceWorkload::Options{.shrink = 3},
        TraceWorkload::Options{.shrink = 64},
        TraceWorkload::Options{.token_ids = {.min = 5, .max = 13}}})
    EXPECT_EQ(TraceWorkload::Create(options,
                                    std::make_unique<ListSource>(std::vector<sim::TraceRequest>()))
                  .status()
                  .code(),
              absl::StatusCode::kInvalidArgument);
}

TEST(MeasureTrace, CountsAsTheSimulatorDoes) {
  LoadResult load;
  RequestRecord answered;
  answered.intended = absl::Seconds(1);
  answered.first_token = absl::Milliseconds(1300);
  answered.ended = absl::Seconds(2);
  answered.gaps_ms = {10, 20};
  answered.prompt_tokens = 100;
  answered.output_tokens = 3;
  answered.cached_tokens = 64;
  answered.prefilled_apart = true;
  RequestRecord slow = answered;
  slow.first_token = absl::Seconds(4);
  slow.ended = absl::Seconds(5);
  slow.prefilled_apart = false;
  RequestRecord refused, failed, cancelled;
  refused.error = "gRPC RESOURCE_EXHAUSTED";
  refused.message = "full";
  failed.error = "gRPC INTERNAL";
  cancelled.cancelled = true;
  load.records = {answered, slow, refused, failed, cancelled};
  v1::GetStatusResponse before, after;
  v1::NodeStatus& was = *before.add_nodes();
  was.set_node_id("d0");
  was.set_role("decode");
  was.mutable_step_cost()->set_actual_us(5e6);
  was.mutable_counters()->set_generated_tokens(7);
  *after.add_nodes() = was;
  after.mutable_nodes(0)->mutable_step_cost()->set_actual_us(8e6);
  after.mutable_nodes(0)->mutable_counters()->set_generated_tokens(13);
  v1::NodeStatus& prefill = *after.add_nodes();
  prefill.set_node_id("p0");
  prefill.set_role("prefill");

  load.elapsed = absl::Seconds(6);
  sim::TraceResult result = MeasureTrace(load, {.ttft = absl::Seconds(1)}, {}, {});
  AddNodes(before, after, result);
  EXPECT_EQ(result.requests, 5);
  EXPECT_EQ(result.answered, 2);
  EXPECT_EQ(result.refused, 1);
  EXPECT_EQ(result.failed, 1);
  EXPECT_EQ(result.unfinished, 1);
  EXPECT_EQ(result.good, 1);
  EXPECT_EQ(result.first_error, "gRPC RESOURCE_EXHAUSTED: full");
  EXPECT_NEAR(result.ttft.PercentileMs(50), 300, 3);
  EXPECT_EQ(result.itl.count(), 4);
  EXPECT_EQ(result.sources.prompt, 200);
  EXPECT_EQ(result.sources.prefill_cache, 64);
  EXPECT_EQ(result.sources.decode_cache, 64);
  EXPECT_EQ(result.virtual_s, 6);
  ASSERT_EQ(result.nodes.size(), 2u);
  EXPECT_TRUE(result.nodes[0].prefill);
  EXPECT_NEAR(result.nodes[1].busy_s, 3, 1e-9);
  EXPECT_EQ(result.nodes[1].generated_tokens, 6);
}

TEST(MeasureTrace, ATierIsInTimeByItsOwnGoals) {
  ASSERT_OK_AND_ASSIGN(const router::ServiceTiers tiers,
                       router::ServiceTiers::Parse({"chat ttft=1s gap=20ms", "batch ttft=1m"}, {}));
  ASSERT_OK_AND_ASSIGN(const sim::ServiceMix mix,
                       sim::ServiceMix::Parse({"chat:1", "batch:1"}, tiers));
  const auto answered = [](int64_t index, absl::Duration first, std::vector<float> gaps) {
    RequestRecord record;
    record.index = index;
    record.first_token = first;
    record.output_tokens = static_cast<int32_t>(gaps.size()) + 1;
    record.gaps_ms = std::move(gaps);
    return record;
  };
  std::vector<int64_t> chat;
  LoadResult load;
  for (int64_t i = 0; i < 10; ++i) {
    if (mix.TierOf(i)->name == "chat") {
      chat.push_back(i);
    } else {
      load.records.push_back(answered(i, absl::Seconds(50), {100}));
    }
  }
  ASSERT_GE(chat.size(), 5u);
  const absl::Duration soon = absl::Milliseconds(100);
  load.records.push_back(answered(chat[0], soon, {10, 30}));
  load.records.push_back(answered(chat[1], soon, {10, 31}));  // a mean of 20.5 ms
  load.records.push_back(answered(chat[2], absl::Seconds(2), {10}));
  load.records.push_back(answered(chat[3], soon, {50}));
  load.records.back().output_tokens = 4;  // that came in two parts
  RequestRecord refused;
  refused.index = chat[4];
  refused.error = "gRPC RESOURCE_EXHAUSTED";
  load.records.push_back(refused);
  const sim::TraceResult result = MeasureTrace(load, {}, mix, {});
  ASSERT_EQ(result.tiers.size(), 2u);
  EXPECT_EQ(result.tiers[0].name, "chat");
  EXPECT_EQ(result.tiers[0].requests, 5);
  EXPECT_EQ(result.tiers[0].answered, 4);
  EXPECT_EQ(result.tiers[0].refused, 1);
  EXPECT_EQ(result.tiers[0].in_time, 2);
  EXPECT_NEAR(result.tiers[0].ttft.PercentileMs(50), 100, 1);
  EXPECT_NEAR(result.tiers[0].itl.PercentileMs(99), 50, 1);
  EXPECT_EQ(result.tiers[0].itl.count(), 6);
  EXPECT_EQ(result.tiers[1].in_time, result.tiers[1].requests) << "its goals are others";
  EXPECT_NEAR(result.tiers[1].itl.PercentileMs(50), 100, 1);
}

TEST(MeasureTrace, HitsAreCountedBySource) {
  LoadResult load;
  RequestRecord apart, local;
  apart.prompt_tokens = local.prompt_tokens = 100;
  apart.cached_tokens = local.cached_tokens = 64;
  apart.prefilled_apart = true;
  apart.host_memory_tokens = 32;
  apart.fetched_tokens = 16;
  local.host_memory_tokens = 16;
  local.disk_tokens = 8;
  load.records = {apart, local};
  const sim::PromptSources sources = MeasureTrace(load, {}, {}, {}).sources;
  EXPECT_EQ(sources.host_memory, 48);
  EXPECT_EQ(sources.disk, 8);
  EXPECT_EQ(sources.fetched, 16);
  EXPECT_EQ(sources.blocks(), 128 - 48 - 8 - 16) << "the rest";
}

TEST(TraceWorkload, TellsWhatACacheWouldAnswerOfEachPromptAsItIsSent) {
  const auto request = [](int64_t line, int64_t tokens, std::vector<uint64_t> blocks) {
    return sim::TraceRequest{
        .line = line, .prompt_tokens = tokens, .output_tokens = 1, .blocks = std::move(blocks)};
  };
  const auto workload = Load({request(1, 1024, {1, 2}), request(2, 1500, {1, 2, 3}),
                              request(3, 512, {1}), request(4, 900, {9, 2})},
                             /*shrink=*/4);
  while (workload->NextGap().has_value()) workload->Next();
  EXPECT_EQ(workload->ceilings(), (std::vector<int64_t>{0, 256, 0, 0})) << "in blocks of 128";
}

TEST(MeasureTrace, TheCeilingIsThatOfAnsweredRequests) {
  LoadResult load;
  RequestRecord first, refused, third;
  first.prompt_tokens = third.prompt_tokens = 1000;
  refused.index = 1;
  refused.error = "gRPC RESOURCE_EXHAUSTED";
  third.index = 2;
  third.cached_tokens = 512;
  load.records = {third, refused, first};
  const sim::TraceResult result = MeasureTrace(load, {}, {}, {0, 4096, 512});
  EXPECT_EQ(result.sources.ceiling, 512);
  EXPECT_DOUBLE_EQ(result.ceiling(), 512 / 2000.0);
  EXPECT_DOUBLE_EQ(result.ceiling(), result.hit());
}

TEST(MeasureTrace, ANodeThatStartedAgainCountsFromItsStart) {
  v1::GetStatusResponse before, after;
  v1::NodeStatus& was = *before.add_nodes();
  was.set_node_id("d1");
  was.set_role("decode");
  was.set_incarnation(1);
  was.mutable_step_cost()->set_actual_us(7e6);
  was.mutable_counters()->set_generated_tokens(1000);
  v1::NodeStatus& now = *after.add_nodes() = was;
  now.set_incarnation(2);
  now.mutable_step_cost()->set_actual_us(1e6);
  now.mutable_counters()->set_generated_tokens(2);
  sim::TraceResult result = MeasureTrace(LoadResult(), {}, {}, {});
  AddNodes(before, after, result);
  ASSERT_EQ(result.nodes.size(), 1u);
  EXPECT_NEAR(result.nodes[0].busy_s, 1, 1e-9);
  EXPECT_EQ(result.nodes[0].generated_tokens, 2);
}

}  // namespace
}  // namespace tandem::cli
