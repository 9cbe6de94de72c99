#include "common/guided/state_graph.h"

#include <algorithm>
#include <bitset>
#include <utility>

#include "common/guided/grammar_builder.h"

namespace tandem::guided {
namespace {

// The most words that all stacks of one configuration may have.
constexpr size_t kConfigWordsMax = 32768;
// The most work for one configuration: a quarter of a mask's. A state may call a thousand rules,
// and a thousand threads may be in such states.
constexpr uint64_t kCloseWorkMax = 250'000;

// The threads of one closure, as stacks that share what is below their tops: a thousand threads may
// call a thousand rules each, and equal stacks have equal ids.
class Stacks {
 public:
  using Id = uint32_t;
  struct Stack {
    Id below = 0;  // 0: nothing
    StateId state = 0;
    uint32_t depth = 0;
  };

  const Stack& operator[](Id id) const { return stacks_[id]; }
  Id Push(Id below, StateId state) {
    const auto [it, fresh] =
        ids_.try_emplace(uint64_t{below} << 32 | state, static_cast<Id>(stacks_.size()));
    if (fresh) {
      stacks_.push_back({below, state, stacks_[below].depth + 1});
      seen_.push_back(false);
    }
    return it->second;
  }
  Id Of(const std::vector<uint32_t>& thread) {
    Id id = 0;
    for (const uint32_t state : thread) id = Push(id, state);
    return id;
  }
  std::vector<uint32_t> ToThread(Id id) const {
    std::vector<uint32_t> thread(stacks_[id].depth);
    for (size_t i = thread.size(); i > 0; id = stacks_[id].below) thread[--i] = stacks_[id].state;
    return thread;
  }
  // False if it was seen before.
  bool MarkSeen(Id id) {
    if (seen_[id]) return false;
    seen_[id] = true;
    ++seen_count_;
    return true;
  }
  size_t seen() const { return seen_count_; }

