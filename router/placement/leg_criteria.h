// The filters and weighted scorers of one kind of leg: which nodes may take it, and how good each
// of them is. All policies of --placement use the filters; only `affinity` uses the scorers. To add
// a criterion, write a Filter or Scorer in a header of its own and list it in leg_criteria.cc. A
// criterion of `cost`, the default, is a term in predicted_times.h instead.
// Thread safety: values and pure functions.
#pragma once

#include <vector>

#include "router/placement/candidate.h"

namespace tandem::router {

struct WeightedScorer {
  const char* name = "";
  Scorer scorer = nullptr;
  double weight = 0;
};

struct LegCriteria {
  std::vector<Filter> filters;
  std::vector<WeightedScorer> scorers;

  // Whether the node passes all filters.
  bool Allows(const LegNeeds& needs, const Candidate& candidate) const;
  // The weighted mean of the scores, in [0, 1]; 0 without scorers.
  double Score(const LegNeeds& needs, const Candidate& candidate) const;
};

// The criteria that PairPlacement uses.
LegCriteria DecodeCriteria();
LegCriteria PrefillCriteria();

}  // namespace tandem::router
