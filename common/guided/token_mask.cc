#include "common/guided/token_mask.h"

namespace tandem::guided {

// Walks the trie depth-first, and skips a subtree when the constraint forbids its first byte.
absl::StatusOr<std::shared_ptr<const TokenMask>> ComputeMask(StateGraph& graph, ConfigId config,
                                                             const Vocabulary& vocabulary) {
  auto mask = std::make_shared<TokenMask>();
  mask->words.resize(vocabulary.mask_words());
  const absl::Span<const Vocabulary::Node> nodes = vocabulary.nodes();
  graph.BeginWalk();
  // configs[d]: the configuration after d bytes. ends[d]: the end of the d-th byte's subtree.
  std::vector<ConfigId> configs(static_cast<size_t>(vocabulary.token_bytes_max()) + 1);
  std::vector<uint32_t> ends(configs.size(), static_cast<uint32_t>(nodes.size()));
  configs[0] = config;
  size_t depth = 0;
  for (uint32_t i = 0; i < nodes.size();) {
    while (depth > 0 && i >= ends[depth]) --depth;
    const ConfigId next = graph.Walk(configs[depth], nodes[i].byte);
    // Before anything else: a step may take work and lead nowhere.
    if (graph.charged() > kMaskWorkMax || graph.bytes() > kGraphBytesMax) {
      return absl::InvalidArgumentError(
          "guided: the constraint is too ambiguous: following it takes too much work or memory");
    }
    if (next == kDeadConfig) {
      i = nodes[i].after_subtree;
      continue;
    }
    for (const TokenId token : vocabulary.TokensAt(i)) {
      mask->words[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
      ++mask->count;
    }
    ++depth;
    configs[depth] = next;
    ends[depth] = nodes[i].after_subtree;
    ++i;
  }
  return mask;
}

}  // namespace tandem::guided
