#include "router/placement/placed_work.h"

#include <algorithm>

namespace tandem::router {
namespace {

// Of one token, and of a prompt, at least.
constexpr double kLeastUs = 0.01;

double PromptUs(const Placement& placement, int64_t prompt_tokens, const Fleet& fleet) {
  if (placement.compute_us.has_value()) return *placement.compute_us;
  const int64_t lacks = prompt_tokens - placement.decode_cached_tokens;
  const bool alone = !placement.prefill.has_value() || placement.local_prefill_tokens_max < 0 ||
                     lacks <= placement.local_prefill_tokens_max;
  const Node* node = fleet.Find(alone ? placement.decode : *placement.prefill);
  if (node == nullptr) return 0;
  const int64_t cached = std::clamp<int64_t>(
      alone ? placement.decode_cached_tokens : placement.prefill_cached_tokens, 0, prompt_tokens);
  return node->PromptUs(cached, prompt_tokens - cached);
}

double TokenUs(const Placement& placement, int64_t prompt_tokens, const Fleet& fleet) {
  const Node* node = fleet.Find(placement.decode);
  if (node == nullptr) return 0;
  const int64_t others = std::max<int64_t>(0, node->sequences());
  const int64_t attended = std::max<int64_t>(0, node->tokens_held());
  return node->GenerateUs(others + 1, attended + prompt_tokens) / static_cast<double>(others + 1);
}

}  // namespace

PlacedWork WorkOf(const Placement& placement, int64_t prompt_tokens, const Fleet& fleet) {
  return {.prompt_us = std::max(kLeastUs, PromptUs(placement, prompt_tokens, fleet)),
          .token_us = std::max(kLeastUs, TokenUs(placement, prompt_tokens, fleet))};
}

}  // namespace tandem::router
