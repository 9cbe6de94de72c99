// Virtual time: a queue of events, run in order of time and, at one time, of scheduling. One seed
// decides all that is random, so a run repeats exactly. Thread safety: none; a simulation is one
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/runtime/random.h"
#include "sim/world/action.h"

namespace tandem::sim {

class World {
 public:
  explicit World(uint64_t seed) : random_(NewSeededRandom(seed)) {}

  absl::Time now() const { return now_; }
  Random& random() { return *random_; }
  // Uniform in [0, bound).
  absl::Duration RandomDelay(absl::Duration bound) {
    return absl::Nanoseconds(random_->Below(1 + absl::ToInt64Nanoseconds(bound)));
  }
  // True once in `one_in`; never for 0.
  bool Chance(uint64_t one_in) { return one_in != 0 && random_->Below(one_in) == 0; }

  void After(absl::Duration delay, Action action) {
    uint32_t slot = static_cast<uint32_t>(actions_.size());
    if (free_slots_.empty()) {
      actions_.push_back(std::move(action));
    } else {
      slot = free_slots_.back();
      free_slots_.pop_back();
      actions_[slot] = std::move(action);
    }
    events_.push(Event{now_ + delay, next_order_++, slot});
  }

  // Runs the next event; false when there is none.
  bool RunOne() {
    if (events_.empty()) return false;
    const Event event = events_.top();
    events_.pop();
    now_ = event.at;
    ++events_run_;
    Action action = std::move(actions_[event.slot]);
    free_slots_.push_back(event.slot);
    action();
    return true;
  }
  // Runs events until `until` (virtual time) or none is left.
  void RunUntil(absl::Time until) {
    while (!events_.empty() && events_.top().at <= until) RunOne();
    now_ = std::max(now_, until);
  }
  int64_t events_run() const { return events_run_; }

 private:
  // Plain values, because the queue moves them often; what an event does lies apart.
  struct Event {
    absl::Time at;
    uint64_t order;
    uint32_t slot;  // of actions_
    friend bool operator<(const Event& a, const Event& b) {
      return a.at != b.at ? b.at < a.at : b.order < a.order;  // the earliest on top
    }
  };

  std::unique_ptr<Random> random_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::priority_queue<Event> events_;
  std::vector<Action> actions_;  // of the events that wait, and unused ones
  std::vector<uint32_t> free_slots_;
  uint64_t next_order_ = 0;
  int64_t events_run_ = 0;
};

}  // namespace tandem::sim
