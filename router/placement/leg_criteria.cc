#include "router/placement/leg_criteria.h"

#include "router/placement/accepts_work.h"
#include "router/placement/could_ever_fit.h"
#include "router/placement/free_blocks_scorer.h"
#include "router/placement/has_free_room.h"
#include "router/placement/not_kept_for_older.h"
#include "router/placement/not_recently_failed.h"
#include "router/placement/prefix_affinity_scorer.h"
#include "router/placement/queue_depth_scorer.h"
#include "router/placement/starts_in_time.h"

namespace tandem::router {

bool LegCriteria::Allows(const LegNeeds& needs, const Candidate& candidate) const {
  for (const Filter filter : filters)
    if (!filter(needs, candidate)) return false;
  return true;
}

double LegCriteria::Score(const LegNeeds& needs, const Candidate& candidate) const {
  double sum = 0, weights = 0;
  for (const WeightedScorer& weighted : scorers) {
    sum += weighted.weight * weighted.scorer(needs, candidate);
    weights += weighted.weight;
  }
  return weights > 0 ? sum / weights : 0.0;
}

LegCriteria DecodeCriteria() {
  // A full prefix hit outweighs an average queue, not a full one; free blocks break near ties.
  return {{AcceptsWork, CouldEverFit, HasFreeRoom, NotRecentlyFailed, NotKeptForOlder},
          {{"prefix", PrefixAffinityScorer, 1.0},
           {"queue", QueueDepthScorer, 1.0},
           {"free blocks", FreeBlocksScorer, 0.5}}};
}

LegCriteria PrefillCriteria() {
  // A prefill node queues prompts, so it needs no free room at this moment, only time.
  return {{AcceptsWork, CouldEverFit, NotRecentlyFailed, StartsInTime},
          {{"prefix", PrefixAffinityScorer, 1.0}, {"queue", QueueDepthScorer, 1.0}}};
}

}  // namespace tandem::router
