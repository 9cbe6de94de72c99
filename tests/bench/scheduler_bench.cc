// Measures what a step costs a decode node beside its engine, in microseconds, p50 and p99: to plan
// it, take its tokens, fit the cost model, build the routers' messages and report the load. The
// engine is a stand-in that knows its tokens at once.
//   ninja bench_scheduler && tests/bench_scheduler [SEQUENCES]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "decode_node/decode_core.h"

namespace tandem::decode_node {
namespace {

constexpr int kBlockTokens = 32, kPromptTokens = 500, kStepsCounted = 3000;

node::SchedulerOptions Options(int sequences) {
  node::SchedulerOptions options;
  options.spec.model_name = "bench";
  options.spec.model_fingerprint = "f";
  options.spec.numerics_id = "n";
  options.spec.vocab_size = 50'000;
  options.spec.context_tokens = 8192;
  options.spec.layout = {
      .num_layers = 1, .block_tokens = kBlockTokens, .layer_block_bytes = kBlockTokens * 1024};
  options.num_blocks = int64_t{sequences} * 8192 / kBlockTokens;
  options.max_batch_tokens = 2048;
  options.max_sequences = sequences;
  return options;
}

v1::NodeCommand StartOf(int number) {
  v1::NodeCommand command;
  v1::StartDecode& start = *command.mutable_start_decode();
  start.mutable_leg()->set_request_id(absl::StrCat("request-", number));
  start.mutable_leg()->set_attempt(1);
  start.mutable_leg()->set_number(static_cast<uint64_t>(number) + 1);
  for (int i = 0; i < kPromptTokens; ++i)
    start.mutable_sequence()->add_prompt((number * 7919 + i) % 50'000);
  start.mutable_sequence()->mutable_stop()->set_max_tokens(7000);
  start.set_local_prefill_tokens_max(-1);
  start.set_deadline_s(3600);
  return command;
}

double Micros(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - since)
      .count();
}

void Run(int sequences) {
  absl::Time now = absl::UnixEpoch();
  node::NodeResources resources(Options(sequences));
  DecodeCore core(resources);
  core.OnRouterJoined(node::RouterKey(1), now);
  for (int i = 0; i < sequences; ++i) core.OnCommand(node::RouterKey(1), StartOf(i), now);
  resources.TakeActions();
  std::vector<double> plans, steps;
  std::vector<engine::SampledToken> tokens;
  while (plans.size() < kStepsCounted) {
    const auto began = std::chrono::steady_clock::now();
    const auto slices = core.PlanStep(now);
    const double plan_us = Micros(began);
    TANDEM_CHECK(!slices.empty(), "nothing to compute");
    tokens.clear();
    for (const engine::SequenceSlice& slice : slices)
      if (slice.sample)
        tokens.push_back({.token = static_cast<TokenId>(slice.tokens.size() % 999)});
    const bool generates = static_cast<int>(tokens.size()) == sequences;
    now += absl::Milliseconds(30);
    const auto ended = std::chrono::steady_clock::now();
    core.OnStepDone(tokens, now);
    const node::NodeActions actions = resources.TakeActions();
    const v1::NodeLoad load = core.load();
    const double us = plan_us + Micros(ended);
    if (!generates) continue;  // prompts are still being computed
    plans.push_back(plan_us);
    steps.push_back(us);
  }
  const auto at = [](std::vector<double>& all, size_t percent) {
    std::sort(all.begin(), all.end());
    return all[all.size() * percent / 100];
  };
  std::printf(
      "running %4d  plan p50 %6.1f us  p99 %6.1f us  whole step p50 %6.1f us  p99 %6.1f us  "
      "longest %6.1f us\n",
      sequences, at(plans, 50), at(plans, 99), at(steps, 50), at(steps, 99),
      *std::max_element(steps.begin(), steps.end()));
}

}  // namespace
}  // namespace tandem::decode_node

int main(int argc, char** argv) {
  const int only = argc > 1 ? std::atoi(argv[1]) : 0;
  for (const int sequences : {8, 64, 256})
    if (only == 0 || only == sequences) tandem::decode_node::Run(sequences);
  return 0;
}
