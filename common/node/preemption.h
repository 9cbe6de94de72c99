// Which sequences give up their blocks when one that goes on lacks a block: the last ones in order,
// or others behind it whose preemption costs much less.
//
//   in order    needy   a   b1  b2   c   d        b1 and b2 are answers of one request
//   candidates         {a} {b1, b2} {c} {d}       each is preempted whole
//
// A candidate's cost is the predicted time to bring back what its sequences have computed: by
// computing the rows again, or by reading blocks that storage has. What they have lent is lost, so
// it counts. What other sequences use as well stays in memory: it costs nothing, and its blocks are
// not freed. What the prefix cache may keep of the rest does not count: the pool is short of these
// blocks.
//
// The last candidate goes, unless another one costs less than its kVictimMargin-th part for each
// freed block. The last one is likely to be preempted soon anyway, since all others grow as well,
// so a victim before it is mostly one more: without a margin more rows are computed again than if
// always the last one goes (docs/measurements/2026-11-28-preemption-victims.md).
//
// A sequence goes *early*, with others behind it that stay, kEarlyMax times at most; after that
// only as the last one. One that has just come back has computed little and would be the cheapest
// again and again.
//
// Thread safety: pure functions of their arguments. Owner: the SequenceScheduler calls them.
// Cost: each sequence once, with a bisection of its blocks where it shares some; no hash is
// computed and nothing is allocated.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/cost/step_cost.h"
#include "common/engine/engine.h"
#include "common/kv/block_hash.h"
#include "common/kv/block_pool.h"
#include "common/node/sequence.h"

namespace tandem::node {

inline constexpr double kVictimMargin = 3;
inline constexpr int32_t kEarlyMax = 2;

// What reading blocks from the node's storage takes: StoredBlocks tells it.
class StoredPrices {
 public:
  struct Read {
    int64_t blocks = 0;  // at the beginning of those asked for: storage has them
    double us = 0;
  };
  virtual ~StoredPrices() = default;
  // Of full blocks of a sequence, in order.
  virtual Read ReadOf(absl::Span<const kv::BlockHash> hashes) const = 0;
};

struct VictimPrices {
  const engine::EngineSpec& spec;
  const kv::BlockPool& pool;
  cost::StepProfile steps;
  const StoredPrices* stored = nullptr;  // null: the node has no storage
};

struct VictimCost {
  double us = 0;
  int64_t blocks = 0;  // that no sequence uses afterwards

  // Infinite if none is freed.
  double us_per_block() const;
};

// What preempting these sequences of one request, all together, costs and frees. The blocks that a
// sequence shares are its first ones. Before the first step a row counts as a microsecond.
VictimCost PriceOf(absl::Span<Sequence* const> members, const VictimPrices& prices);

// The last sequence of the candidate that is to be preempted. `behind`: the sequences with blocks
// behind `needy` in order, ascending. Those of its own request are candidates of one sequence each.
// REQUIRES: `behind` is not empty.
Sequence* ChooseVictim(absl::Span<Sequence* const> behind, const Sequence& needy,
                       const VictimPrices& prices);

}  // namespace tandem::node
