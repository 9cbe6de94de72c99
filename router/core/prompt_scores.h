// Collects the log-probabilities of one prompt's own tokens, if the client asked for them. Nodes
// send them in parts; a retried leg sends the same parts again, which are then ignored.
//
// Thread safety: none; a SequenceAnswer owns it.
// Invariants: tokens are kept in order, each once; the first token of a prompt has no score.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tandem/v1/common.pb.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

class PromptScores {
 public:
  // `wanted`: whether the client asked. `prompt_tokens`: length of the prompt, at least 1.
  PromptScores(bool wanted, size_t prompt_tokens)
      : wanted_(wanted), prompt_tokens_(prompt_tokens) {}

  // Takes a part. Scores that are known already, or that leave a gap, are ignored.
  void Add(const v1::PromptScored& part) {
    if (!wanted_) return;
    int64_t index = part.first_index();
    for (const v1::GeneratedToken& token : part.tokens()) {
      if (index++ != static_cast<int64_t>(tokens_.size()) + 1 || complete()) continue;
      tokens_.push_back(token);
      tokens_.back().set_index(0);
    }
  }

  // The client asked for them and some are missing.
  bool awaited() const { return wanted_ && !complete(); }

  // All scores on the first call after they are complete; nullopt otherwise. REQUIRES: !awaited().
  std::optional<std::vector<v1::GeneratedToken>> TakeOnce() {
    if (!wanted_ || std::exchange(taken_, true)) return std::nullopt;
    return tokens_;
  }

 private:
  bool complete() const { return tokens_.size() + 1 >= prompt_tokens_; }

  const bool wanted_;
  const size_t prompt_tokens_;
  // Bound: the prompt.
  std::vector<v1::GeneratedToken> tokens_;  // of the prompt's tokens 1, 2, ...
  bool taken_ = false;
};

}  // namespace tandem::router
