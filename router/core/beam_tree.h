// The tokens of a beam search's beams, as a tree: a beam is a path from a root to a node, and beams
// share what they have in common. So a step costs a node for each beam, however long they are.
//
// Thread safety: none; a BeamSearch owns it. A copy is a tree of its own.
// Invariants: a node lives while a beam ends in it or another node follows it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "tandem/v1/common.pb.h"

namespace tandem::router {

class BeamTree {
 public:
  using Node = int32_t;
  static constexpr Node kRoot = -1;  // of a beam without tokens
  // What a node takes, and each top log-probability of its token.
  static constexpr int64_t kNodeBytes = 40, kTopBytes = 12;

  // A token after `parent`, with copies of `top`. A beam ends in it until Release.
  Node Add(Node parent, TokenId token, float logprob,
           absl::Span<const v1::TokenLogprob* const> top);
  // A beam does not end in the node any more.
  void Release(Node node);

  TokenId token(Node node) const { return At(node).token; }
  // From the root to the node.
  std::vector<TokenId> TokenIds(Node node) const;
  std::vector<v1::GeneratedToken> Tokens(Node node) const;
  // Nodes that live.
  int64_t size() const { return static_cast<int64_t>(nodes_.size() - free_.size()); }

 private:
  struct Top {
    TokenId token = 0;
    float logprob = 0;
    int32_t rank = 0;
  };
  static_assert(sizeof(Top) == kTopBytes);
  struct Entry {
    TokenId token = 0;
    float logprob = 0;
    Node parent = kRoot;
    int32_t uses = 0;      // beams that end here, and nodes that follow
    std::vector<Top> top;  // Bound: logprobs of the request
  };
  static_assert(sizeof(Entry) == kNodeBytes);
  const Entry& At(Node node) const { return nodes_[static_cast<size_t>(node)]; }
  // The path's nodes, from the root.
  std::vector<Node> Path(Node node) const;

  // Bound: the tokens of a search's running and complete beams.
  std::vector<Entry> nodes_;
  // Bound: nodes_.
  std::vector<Node> free_;
};

}  // namespace tandem::router
