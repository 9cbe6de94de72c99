#include "common/guided/state_graph.h"

#include <algorithm>
#include <bitset>
#include <utility>

#include "common/guided/grammar_builder.h"

namespace tandem::guided {

StateGraph::StateGraph(const Program& program) : program_(program), stacks_(program) {
  configs_.emplace_back();  // kDeadConfig
  StepsOf(kDeadConfig).next.fill(kDeadConfig);
  configs_[kDeadConfig].representative = kDeadConfig;
  start_ = At(program.start);
}

ConfigId StateGraph::At(StateId state) { return Close({stacks_.Push(kNoStack, state)}); }

std::vector<std::vector<StateId>> StateGraph::Key(ConfigId id) const {
  std::vector<std::vector<StateId>> threads;
  for (const StackId thread : configs_[id].key) threads.push_back(stacks_.States(thread));
  return threads;
}

bool StateGraph::Fits(size_t depth, StateId top) const {
  return depth - 1 + program_.states[top].height <= size_t{kNestingMax};
}

ConfigId StateGraph::Close(absl::Span<const StackId> threads) {
  std::vector<StackId> todo;
  std::vector<StackId> kept;  // the threads that can consume a byte next, or end the text
  size_t found = 0;
  const uint64_t work_before = work_;
  stacks_.BeginMarks();
  const auto add = [&](StackId id) {
    if (!Fits(stacks_[id].depth, stacks_[id].state) || !stacks_.Mark(id)) return;
    todo.push_back(id);
    ++found;
  };
  for (const StackId thread : threads) add(thread);
  while (!todo.empty()) {
    const StackId id = todo.back();
    const StackTable::Stack stack = stacks_[id];
    todo.pop_back();
    work_ += 8;
    const Program::State& state = program_.states[stack.state];
    if (state.bytes_begin != state.bytes_end || (state.accept && stack.depth == 1)) {
      kept.push_back(id);
      if (kept.size() > kThreadsMax) return Overflow();
    }
    if (found > 8 * kThreadsMax) return Overflow();
    if (state.accept && stack.depth > 1) add(stack.below);
    for (const CallEdge& call : program_.CallsOf(stack.state)) {
      work_ += 2;
      if (work_ - work_before > kCloseWorkMax) return Overflow();
      StackId below = stack.below;
      if (!program_.states[call.after].only_accept) {
        if (!Fits(stack.depth, call.after)) continue;
        below = stacks_.Push(below, call.after);
      }
      add(stacks_.Push(below, call.callee));
    }
  }
  return Intern(std::move(kept));
}

ConfigId StateGraph::Overflow() {
  ++overflows_;
  return kDeadConfig;
}

ConfigId StateGraph::Intern(std::vector<StackId> key) {
  if (key.empty()) return kDeadConfig;
  std::sort(key.begin(), key.end());
  key.erase(std::unique(key.begin(), key.end()), key.end());
  const auto [it, fresh] = index_.emplace(key, static_cast<ConfigId>(configs_.size()));
  if (!fresh) return it->second;
  Config config;
  for (const StackId thread : key) {
    const Program::State& state = program_.states[stacks_[thread].state];
    config.may_end = config.may_end || (stacks_[thread].depth == 1 && state.accept);
    config.can_continue = config.can_continue || state.bytes_begin != state.bytes_end;
  }
  bytes_ += 2 * key.size() * sizeof(StackId) + sizeof(Config) + 64;
  config.key = std::move(key);
  configs_.push_back(std::move(config));
  return it->second;
}

ConfigId StateGraph::Import(absl::Span<const std::vector<StateId>> key) {
  std::vector<StackId> threads;
  for (const std::vector<StateId>& thread : key) {
    work_ += thread.size();
    threads.push_back(stacks_.Of(thread));
  }
  return Intern(std::move(threads));
}

StateGraph::Steps& StateGraph::StepsOf(ConfigId id) {
  std::unique_ptr<Steps>& steps = configs_[id].steps;
  if (steps != nullptr) return *steps;
  steps = std::make_unique<Steps>();
  steps->next.fill(kUnknown);
  const uint64_t before = work_;
  std::bitset<256> begins;
  // Steps change where an edge's range begins, and behind its end.
  for (const StackId thread : configs_[id].key) {
    const absl::Span<const ByteEdge> edges = program_.BytesOf(stacks_[thread].state);
    work_ += 1 + edges.size();
    for (const ByteEdge& edge : edges) {
      begins.set(edge.low);
      if (edge.high < 255) begins.set(edge.high + 1);
    }
  }
  uint8_t range = 0;
  for (size_t b = 0; b < begins.size(); ++b) {
    if (b > 0 && begins[b]) ++range;
    steps->range_of[b] = range;
  }
  steps->charges.resize(size_t{range} + 1);
  steps->ranges.work = static_cast<uint32_t>(work_ - before);
  bytes_ += sizeof(*steps) + steps->charges.size() * sizeof(Cost);
  return *steps;
}

ConfigId StateGraph::FindStep(ConfigId from, uint8_t byte) {
  Steps& steps = StepsOf(from);
  std::vector<StackId> moved;
  const uint64_t before = work_;
  work_ += 16;
  for (const StackId thread : configs_[from].key) {
    const StackTable::Stack stack = stacks_[thread];
    const absl::Span<const ByteEdge> edges = program_.BytesOf(stack.state);
    work_ += 2 + edges.size() / 8;
    for (const ByteEdge& edge : edges) {
      if (byte < edge.low || byte > edge.high) continue;
      if (Fits(stack.depth, edge.target)) moved.push_back(stacks_.Push(stack.below, edge.target));
    }
  }
  const ConfigId target = moved.empty() ? kDeadConfig : Close(moved);
  const uint8_t range = steps.range_of[byte];
  size_t low = byte, high = byte;
  while (low > 0 && steps.range_of[low - 1] == range) --low;
  while (high < 255 && steps.range_of[high + 1] == range) ++high;
  for (size_t b = low; b <= high; ++b) steps.next[b] = target;
  steps.charges[range].work = static_cast<uint32_t>(work_ - before);
  return target;
}

std::vector<uint8_t> StateGraph::DistinctBytes(ConfigId id) {
  const Steps& steps = StepsOf(id);
  std::vector<uint8_t> bytes;
  for (size_t b = 0; b < steps.range_of.size(); ++b) {
    if (steps.range_of[b] == bytes.size()) bytes.push_back(static_cast<uint8_t>(b));
  }
  return bytes;
}

ConfigId StateGraph::Representative(ConfigId id) {
  if (configs_[id].representative != kUnknown) return configs_[id].representative;
  std::vector<StackId> key;
  for (const StackId thread : configs_[id].key) key.push_back(stacks_.Alias(thread));
  const ConfigId representative = Intern(std::move(key));
  configs_[representative].representative = representative;
  configs_[id].representative = representative;
  return representative;
}

}  // namespace tandem::guided
