// The part of SequenceScheduler (sequence_scheduler.h) that preempts sequences for one that lacks a
// block.
#include <string>

#include "common/base/check.h"
#include "common/node/preemption.h"
#include "common/node/sequence_scheduler.h"

namespace tandem::node {

absl::Span<Sequence* const> SequenceScheduler::Behind(const Sequence& needy) {
  behind_.clear();
  auto waiting = waiting_.upper_bound(needy.order());
  auto running = running_.upper_bound(needy.order());
  while (waiting != waiting_.end() || running != running_.end()) {
    const bool runs =
        waiting == waiting_.end() || (running != running_.end() && running->first < waiting->first);
    Sequence* next = runs ? (running++)->second : (waiting++)->second;
    if (!next->blocks.empty()) behind_.push_back(next);
  }
  return behind_;
}

// The sequences of a request share its prompt's blocks, so that one alone gives little back, and
// would need all of them when it goes on. Those of the needy one's own request stay: it goes on.
bool SequenceScheduler::PreemptFor(const Sequence& needy) {
  const absl::Span<Sequence* const> behind = Behind(needy);
  if (behind.empty()) return false;
  const Sequence* victim = ChooseVictim(behind, needy,
                                        {.spec = options_.spec,
                                         .pool = pool_,
                                         .steps = meter_.cost().profile(),
                                         .stored = stored_prices_});
  const std::string& group = victim->input.group;
  const bool together = !group.empty() && group != needy.input.group;
  const auto goes = [&](const Sequence* sequence) {
    return sequence == victim || (together && sequence->input.group == group);
  };
  const bool early = !goes(behind.back());
  for (Sequence* sequence : behind) {
    if (!goes(sequence)) continue;
    if (early) ++sequence->preempted_early;
    Preempt(*sequence);
  }
  return true;
}

void SequenceScheduler::Preempt(Sequence& sequence) {
  TANDEM_CHECK(!sequence.in_step, "sequence ", sequence.id.value());
  ReturnBlocks(sequence);
  sequence.forked_tokens = 0;
  LeaveQueues(sequence);
  sequence.phase = SequencePhase::kWaiting;
  waiting_.emplace(sequence.order(), &sequence);
  CountPrefill(sequence);
  ++preemption_count_;
}

}  // namespace tandem::node
