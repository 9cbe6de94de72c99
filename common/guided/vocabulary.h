// A model's tokens as byte strings, in a trie. A constraint walks the trie to find the tokens that
// it allows. The trie omits special tokens, tokens without bytes, and tokens that end an answer.
// Thread safety: immutable; any thread may read it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/tokenizer/tokenizer.h"

namespace tandem::guided {

class Vocabulary {
 public:
  // A node of the trie. Nodes are in depth-first order: the first child of node i is node i + 1,
  // and node i has no child when its after_subtree is i + 1.
  struct Node {
    uint32_t after_subtree = 0;
    uint32_t tokens_begin = 0;  // in node_tokens_; a node's tokens end where the next node's begin
    uint8_t byte = 0;
  };

  // `token_bytes`: [vocabulary size], by token id; empty for tokens that no constraint may choose.
  explicit Vocabulary(std::vector<std::string> token_bytes);
  // The vocabulary of a checkpoint whose logits have `vocab_size` entries.
  static std::shared_ptr<const Vocabulary> FromTokenizer(const model::Tokenizer& tokenizer,
                                                         int32_t vocab_size,
                                                         absl::Span<const TokenId> eos_token_ids);

  int32_t size() const { return static_cast<int32_t>(token_bytes_.size()); }
  // The number of words of a mask, in which bit i % 32 of word i / 32 stands for token i.
  size_t mask_words() const { return token_bytes_.size() / 32 + 1; }
  int token_bytes_max() const { return token_bytes_max_; }
  absl::string_view TokenBytes(TokenId id) const;
  absl::Span<const Node> nodes() const {  // without the sentinel
    return absl::MakeConstSpan(nodes_).subspan(0, nodes_.size() - 1);
  }
  absl::Span<const TokenId> TokensAt(size_t node) const {
    return absl::MakeConstSpan(node_tokens_)
        .subspan(nodes_[node].tokens_begin,
                 nodes_[node + 1].tokens_begin - nodes_[node].tokens_begin);
  }

 private:
  using Sorted = std::vector<std::pair<absl::string_view, TokenId>>;

  const std::vector<std::string> token_bytes_;
  int token_bytes_max_ = 0;
  std::vector<Node> nodes_;  // and a sentinel
  std::vector<TokenId> node_tokens_;
};

}  // namespace tandem::guided
