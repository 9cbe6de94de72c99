// The sequences that wait for placement, in the order in which they are tried: lower priority value
// first, then the older one. A younger sequence may pass sequences that found no room, but only a
// few of them, and none that has waited long; so a large request is not starved by small ones.
//
// Thread safety: none; RequestTable owns it.
// Invariants: each sequence is in it at most once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "router/core/serial.h"
#include "router/placement/pair_placement.h"

namespace tandem::router {

class AdmissionQueue {
 public:
  // How many sequences without room younger ones may pass in one walk.
  static constexpr int kPassedMax = 8;
  // Sequences tried in one walk, those that no node can hold included.
  static constexpr int kVisitedMax = 256;
  // After waiting this long for room, no younger sequence passes.
  static constexpr absl::Duration kFirstInLineAfter = absl::Seconds(1);

  // The result of trying to place a sequence: why it stays queued (nullopt: it was placed, or has
  // failed), and how long it has waited.
  struct Attempt {
    std::optional<PlacementFailure> failure;
    absl::Duration waited;
  };

  void Insert(int32_t priority, Serial serial) { queue_.insert({priority, serial}); }
  // Does nothing for a sequence that is not in the queue.
  void Erase(int32_t priority, Serial serial) { queue_.erase({priority, serial}); }
  bool Contains(int32_t priority, Serial serial) const {
    return queue_.contains({priority, serial});
  }
  size_t size() const { return queue_.size(); }

  // Walks the queue and tries to place each sequence with `place`, up to the bounds above. A placed
  // sequence leaves the queue, and then `placed` is called for it; that may change the queue.
  void PlaceAll(absl::FunctionRef<Attempt(Serial)> place, absl::FunctionRef<void(Serial)> placed);

 private:
  // Bound: --queue-max.
  absl::btree_set<std::pair<int32_t, Serial>> queue_;  // priority, serial
};

}  // namespace tandem::router
