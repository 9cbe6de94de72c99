// A lazily built deterministic automaton: the configurations of a Program that texts lead to. The
// graph computes a step when it is first needed and stores it. Equal configurations have equal ids,
// so a stored step is one table look-up.
//
// A configuration with more than kThreadsMax threads, or one that takes too much work to find, is
// treated as dead: texts that need that much ambiguity are not generated. The same holds for call
// stacks deeper than kNestingMax.
// Thread safety: none; Constraint holds its mutex around every use.
// Owner: Constraint.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/guided/program.h"

namespace tandem::guided {

using ConfigId = uint32_t;
inline constexpr ConfigId kDeadConfig = 0;
inline constexpr size_t kThreadsMax = 1024;

class StateGraph {
 public:
  // `program` outlives the graph.
  explicit StateGraph(const Program& program);

  ConfigId start() const { return start_; }
  // The configuration after `byte`; kDeadConfig when the constraint forbids it.
  ConfigId Step(ConfigId from, uint8_t byte) {
    const auto& next = configs_[from].next;
    if (next != nullptr && (*next)[byte] != kUnknown) return (*next)[byte];
    return FindStep(from, byte);
  }
  // Whether the text read so far satisfies the constraint.
  bool MayEnd(ConfigId id) const { return configs_[id].may_end; }
  // Whether some byte may follow.
  bool CanContinue(ConfigId id) const { return configs_[id].can_continue; }
  // In how many ways the text can have been read: the configuration's threads.
  size_t Readings(ConfigId id) const;
  // Bytes such that every step from `id` is the step of one of them. Counts as work.
  std::vector<uint8_t> DistinctBytes(ConfigId id);
  // A configuration that allows the same tokens, unless `id` needs more than kThreadsMax threads
  // for one: the other may need fewer. Many configurations often have the same one, so that they
  // share one mask.
  ConfigId Representative(ConfigId id);

  // A configuration's key, and the configuration of a key. With these a configuration moves to
  // another graph of the same program.
  absl::Span<const uint32_t> Key(ConfigId id) const { return configs_[id].key; }
  ConfigId Import(absl::Span<const uint32_t> key);

  // The number of configurations, and the memory that they use.
  size_t size() const { return configs_.size(); }
  size_t bytes() const { return bytes_; }
  // A count of the operations so far: callers bound it, because a hostile grammar can be costly.
  uint64_t work() const { return work_; }
  // The steps that are dead only because they would need more than kThreadsMax threads.
  int64_t overflows() const { return overflows_; }

 private:
  static constexpr ConfigId kUnknown = ~ConfigId{0};
  // A stack of return states, and the state on top.
  using Thread = std::vector<uint32_t>;
  struct Config {
    std::vector<uint32_t> key;  // its threads, sorted: length, then states
    bool may_end = false, can_continue = false;
    ConfigId representative = kUnknown;
    std::unique_ptr<std::array<ConfigId, 256>> next;
  };

  ConfigId FindStep(ConfigId from, uint8_t byte);
  // The configuration of `threads` and of all threads that they reach without a byte.
  ConfigId Close(const std::vector<Thread>& threads);
  ConfigId Overflow();
  ConfigId Intern(std::vector<uint32_t> key);
  bool Fits(const Thread& thread) const;
  // `depth`: of the whole thread, `top` included.
  bool Fits(size_t depth, StateId top) const;
  static std::vector<Thread> Threads(absl::Span<const uint32_t> key);
  static std::vector<uint32_t> ToKey(std::vector<Thread> threads);

  const Program& program_;
  std::deque<Config> configs_;
  absl::flat_hash_map<std::vector<uint32_t>, ConfigId> index_;
  ConfigId start_ = kDeadConfig;
  size_t bytes_ = 0;
  uint64_t work_ = 0;
  int64_t overflows_ = 0;
};

}  // namespace tandem::guided
