#include "router/core/queue_drain.h"

#include <algorithm>
#include <cmath>

#include "router/placement/predicted_times.h"

namespace tandem::router {
namespace {

// No step takes less: a node's cost model may say that its steps take no time.
constexpr double kUsMin = 1;

double PromptUs(const Node& node, double tokens) {
  return std::max(kUsMin, node.PromptUs(0, std::max<int64_t>(1, std::llround(tokens))));
}

// What one sequence takes of the node's time, until its answer is complete.
double AnswerUs(const Node& node) {
  const int64_t sequences = std::max<int64_t>(1, node.sequences());
  const double step_us = node.GenerateUs(sequences, std::max<int64_t>(0, node.tokens_held()));
  return static_cast<double>(PredictedTimes::kAnswerTokens) * std::max(kUsMin, step_us) /
         static_cast<double>(sequences);
}

}  // namespace

double QueueDrain::SequencesPerSecond(const Fleet& fleet, double mean_prompt_tokens) {
  double prompts = 0, answers = 0, both = 0;
  for (const Node* node : fleet.by_slot()) {
    if (node == nullptr) continue;
    if (node->group() == kPrefillNodes) prompts += 1e6 / PromptUs(*node, mean_prompt_tokens);
    if (node->group() != kDecodeNodes) continue;
    answers += 1e6 / AnswerUs(*node);
    both += 1e6 / (AnswerUs(*node) + PromptUs(*node, mean_prompt_tokens));
  }
  return prompts > 0 ? std::min(prompts, answers) : both;
}

int64_t QueueDrain::RetrySeconds(const Fleet& fleet, int64_t waiting,
                                 absl::FunctionRef<double()> mean_prompt_tokens,
                                 absl::Duration longest, absl::Time now) {
  if (!predicted_at_.has_value() || now - *predicted_at_ >= kRefreshEvery) {
    sequences_per_second_ = SequencesPerSecond(fleet, mean_prompt_tokens());
    predicted_at_ = now;
  }
  const int64_t most = std::clamp<int64_t>(absl::ToInt64Seconds(longest), 1, kRetrySecondsMax);
  const double seconds = static_cast<double>(waiting) / sequences_per_second_;
  // Written so that a division by 0 gives the longest time.
  return seconds < static_cast<double>(most)
             ? std::max<int64_t>(1, static_cast<int64_t>(std::ceil(seconds)))
             : most;
}

}  // namespace tandem::router
