#include "common/node/preemption.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>

namespace tandem::node {
namespace {

// Ordinal of the first block that at most `holders` hold. REQUIRES: the sequence has lent nothing.
int64_t FirstHeldBy(int32_t holders, const Sequence& sequence, const kv::BlockPool& pool) {
  const auto shared = [&](BlockId block) { return pool.references(block) > holders; };
  // As mostly.
  if (sequence.blocks.empty() || !shared(sequence.blocks.front())) return 0;
  const auto first = std::partition_point(sequence.blocks.begin(), sequence.blocks.end(), shared);
  return first - sequence.blocks.begin();
}

double ComputeUs(int64_t first_row, int64_t end_row, const VictimPrices& prices) {
  if (end_row <= first_row) return 0;
  if (prices.steps.samples == 0) return static_cast<double>(end_row - first_row);
  cost::StepShape shape;
  shape.Add(first_row, end_row - first_row, /*sample=*/false);
  // The rows join steps that are computed anyway.
  return prices.steps.Predict(shape).us - prices.steps.step_us;
}

// To bring back rows [first_row, end_row), which begin with a block.
double BringBackUs(const Sequence& sequence, int64_t first_row, int64_t end_row,
                   const VictimPrices& prices) {
  const double computed = ComputeUs(first_row, end_row, prices);
  const int64_t block_tokens = prices.spec.layout.block_tokens;
  const int64_t first = first_row / block_tokens, end = end_row / block_tokens;
  if (prices.stored == nullptr || first >= end || std::ssize(sequence.hashes) < end)
    return computed;
  const StoredPrices::Read read = prices.stored->ReadOf(
      absl::MakeConstSpan(sequence.hashes)
          .subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)));
  return std::min(computed,
                  read.us + ComputeUs(first_row + read.blocks * block_tokens, end_row, prices));
}

VictimCost PriceOfBorrower(const Sequence& sequence, const VictimPrices& prices) {
  const int64_t computed =
      sequence.rebuild != nullptr ? sequence.rebuild->num_computed : sequence.num_computed;
  const auto here = std::count_if(sequence.blocks.begin(), sequence.blocks.end(),
                                  [](BlockId block) { return block != engine::kNoBlock; });
  return {BringBackUs(sequence, 0, computed, prices), here};
}

bool MayGoEarly(absl::Span<Sequence* const> members) {
  return std::all_of(members.begin(), members.end(),
                     [](const Sequence* member) { return member->preempted_early < kEarlyMax; });
}

}  // namespace

double VictimCost::us_per_block() const {
  return blocks > 0 ? us / static_cast<double>(blocks) : std::numeric_limits<double>::infinity();
}

VictimCost PriceOf(absl::Span<Sequence* const> members, const VictimPrices& prices) {
  const int64_t block_tokens = prices.spec.layout.block_tokens;
  const auto count = static_cast<int32_t>(members.size());
  VictimCost cost;
  // What several members share, and no other sequence: the longest of it.
  const Sequence* sharing = nullptr;
  int64_t shared_first = 0, shared_end = 0;
  for (const Sequence* member : members) {
    if (member->borrows()) {
      const VictimCost whole = PriceOfBorrower(*member, prices);
      cost.us += whole.us;
      cost.blocks += whole.blocks;
      continue;
    }
    const int64_t own = FirstHeldBy(1, *member, prices.pool);
    cost.us += BringBackUs(*member, own * block_tokens, member->num_computed, prices);
    cost.blocks += std::ssize(member->blocks) - own;
    if (count == 1 || own == 0) continue;
    const int64_t first = FirstHeldBy(count, *member, prices.pool);
    if (own - first <= shared_end - shared_first) continue;
    sharing = member;
    shared_first = first;
    shared_end = own;
  }
  if (sharing != nullptr) {
    cost.us += BringBackUs(*sharing, shared_first * block_tokens,
                           std::min(shared_end * block_tokens, sharing->num_computed), prices);
    cost.blocks += shared_end - shared_first;
  }
  return cost;
}

Sequence* ChooseVictim(absl::Span<Sequence* const> behind, const Sequence& needy,
                       const VictimPrices& prices) {
  Sequence* victim = nullptr;
  double least = 0;  // for a block
  // From the last one to the first, so that of equal costs the last one goes.
  for (size_t end = behind.size(); end > 0;) {
    const std::string& group = behind[end - 1]->input.group;
    const bool together = !group.empty() && group != needy.input.group;
    size_t first = end - 1;
    // Sequences of a request arrive together, so they are neighbours. If not, this is their price
    // by parts.
    while (together && first > 0 && behind[first - 1]->input.group == group) --first;
    const auto members = behind.subspan(first, end - first);
    end = first;
    if (victim == nullptr) {
      victim = members.back();
      least = PriceOf(members, prices).us_per_block() / kVictimMargin;
    } else if (MayGoEarly(members)) {
      const double us = PriceOf(members, prices).us_per_block();
      if (us >= least) continue;
      victim = members.back();
      least = us;
    }
  }
  return victim;
}

}  // namespace tandem::node
