// Wakes requests at their deadlines without looking at all of them. A deadline that moves later
// (one does with every token) costs nothing: the request is looked at when its old time comes.
// Thread safety: none. Invariants: one entry a request.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace tandem::router {

class DeadlineQueue {
 public:
  // The request must be looked at by `time`.
  void Set(uint64_t serial, absl::Time time) {
    const auto [it, added] = times_.try_emplace(serial, time);
    if (!added) {
      if (it->second <= time) return;
      order_.erase({it->second, serial});
      it->second = time;
    }
    order_.insert({time, serial});
  }
  void Erase(uint64_t serial) {
    const auto it = times_.find(serial);
    if (it == times_.end()) return;
    order_.erase({it->second, serial});
    times_.erase(it);
  }
  // Takes out those whose time has come, earliest first; whoever is still running is Set again.
  std::vector<uint64_t> PopDue(absl::Time now) {
    std::vector<uint64_t> due;
    while (!order_.empty() && order_.begin()->first <= now) {
      due.push_back(order_.begin()->second);
      times_.erase(order_.begin()->second);
      order_.erase(order_.begin());
    }
    return due;
  }
  size_t size() const { return times_.size(); }

 private:
  // Bound: one for each running request.
  absl::btree_set<std::pair<absl::Time, uint64_t>> order_;
  absl::flat_hash_map<uint64_t, absl::Time> times_;
};

}  // namespace tandem::router
