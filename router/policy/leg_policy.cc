#include "router/policy/leg_policy.h"

#include "router/policy/accepts_work_filter.h"
#include "router/policy/capacity_filter.h"
#include "router/policy/free_blocks_scorer.h"
#include "router/policy/free_room_filter.h"
#include "router/policy/load_scorer.h"
#include "router/policy/prefix_affinity_scorer.h"
#include "router/policy/recent_failure_filter.h"

namespace tandem::router {

bool LegPolicy::Allows(const LegNeeds& needs, const Candidate& candidate) const {
  for (const Filter filter : filters)
    if (!filter(needs, candidate)) return false;
  return true;
}

double LegPolicy::Score(const LegNeeds& needs, const Candidate& candidate) const {
  double sum = 0, weights = 0;
  for (const WeightedScorer& weighted : scorers) {
    sum += weighted.weight * weighted.scorer(needs, candidate);
    weights += weighted.weight;
  }
  return weights > 0 ? sum / weights : 0.0;
}

LegPolicy DecodePolicy() {
  // A full prefix hit outweighs an average queue, not a full one; free blocks break near ties.
  return {{AcceptsWork, CouldEverFit, HasFreeRoom, DidNotJustFail},
          {{PrefixAffinity, 1.0}, {ShortQueue, 1.0}, {FreeBlocks, 0.5}}};
}

LegPolicy PrefillPolicy() {
  // A prefill node queues prompts, so it needs no free room at this moment.
  return {{AcceptsWork, CouldEverFit, DidNotJustFail}, {{PrefixAffinity, 1.0}, {ShortQueue, 1.0}}};
}

}  // namespace tandem::router
