// Beam search over single-token steps: which sequences go on, which are complete, when it is over.
//
// A step extends every running beam by each of its likeliest tokens and orders the candidates by
// (score, lower parent, lower token), score being the sum of log-probabilities. Of the best
// `width`, those that end in a stop token (or at max_tokens) are complete, with score /
// tokens^length_penalty; the best `width` that do not end run on. It is over when `width` are
// complete and either early_stopping, or the best running score, at its present length, cannot beat
// the worst complete one: transformers' rules, and the goldens'
// (scripts/make_goldens/generation.py).
//
// Thread safety: none. Pure: no clock, no randomness.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/request/sampling_params.h"
#include "router/core/router_core.h"
#include "tandem/v1/common.pb.h"

namespace tandem::router {

class BeamSearch {
 public:
  struct Beam {
    std::vector<v1::GeneratedToken> tokens;  // with the client's log-probabilities
    double score = 0;                        // complete ones: with the length penalty
    request::FinishReason reason = request::FinishReason::kNone;
  };

  // `stop_token_ids`: ascending. `logprobs`: top ones that the client wants with each token.
  BeamSearch(const BeamParams& params, int32_t max_tokens, std::vector<TokenId> stop_token_ids,
             int32_t logprobs);

  // Top log-probabilities that each step must come with: as many continuations of one beam as can
  // matter.
  int32_t candidates() const {
    return params_.width + static_cast<int32_t>(stop_token_ids_.size());
  }
  const std::vector<Beam>& running() const { return running_; }
  // Lowers max_tokens. Before the first Advance.
  void LimitTokens(int64_t max_tokens) { max_tokens_ = std::min(max_tokens_, max_tokens); }
  // What follows running()[beam]; only its top_logprobs count. Once for each before Advance.
  void Offer(int32_t beam, const v1::GeneratedToken& token);
  // Takes the step. True when the search is over.
  bool Advance();
  // Best first, at most `width`.
  const std::vector<Beam>& complete() const { return complete_; }

 private:
  struct Candidate {
    int32_t parent = 0;
    TokenId token = 0;
    float logprob = 0;
    double score = 0;
  };
  Beam Extend(const Candidate& candidate) const;
  void Complete(Beam beam, int64_t tokens);
  bool Over(int64_t tokens) const;
  double Penalised(double score, int64_t tokens) const;

  const BeamParams params_;
  int64_t max_tokens_;
  const std::vector<TokenId> stop_token_ids_;
  const int32_t logprobs_;
  // Bound: kBeamWidthMax (64) each.
  std::vector<Beam> running_, complete_;
  // Bound: kBeamWidthMax (64).
  std::vector<v1::GeneratedToken> offered_;  // by running beam
};

}  // namespace tandem::router
