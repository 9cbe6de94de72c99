// The violations that checkers found in a run, and the run's timeline.
// Thread safety: none; the simulation's thread. Owner: the simulation.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sim/world/world.h"

namespace tandem::sim {

struct Violation {
  int64_t at_us = 0;
  std::string checker;
  std::string what;
};

// One event, in the timeline's row of one process, or of the clients (row -1).
struct TimelineEntry {
  int64_t at_us = 0;
  int row = -1;
  std::string text;
};

class RunLog {
 public:
  // The most violations that are recorded: one error usually causes many.
  static constexpr size_t kViolationsMax = 16;
  static constexpr size_t kEntriesMax = 200'000;

  // Without a timeline only violations are recorded.
  RunLog(const World& world, bool timeline)
      : world_(world), start_(world.now()), timeline_(timeline) {}

  int64_t now_us() const { return absl::ToInt64Microseconds(world_.now() - start_); }
  void Violate(absl::string_view checker, std::string what) {
    if (timeline_) Note(-1, absl::StrCat("VIOLATION ", checker, ": ", what));
    if (violations_.size() < kViolationsMax)
      violations_.push_back({now_us(), std::string(checker), std::move(what)});
  }
  bool timeline() const { return timeline_; }
  // REQUIRES: timeline(). Callers check it first, so that they format only text that is recorded.
  void Note(int row, std::string text) {
    if (entries_.size() < kEntriesMax) entries_.push_back({now_us(), row, std::move(text)});
  }

  const std::vector<Violation>& violations() const { return violations_; }
  std::vector<TimelineEntry> TakeEntries() { return std::exchange(entries_, {}); }

 private:
  const World& world_;
  const absl::Time start_;
  const bool timeline_;
  std::vector<Violation> violations_;
  std::vector<TimelineEntry> entries_;
};

}  // namespace tandem::sim
