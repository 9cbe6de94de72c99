#include "router/core/beam_search.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "common/base/check.h"

namespace tandem::router {

BeamSearch::BeamSearch(const BeamParams& params, int32_t max_tokens,
                       std::vector<TokenId> stop_token_ids, int32_t logprobs)
    : params_(params),
      max_tokens_(max_tokens),
      stop_token_ids_(std::move(stop_token_ids)),
      logprobs_(logprobs),
      running_(1),
      offered_(1) {}

void BeamSearch::Offer(int32_t beam, const v1::GeneratedToken& token) {
  TANDEM_CHECK(beam >= 0 && beam < static_cast<int32_t>(offered_.size()), "beam ", beam, " of ",
               offered_.size());
  offered_[static_cast<size_t>(beam)] = token;
}

double BeamSearch::Penalised(double score, int64_t tokens) const {
  return score / std::pow(static_cast<double>(tokens), params_.length_penalty);
}

BeamSearch::Beam BeamSearch::Extend(const Candidate& candidate) {
  const Beam& parent = running_[static_cast<size_t>(candidate.parent)];
  const auto& top = offered_[static_cast<size_t>(candidate.parent)].top_logprobs();
  const size_t kept = static_cast<size_t>(std::clamp(logprobs_, 0, top.size()));
  Beam beam;
  beam.last = tree_.Add(parent.last, candidate.token, candidate.logprob,
                        absl::MakeConstSpan(top.data(), kept));
  beam.num_tokens = parent.num_tokens + 1;
  beam.parent = candidate.parent;
  beam.score = candidate.score;
  return beam;
}

void BeamSearch::Complete(Beam beam, int64_t tokens) {
  beam.score = Penalised(beam.score, tokens);
  // Of equal scores, the beam that was complete first stays ahead.
  const auto place =
      std::upper_bound(complete_.begin(), complete_.end(), beam.score,
                       [](double score, const Beam& other) { return score > other.score; });
  complete_.insert(place, std::move(beam));
  if (static_cast<int32_t>(complete_.size()) <= params_.width) return;
  tree_.Release(complete_.back().last);
  complete_.pop_back();
}

bool BeamSearch::Over(int64_t tokens) const {
  if (running_.empty()) return true;
  if (static_cast<int32_t>(complete_.size()) < params_.width) return false;
  return params_.early_stopping ||
         Penalised(running_.front().score, tokens) <= complete_.back().score;
}

bool BeamSearch::Advance() {
  std::vector<Candidate> candidates;
  for (size_t b = 0; b < running_.size(); ++b)
    for (const v1::TokenLogprob& top : offered_[b].top_logprobs())
      candidates.push_back({static_cast<int32_t>(b), top.token_id(), top.logprob(),
                            running_[b].score + static_cast<double>(top.logprob())});
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(-a.score, a.parent, a.token) < std::tuple(-b.score, b.parent, b.token);
  });
  const int64_t tokens = running_.front().num_tokens + 1;
  const size_t width = static_cast<size_t>(params_.width);
  std::vector<Beam> next;
  for (size_t i = 0; i < candidates.size() && next.size() < width; ++i) {
    const bool stops =
        std::binary_search(stop_token_ids_.begin(), stop_token_ids_.end(), candidates[i].token);
    if (!stops && tokens < max_tokens_) {
      next.push_back(Extend(candidates[i]));
    } else if (i < width) {
      Beam beam = Extend(candidates[i]);
      beam.reason = stops ? request::FinishReason::kStop : request::FinishReason::kLength;
      Complete(std::move(beam), tokens);
    }
  }
  for (const Beam& beam : running_) tree_.Release(beam.last);
  running_ = std::move(next);
  offered_.assign(running_.size(), {});
  return Over(tokens);
}

}  // namespace tandem::router
