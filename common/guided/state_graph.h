// A lazily built deterministic automaton: the configurations of a Program that texts lead to. The
// graph computes a step when it is first needed and stores it. Equal configurations have equal ids,
// so a stored step is one table look-up.
//
// A configuration with more than kThreadsMax threads, or one that takes too much work to find, is
// treated as dead: texts that need that much ambiguity are not generated. The same holds for call
// stacks deeper than kNestingMax. Threads share their stacks (StackTable), so the work for a
// configuration does not depend on how deep its calls nest.
// Thread safety: none; Constraint holds its mutex around every use.
// Owner: Constraint.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/guided/program.h"
#include "common/guided/stack_table.h"

namespace tandem::guided {

using ConfigId = uint32_t;
inline constexpr ConfigId kDeadConfig = 0;
inline constexpr size_t kThreadsMax = 1024;
// The most work for one configuration: a quarter of a mask's. A state may call a thousand rules,
// and a thousand threads may be in such states.
inline constexpr uint64_t kCloseWorkMax = 250'000;

class StateGraph {
 public:
  // `program` outlives the graph.
  explicit StateGraph(const Program& program);

  ConfigId start() const { return start_; }
  // The configuration of one thread that is at `state`, outside of every call: part of what the
  // graph computes wherever a text leads to `state`.
  ConfigId At(StateId state);
  // The configuration after `byte`; kDeadConfig when the constraint forbids it.
  ConfigId Step(ConfigId from, uint8_t byte) {
    const auto& steps = configs_[from].steps;
    if (steps != nullptr && steps->next[byte] != kUnknown) return steps->next[byte];
    return FindStep(from, byte);
  }

  // A walk is a series of steps whose cost is bounded: the bytes of a token, or those of a mask. It
  // is charged what it takes in a graph that knows no step yet, each different step once, so that
  // the charge does not depend on what others have read. What it really takes is at most that.
  void BeginWalk() {
    ++walk_;
    charged_ = 0;
  }
  // As Step, and charged to the walk.
  ConfigId Walk(ConfigId from, uint8_t byte) {
    const ConfigId target = Step(from, byte);
    Steps& steps = *configs_[from].steps;
    Charge(steps.ranges);
    Charge(steps.charges[steps.range_of[byte]]);
    return target;
  }
  uint64_t charged() const { return charged_; }
  // Whether the text read so far satisfies the constraint.
  bool MayEnd(ConfigId id) const { return configs_[id].may_end; }
  // Whether some byte may follow.
  bool CanContinue(ConfigId id) const { return configs_[id].can_continue; }
  // In how many ways the text can have been read: the configuration's threads.
  size_t Readings(ConfigId id) const { return configs_[id].key.size(); }
  // Bytes such that every step from `id` is the step of one of them.
  std::vector<uint8_t> DistinctBytes(ConfigId id);
  // A configuration that allows the same tokens, unless `id` needs more than kThreadsMax threads
  // for one: the other may need fewer. Many configurations often have the same one, so that they
  // share one mask.
  ConfigId Representative(ConfigId id);

  // A configuration's key, and the configuration of a key. With these a configuration moves to
  // another graph of the same program.
  std::vector<std::vector<StateId>> Key(ConfigId id) const;
  ConfigId Import(absl::Span<const std::vector<StateId>> key);

  // The number of configurations, and the memory that they use.
  size_t size() const { return configs_.size(); }
  size_t bytes() const { return bytes_ + stacks_.bytes(); }
  // A count of the operations so far: callers bound it, because a hostile grammar can be costly.
  uint64_t work() const { return work_; }
  // The steps that are dead only because they would need more than kThreadsMax threads.
  int64_t overflows() const { return overflows_; }

 private:
  static constexpr ConfigId kUnknown = ~ConfigId{0};
  // What finding something took, and the last walk that was charged for it.
  struct Cost {
    uint32_t work = 0;
    uint32_t walk = 0;
  };
  // A configuration's steps. Bytes of one range have equal steps, and are found together.
  struct Steps {
    std::array<ConfigId, 256> next;
    std::array<uint8_t, 256> range_of;
    Cost ranges;                // of finding the ranges
    std::vector<Cost> charges;  // of finding the step, by range. Bound: 256
  };
  struct Config {
    std::vector<StackId>
        key;  // its threads: of each the state, and the states to return to. Sorted
    bool may_end = false, can_continue = false;
    ConfigId representative = kUnknown;
    std::unique_ptr<Steps> steps;  // null until one is needed
  };

  void Charge(Cost& cost) {
    if (std::exchange(cost.walk, walk_) != walk_) charged_ += cost.work;
  }
  ConfigId FindStep(ConfigId from, uint8_t byte);
  Steps& StepsOf(ConfigId id);
  // The configuration of `threads` and of all threads that they reach without a byte.
  ConfigId Close(absl::Span<const StackId> threads);
  ConfigId Overflow();
  // `key`: in any order, and threads may repeat.
  ConfigId Intern(std::vector<StackId> key);
  // Whether a stack of `depth` states, `top` included, can reach its end within kNestingMax.
  bool Fits(size_t depth, StateId top) const;

  const Program& program_;
  StackTable stacks_;
  std::deque<Config> configs_;
  absl::flat_hash_map<std::vector<StackId>, ConfigId> index_;
  ConfigId start_ = kDeadConfig;
  size_t bytes_ = 0;
  uint64_t work_ = 0;
  uint64_t charged_ = 0;  // to the walk
  // The walk's number. After 2^32 of them a walk may be charged too little for steps that it finds
  // known, which take no work.
  uint32_t walk_ = 0;
  int64_t overflows_ = 0;
};

}  // namespace tandem::guided
