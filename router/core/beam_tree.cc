#include "router/core/beam_tree.h"

#include <algorithm>
#include <utility>

namespace tandem::router {

BeamTree::Node BeamTree::Add(Node parent, TokenId token, float logprob,
                             absl::Span<const v1::TokenLogprob* const> top) {
  Entry entry{.token = token, .logprob = logprob, .parent = parent, .uses = 1, .top = {}};
  entry.top.reserve(top.size());
  for (const v1::TokenLogprob* one : top)
    entry.top.push_back({one->token_id(), one->logprob(), one->rank()});
  if (parent != kRoot) ++nodes_[static_cast<size_t>(parent)].uses;
  if (free_.empty()) {
    nodes_.push_back(std::move(entry));
    return static_cast<Node>(nodes_.size() - 1);
  }
  const Node node = free_.back();
  free_.pop_back();
  nodes_[static_cast<size_t>(node)] = std::move(entry);
  return node;
}

void BeamTree::Release(Node node) {
  while (node != kRoot) {
    Entry& entry = nodes_[static_cast<size_t>(node)];
    if (--entry.uses > 0) return;
    const Node parent = entry.parent;
    entry = {};
    free_.push_back(node);
    node = parent;
  }
}

std::vector<BeamTree::Node> BeamTree::Path(Node node) const {
  std::vector<Node> path;
  for (; node != kRoot; node = At(node).parent) path.push_back(node);
  std::reverse(path.begin(), path.end());
  return path;
}

std::vector<TokenId> BeamTree::TokenIds(Node node) const {
  std::vector<TokenId> tokens;
  for (const Node at : Path(node)) tokens.push_back(At(at).token);
  return tokens;
}

std::vector<v1::GeneratedToken> BeamTree::Tokens(Node node) const {
  std::vector<v1::GeneratedToken> tokens;
  for (const Node at : Path(node)) {
    v1::GeneratedToken& token = tokens.emplace_back();
    token.set_token_id(At(at).token);
    token.set_index(static_cast<int32_t>(tokens.size()) - 1);
    token.set_logprob(At(at).logprob);
    for (const Top& top : At(at).top) {
      v1::TokenLogprob& wire = *token.add_top_logprobs();
      wire.set_token_id(top.token);
      wire.set_logprob(top.logprob);
      wire.set_rank(top.rank);
    }
  }
  return tokens;
}

}  // namespace tandem::router
