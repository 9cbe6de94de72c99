// The prompts that a router has given to one node and that the node has not computed yet, as
// predicted time, in the order in which the node computes them: by rank
// (common/request/queue_order.h), and of equal ranks the earlier one. It is taken to compute them
// one after the other, so the first one's time passes while it runs.
//
//   rank   9.2   9.9   10.4   14.0        a prompt of rank 10 waits for the first two
//   us     800   300    500   2000
//
// Thread safety: none; the Fleet owns it, one for each node. Units: microseconds.
// Invariants: 0 without prompts, however the figures were rounded.
// Cost: of a prompt that goes last, as mostly, constant; of another one, the prompts before it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace tandem::router {

class PromptWork {
 public:
  struct Entry {
    double us = 0;
    absl::Time rank = absl::InfinitePast();
  };

  void Add(const Entry& entry, absl::Time now);
  // REQUIRES: Add(entry) before.
  void Remove(const Entry& entry, absl::Time now);
  int64_t prompts() const { return prompts_; }
  // Of all prompts, the computed part of the first one included.
  double us() const { return us_; }
  // Less what the first one, taken to be as long as the mean, has run. It is never done before the
  // node says so.
  double RemainingUs(absl::Time now) const { return AheadUs(absl::InfiniteFuture(), now); }
  // The same of the prompts that are computed before one of this rank that is added now.
  double AheadUs(absl::Time rank, absl::Time now) const;
  // Whether one of this rank would be the next.
  bool IsFirst(absl::Time rank) const { return line_.empty() || rank < line_.front().rank; }

 private:
  // Prompts of about the same rank.
  struct Group {
    absl::Time rank;
    double us = 0;
    int64_t prompts = 0;
  };
  // Ranks that differ by less count as equal.
  static constexpr absl::Duration kGrain = absl::Milliseconds(50);
  static absl::Time Rounded(absl::Time rank) {
    return absl::UnixEpoch() + absl::Floor(rank - absl::UnixEpoch(), kGrain);
  }

  std::vector<Group> line_;  // by rank. Bound: the prompts
  int64_t prompts_ = 0;
  double us_ = 0;
  absl::Time first_since_ = absl::InfinitePast();
};

}  // namespace tandem::router
