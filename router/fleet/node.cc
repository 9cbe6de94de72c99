#include "router/fleet/node.h"

#include <algorithm>

namespace tandem::router {
namespace {

// With so many tokens waiting, a prefill node is half busy: about one long prompt.
constexpr double kPrefillTokensHalf = 2048;
// With so many sequences, a decode node that states no limit is half busy.
constexpr double kSequencesHalf = 16;

}  // namespace

double Node::queue_fraction() const {
  if (role == v1::NODE_ROLE_PREFILL) {
    const auto waiting = static_cast<double>(std::max<int64_t>(prefill_tokens_waiting(), 0));
    return waiting / (kPrefillTokensHalf + waiting);
  }
  const auto count = static_cast<double>(std::max<int64_t>(sequences(), 0));
  if (max_sequences > 0) return std::clamp(count / max_sequences, 0.0, 1.0);
  return count / (kSequencesHalf + count);
}

double Node::free_fraction() const {
  if (num_blocks <= 0) return 0.0;
  return std::clamp(static_cast<double>(blocks_available()) / static_cast<double>(num_blocks), 0.0,
                    1.0);
}

double Node::load_score() const {
  if (role == v1::NODE_ROLE_PREFILL) {
    const int64_t tokens = std::max<int64_t>(prefill_tokens_waiting(), 0);
    return std::max(work.us(), tokens == 0 ? 0 : PromptUs(0, tokens)) / 1e6;
  }
  return queue_fraction() + 0.5 * (1.0 - free_fraction());
}

}  // namespace tandem::router
