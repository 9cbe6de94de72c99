// How well distributions over the next token agree with the reference's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "tests/golden/real_models/reference.h"

namespace tandem::testing {

// One position's comparison.
struct PositionAgreement {
  bool same_top = false;  // both have the same most likely token
  // KL(reference ‖ ours) over the reference's top tokens and one bucket for the rest. Merging
  // outcomes never raises a divergence, so it is a lower bound of the whole one.
  double kl = 0;
  // Error of the difference of the reference's two largest logits: what decides a greedy choice.
  double gap_error = 0;
  double logit_variance = 0;  // of our logits over the vocabulary
};

// `logits`: [vocabulary].
inline PositionAgreement Compare(const ReferenceDocument& document, size_t position,
                                 absl::Span<const float> logits) {
  const auto largest = std::max_element(logits.begin(), logits.end());  // the first of equals
  double exp_sum = 0, sum = 0, square_sum = 0;
  for (float logit : logits) {
    exp_sum += std::exp(logit - *largest);
    sum += logit;
    square_sum += double{logit} * logit;
  }
  const double log_sum = *largest + std::log(exp_sum);

  const absl::Span<const TokenId> tokens = document.TopTokens(position);
  const absl::Span<const float> logprobs = document.TopLogprobs(position);
  const auto logit = [&](size_t i) { return double{logits[static_cast<size_t>(tokens[i])]}; };
  PositionAgreement agreement;
  const double mean = sum / static_cast<double>(logits.size());
  agreement.logit_variance = square_sum / static_cast<double>(logits.size()) - mean * mean;
  agreement.same_top = largest - logits.begin() == tokens[0];
  double rest = 1, our_rest = 1;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double p = std::exp(double{logprobs[i]});
    const double our_logprob = logit(i) - log_sum;
    agreement.kl += p * (logprobs[i] - our_logprob);
    rest -= p;
    our_rest -= std::exp(our_logprob);
  }
  // Below this both remainders are rounding; what they could add is below it too.
  constexpr double kRestMin = 1e-7;
  if (rest > kRestMin) agreement.kl += rest * std::log(rest / std::max(our_rest, kRestMin));
  agreement.gap_error =
      std::abs((logit(0) - logit(1)) - (double{logprobs[0]} - double{logprobs[1]}));
  return agreement;
}

// Sums over positions.
struct Agreement {
  int64_t positions = 0;
  int64_t same_top = 0;
  double kl_sum = 0;
  double gap_error_square_sum = 0;
  double gap_error_max = 0;
  double logit_variance_sum = 0;

  void Add(const PositionAgreement& position) {
    ++positions;
    same_top += position.same_top ? 1 : 0;
    kl_sum += position.kl;
    gap_error_square_sum += position.gap_error * position.gap_error;
    gap_error_max = std::max(gap_error_max, position.gap_error);
    logit_variance_sum += position.logit_variance;
  }
  double TopShare() const { return static_cast<double>(same_top) / static_cast<double>(positions); }
  double KlMean() const { return kl_sum / static_cast<double>(positions); }
  double GapErrorRms() const { return RootMean(gap_error_square_sum); }
  double LogitDeviation() const { return RootMean(logit_variance_sum); }

 private:
  double RootMean(double sum) const { return std::sqrt(sum / static_cast<double>(positions)); }
};

}  // namespace tandem::testing
