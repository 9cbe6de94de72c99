#include "common/guided/vocabulary.h"

#include <algorithm>

namespace tandem::guided {

Vocabulary::Vocabulary(std::vector<std::string> token_bytes)
    : token_bytes_(std::move(token_bytes)) {
  Sorted sorted;
  for (size_t id = 0; id < token_bytes_.size(); ++id) {
    if (token_bytes_[id].empty()) continue;
    sorted.push_back({token_bytes_[id], static_cast<TokenId>(id)});
    token_bytes_max_ = std::max(token_bytes_max_, static_cast<int>(token_bytes_[id].size()));
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<uint32_t> path;  // the previous token's nodes
  absl::string_view before;
  const auto close_to = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      nodes_[path.back()].after_subtree = static_cast<uint32_t>(nodes_.size());
    }
  };
  for (const auto& [bytes, id] : sorted) {
    size_t shared = 0;
    while (shared < std::min(before.size(), bytes.size()) && before[shared] == bytes[shared]) {
      ++shared;
    }
    close_to(shared);
    for (size_t i = shared; i < bytes.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({.tokens_begin = static_cast<uint32_t>(node_tokens_.size()),
                        .byte = static_cast<uint8_t>(bytes[i])});
    }
    node_tokens_.push_back(id);
    before = bytes;
  }
  close_to(0);
  nodes_.push_back({.tokens_begin = static_cast<uint32_t>(node_tokens_.size())});
}

std::shared_ptr<const Vocabulary> Vocabulary::FromTokenizer(
    const model::Tokenizer& tokenizer, int32_t vocab_size,
    absl::Span<const TokenId> eos_token_ids) {
  std::vector<std::string> bytes(static_cast<size_t>(vocab_size));
  for (TokenId id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    const bool ends =
        std::find(eos_token_ids.begin(), eos_token_ids.end(), id) != eos_token_ids.end();
    if (!ends && !tokenizer.IsSpecial(id))
      bytes[static_cast<size_t>(id)] = tokenizer.TokenBytes(id);
  }
  return std::make_shared<const Vocabulary>(std::move(bytes));
}

absl::string_view Vocabulary::TokenBytes(TokenId id) const {
  if (id < 0 || id >= size()) return {};
  return token_bytes_[static_cast<size_t>(id)];
}

}  // namespace tandem::guided
