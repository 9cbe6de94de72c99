// Filters and weighted scorers of one kind of leg: which nodes may take it, and how good each is.
// Thread safety: values and pure functions.
#pragma once

#include <vector>

#include "router/placement/candidate.h"

namespace tandem::router {

struct WeightedScorer {
  Scorer scorer = nullptr;
  double weight = 0;
};

struct LegPolicy {
  std::vector<Filter> filters;
  std::vector<WeightedScorer> scorers;

  bool Allows(const LegNeeds& needs, const Candidate& candidate) const;
  // The weighted mean of the scores, in [0, 1]; 0 without scorers.
  double Score(const LegNeeds& needs, const Candidate& candidate) const;
};

// The policies in use.
LegPolicy DecodePolicy();
LegPolicy PrefillPolicy();

}  // namespace tandem::router
