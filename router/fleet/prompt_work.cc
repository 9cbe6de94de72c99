#include "router/fleet/prompt_work.h"

#include <algorithm>

#include "common/base/check.h"

namespace tandem::router {
namespace {

constexpr auto kRankOf = [](const auto& group, absl::Time rank) { return group.rank < rank; };

}  // namespace

void PromptWork::Add(const Entry& entry, absl::Time now) {
  const absl::Time rank = Rounded(entry.rank);
  // The node turns to it.
  if (IsFirst(rank)) first_since_ = now;
  auto at = line_.end();
  if (!line_.empty() && rank <= line_.back().rank)
    at = std::lower_bound(line_.begin(), line_.end(), rank, kRankOf);
  if (at == line_.end() || at->rank != rank) at = line_.insert(at, {.rank = rank});
  at->us += entry.us;
  ++at->prompts;
  us_ += entry.us;
  ++prompts_;
}

void PromptWork::Remove(const Entry& entry, absl::Time now) {
  const absl::Time rank = Rounded(entry.rank);
  const auto at = std::lower_bound(line_.begin(), line_.end(), rank, kRankOf);
  TANDEM_CHECK(at != line_.end() && at->rank == rank, "rank ", absl::FormatTime(rank));
  if (--at->prompts == 0)
    line_.erase(at);
  else
    at->us = std::max(0.0, at->us - entry.us);
  us_ = --prompts_ == 0 ? 0 : std::max(0.0, us_ - entry.us);
  first_since_ = now;
}

double PromptWork::AheadUs(absl::Time rank, absl::Time now) const {
  if (IsFirst(rank)) return 0;
  double ahead = us_;
  if (rank < line_.back().rank) {
    ahead = 0;
    for (const Group& group : line_) {
      if (group.rank > rank) break;
      ahead += group.us;
    }
  }
  const double ran = std::max(0.0, absl::ToDoubleMicroseconds(now - first_since_));
  return std::max(0.0, ahead - std::min(ran, us_ / static_cast<double>(prompts_)));
}

}  // namespace tandem::router
