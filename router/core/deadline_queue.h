// Finds the sequences whose deadline has passed without looking at all of them. A deadline that
// moves later, as it does with every token, costs nothing: the queue keeps the old time, and the
// owner checks the sequence's real deadline when that time comes. Thread safety: none; RequestTable
// owns it. Invariants: at most one entry per sequence.
#pragma once

#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "router/core/serial.h"

namespace tandem::router {

class DeadlineQueue {
 public:
  // The sequence must be checked by `time`. Keeps an earlier time that is set already.
  void Set(Serial serial, absl::Time time) {
    const auto [it, added] = times_.try_emplace(serial, time);
    if (!added) {
      if (it->second <= time) return;
      order_.erase({it->second, serial});
      it->second = time;
    }
    order_.insert({time, serial});
  }
  void Erase(Serial serial) {
    const auto it = times_.find(serial);
    if (it == times_.end()) return;
    order_.erase({it->second, serial});
    times_.erase(it);
  }
  // Takes out the sequences whose time has come, earliest first. The owner Sets those that go on.
  std::vector<Serial> PopDue(absl::Time now) {
    std::vector<Serial> due;
    while (!order_.empty() && order_.begin()->first <= now) {
      due.push_back(order_.begin()->second);
      times_.erase(order_.begin()->second);
      order_.erase(order_.begin());
    }
    return due;
  }
  size_t size() const { return times_.size(); }

 private:
  // Bound: one for each running sequence.
  absl::btree_set<std::pair<absl::Time, Serial>> order_;
  absl::flat_hash_map<Serial, absl::Time> times_;
};

}  // namespace tandem::router
