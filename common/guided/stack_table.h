// The call stacks of a state graph's threads. Stacks share what lies below their tops, and equal
// stacks have equal ids, so that a step of a thread costs the same however deep its calls nest.
// Thread safety: none. Owner: StateGraph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/guided/program.h"

namespace tandem::guided {

using StackId = uint32_t;
inline constexpr StackId kNoStack = 0;

class StackTable {
 public:
  struct Stack {
    StackId below = kNoStack;
    StateId state = 0;   // on top: where the thread is, or a state that a call returns to
    uint32_t depth = 0;  // of kNoStack 0
  };

  // `program` outlives the table.
  explicit StackTable(const Program& program) : program_(program) {}

  const Stack& operator[](StackId id) const { return stacks_[id]; }
  StackId Push(StackId below, StateId state);
  // The stack of `states`, its top last; and those states.
  StackId Of(absl::Span<const StateId> states);
  std::vector<StateId> States(StackId id) const;
  // The stack of the aliases of the states of `id`.
  StackId Alias(StackId id);

  // Begins to mark stacks; then Mark is false for a stack that has been marked since.
  void BeginMarks() { ++round_; }
  bool Mark(StackId id);

  // The memory of the table.
  size_t bytes() const { return stacks_.size() * kBytesOfStack; }

 private:
  static constexpr StackId kUnknown = ~StackId{0};
  // A stack, its alias, its mark, and its slot in a hash table that may be half empty.
  static constexpr size_t kBytesOfStack = sizeof(Stack) + 8 + 2 * 17;

  const Program& program_;
  // Bound: the work of the graph, because each took some; for all four. Constraint replaces a graph
  // whose bytes exceed its bound.
  std::vector<Stack> stacks_ = {{}};
  std::vector<StackId> aliases_ = {kNoStack};
  std::vector<uint32_t> marks_ = {0};
  absl::flat_hash_map<uint64_t, StackId> ids_;  // by below and state
  uint32_t round_ = 0;
};

}  // namespace tandem::guided