 private:
  // Bound: kCloseWorkMax, because each took work; for all three.
  std::vector<Stack> stacks_ = {{}};
  std::vector<bool> seen_ = {false};
  absl::flat_hash_map<uint64_t, Id> ids_;
  size_t seen_count_ = 0;
};

}  // namespace

StateGraph::StateGraph(const Program& program) : program_(program) {
  configs_.emplace_back();  // kDeadConfig
  configs_[kDeadConfig].next = std::make_unique<std::array<ConfigId, 256>>();
  configs_[kDeadConfig].representative = kDeadConfig;
  start_ = Close({{program.start}});
}

size_t StateGraph::Readings(ConfigId id) const {
  const std::vector<uint32_t>& key = configs_[id].key;
  size_t threads = 0;
  for (size_t i = 0; i < key.size(); i += key[i] + 1) ++threads;
  return threads;
}

std::vector<StateGraph::Thread> StateGraph::Threads(absl::Span<const uint32_t> key) {
  std::vector<Thread> threads;
  for (size_t i = 0; i < key.size(); i += key[i] + 1) {
    threads.emplace_back(key.begin() + i + 1, key.begin() + i + 1 + key[i]);
  }
  return threads;
}

std::vector<uint32_t> StateGraph::ToKey(std::vector<Thread> threads) {
  std::sort(threads.begin(), threads.end());
  threads.erase(std::unique(threads.begin(), threads.end()), threads.end());
  std::vector<uint32_t> key;
  for (const Thread& thread : threads) {
    key.push_back(static_cast<uint32_t>(thread.size()));
    key.insert(key.end(), thread.begin(), thread.end());
  }
  return key;
}

// Whether each state of the thread and of its stack can reach its end within kNestingMax.
bool StateGraph::Fits(const Thread& thread) const { return Fits(thread.size(), thread.back()); }

bool StateGraph::Fits(size_t depth, StateId top) const {
  return depth - 1 + program_.states[top].height <= size_t{kNestingMax};
}

ConfigId StateGraph::Close(const std::vector<Thread>& threads) {
  Stacks stacks;
  std::vector<Stacks::Id> todo;
  std::vector<Thread> kept;  // the threads that can consume a byte next, or end the text
  size_t words = 0;
  const uint64_t work_before = work_;
  const auto add = [&](Stacks::Id id) {
    if (Fits(stacks[id].depth, stacks[id].state) && stacks.MarkSeen(id)) todo.push_back(id);
  };
  for (const Thread& thread : threads) {
    work_ += thread.size();
    add(stacks.Of(thread));
  }
  while (!todo.empty()) {
    const Stacks::Stack stack = stacks[todo.back()];
    work_ += 8;
    const Program::State& state = program_.states[stack.state];
    if (state.bytes_begin != state.bytes_end || (state.accept && stack.depth == 1)) {
      words += stack.depth + 1;
      work_ += stack.depth;
      kept.push_back(stacks.ToThread(todo.back()));
      if (kept.size() > kThreadsMax || words > kConfigWordsMax) return Overflow();
    }
    todo.pop_back();
    if (stacks.seen() > 8 * kThreadsMax) return Overflow();
    if (state.accept && stack.depth > 1) add(stack.below);
    for (const CallEdge& call : program_.CallsOf(stack.state)) {
      work_ += 2;
      if (work_ - work_before > kCloseWorkMax) return Overflow();
      Stacks::Id below = stack.below;
      if (!program_.states[call.after].only_accept) {
        if (!Fits(stack.depth, call.after)) continue;
        below = stacks.Push(below, call.after);
      }
      add(stacks.Push(below, call.callee));
    }
  }
  return Intern(ToKey(std::move(kept)));
}

ConfigId StateGraph::Overflow() {
  ++overflows_;
  return kDeadConfig;
}

ConfigId StateGraph::Intern(std::vector<uint32_t> key) {
  if (key.empty()) return kDeadConfig;
  const auto [it, fresh] = index_.emplace(key, static_cast<ConfigId>(configs_.size()));
  if (!fresh) return it->second;
  Config config;
  for (size_t i = 0; i < key.size(); i += key[i] + 1) {
    const Program::State& state = program_.states[key[i + key[i]]];
    config.may_end = config.may_end || (key[i] == 1 && state.accept);
    config.can_continue = config.can_continue || state.bytes_begin != state.bytes_end;
  }
  bytes_ += 2 * key.size() * sizeof(uint32_t) + sizeof(Config) + 64;
  config.key = std::move(key);
  configs_.push_back(std::move(config));
  return it->second;
}

ConfigId StateGraph::Import(absl::Span<const uint32_t> key) {
  return Intern(std::vector<uint32_t>(key.begin(), key.end()));
}

ConfigId StateGraph::FindStep(ConfigId from, uint8_t byte) {
  std::vector<Thread> moved;
  const std::vector<uint32_t>& key = configs_[from].key;
  work_ += key.size() + 16;
  for (size_t i = 0; i < key.size(); i += key[i] + 1) {
    const auto begin = key.begin() + static_cast<int64_t>(i) + 1;
    const auto end = begin + key[i];
    work_ += program_.BytesOf(*(end - 1)).size() / 8;
    for (const ByteEdge& edge : program_.BytesOf(*(end - 1))) {
      if (byte < edge.low || byte > edge.high) continue;
      Thread thread(begin, end);
      thread.back() = edge.target;
      if (Fits(thread)) moved.push_back(std::move(thread));
    }
  }
  const ConfigId target = moved.empty() ? kDeadConfig : Close(moved);
  auto& next = configs_[from].next;
  if (next == nullptr) {
    next = std::make_unique<std::array<ConfigId, 256>>();
    next->fill(kUnknown);
    bytes_ += sizeof(*next);
  }
  (*next)[byte] = target;
  return target;
}

std::vector<uint8_t> StateGraph::DistinctBytes(ConfigId id) {
  // Steps change where an edge's range begins, and behind its end.
  std::bitset<256> begins;
  const std::vector<uint32_t>& key = configs_[id].key;
  work_ += key.size();
  for (size_t i = 0; i < key.size(); i += key[i] + 1) {
    const absl::Span<const ByteEdge> edges = program_.BytesOf(key[i + key[i]]);
    work_ += edges.size();
    for (const ByteEdge& edge : edges) {
      begins.set(edge.low);
      if (edge.high < 255) begins.set(edge.high + 1);
    }
  }
  std::vector<uint8_t> bytes;
  for (size_t b = 0; b < begins.size(); ++b) {
    if (begins[b]) bytes.push_back(static_cast<uint8_t>(b));
  }
  return bytes;
}

ConfigId StateGraph::Representative(ConfigId id) {
  if (configs_[id].representative != kUnknown) return configs_[id].representative;
  std::vector<Thread> threads = Threads(configs_[id].key);
  for (Thread& thread : threads) {
    for (uint32_t& state : thread) state = program_.states[state].alias;
  }
  const ConfigId representative = Intern(ToKey(std::move(threads)));
  configs_[representative].representative = representative;
  configs_[id].representative = representative;
  return representative;
}

}  // namespace tandem::guided
