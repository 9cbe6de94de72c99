// The rules of beam search over single-token steps: which beams go on, which are complete, and when
// the search is over. They are those of transformers, which made the golden outputs
// (scripts/make_goldens/generation.py).
//
// A step extends every running beam by each of its likeliest tokens and orders the candidates by
// (score, lower parent, lower token); the score is the sum of log-probabilities. Of the best
// `width` candidates, those that end in a stop token (or at max_tokens) are complete; their score
// becomes score / tokens^length_penalty. The best `width` candidates that do not end run on. The
// search is over when `width` beams are complete and, unless early_stopping is set, the best
// running score at its present length cannot beat the worst complete one.
//
// Thread safety: none; a BeamGroup owns it. No clock, no randomness.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/request/sampling_params.h"
#include "router/core/beam_tree.h"
#include "router/core/request_input.h"
#include "tandem/v1/common.pb.h"

namespace tandem::router {

class BeamSearch {
 public:
  struct Beam {
    BeamTree::Node last = BeamTree::kRoot;  // of its tokens
    int64_t num_tokens = 0;
    int32_t parent = 0;  // of running(), one step before
    double score = 0;    // complete ones: with the length penalty
    request::FinishReason reason = request::FinishReason::kNone;
  };

  // `stop_token_ids`: ascending. `logprobs`: top ones that the client wants with each token.
  BeamSearch(const BeamParams& params, int32_t max_tokens, std::vector<TokenId> stop_token_ids,
             int32_t logprobs);

  // How many top log-probabilities each token must carry: as many continuations of one beam as can
  // matter.
  int32_t candidates() const {
    return params_.width + static_cast<int32_t>(stop_token_ids_.size());
  }
  const std::vector<Beam>& running() const { return running_; }
  int64_t max_tokens() const { return max_tokens_; }
  // Lowers max_tokens. Before the first Advance.
  void LimitTokens(int64_t max_tokens) { max_tokens_ = std::min(max_tokens_, max_tokens); }
  // The token computed after running()[beam]; only its top_logprobs count. Call once for each
  // running beam before Advance.
  void Offer(int32_t beam, const v1::GeneratedToken& token);
  // Completes the step. True when the search is over.
  bool Advance();
  // Best first, at most `width`.
  const std::vector<Beam>& complete() const { return complete_; }
  // Of a running or complete beam; the second with the client's log-probabilities.
  std::vector<TokenId> TokenIds(const Beam& beam) const { return tree_.TokenIds(beam.last); }
  std::vector<v1::GeneratedToken> Tokens(const Beam& beam) const { return tree_.Tokens(beam.last); }
  // REQUIRES: the beam has tokens.
  TokenId LastToken(const Beam& beam) const { return tree_.token(beam.last); }
  // Tokens that are kept, of all beams together.
  int64_t tokens_kept() const { return tree_.size(); }

 private:
  struct Candidate {
    int32_t parent = 0;
    TokenId token = 0;
    float logprob = 0;
    double score = 0;
  };
  Beam Extend(const Candidate& candidate);
  void Complete(Beam beam, int64_t tokens);
  bool Over(int64_t tokens) const;
  double Penalised(double score, int64_t tokens) const;

  const BeamParams params_;
  int64_t max_tokens_;
  const std::vector<TokenId> stop_token_ids_;
  const int32_t logprobs_;
  BeamTree tree_;
  // Bound: kBeamWidthMax (64) each.
  std::vector<Beam> running_, complete_;
  // Bound: kBeamWidthMax (64).
  std::vector<v1::GeneratedToken> offered_;  // by running beam
};

}  // namespace tandem::router
