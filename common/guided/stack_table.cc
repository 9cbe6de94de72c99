#include "common/guided/stack_table.h"

#include <utility>

namespace tandem::guided {

StackId StackTable::Push(StackId below, StateId state) {
  const auto [it, fresh] =
      ids_.try_emplace(uint64_t{below} << 32 | state, static_cast<StackId>(stacks_.size()));
  if (fresh) {
    stacks_.push_back({.below = below, .state = state, .depth = stacks_[below].depth + 1});
    aliases_.push_back(kUnknown);
    marks_.push_back(0);
  }
  return it->second;
}

StackId StackTable::Of(absl::Span<const StateId> states) {
  StackId id = kNoStack;
  for (const StateId state : states) id = Push(id, state);
  return id;
}

std::vector<StateId> StackTable::States(StackId id) const {
  std::vector<StateId> states(stacks_[id].depth);
  for (size_t i = states.size(); i > 0; id = stacks_[id].below) states[--i] = stacks_[id].state;
  return states;
}

StackId StackTable::Alias(StackId id) {
  std::vector<StackId> unknown;  // Bound: the depth of a stack
  for (; aliases_[id] == kUnknown; id = stacks_[id].below) unknown.push_back(id);
  StackId alias = aliases_[id];
  for (; !unknown.empty(); unknown.pop_back()) {
    alias = Push(alias, program_.states[stacks_[unknown.back()].state].alias);
    aliases_[unknown.back()] = alias;
  }
  return alias;
}

bool StackTable::Mark(StackId id) { return std::exchange(marks_[id], round_) != round_; }

}  // namespace tandem::guided
