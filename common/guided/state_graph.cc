#include "common/guided/state_graph.h"

#include <algorithm>
#include <bitset>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/guided/grammar_builder.h"

namespace tandem::guided {
namespace {

// The most words that all stacks of one configuration may have.
constexpr size_t kConfigWordsMax = 32768;

}  // namespace

StateGraph::StateGraph(const Program& program) : program_(program) {
  configs_.emplace_back();  // kDeadConfig
  configs_[kDeadConfig].next = std::make_unique<std::array<ConfigId, 256>>();
  configs_[kDeadConfig].representative = kDeadConfig;
  start_ = Close({{program.start}});
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
bool StateGraph::Fits(const Thread& thread) const {
  return thread.size() - 1 + program_.states[thread.back()].height <= size_t{kNestingMax};
}

ConfigId StateGraph::Close(std::vector<Thread> threads) {
  absl::flat_hash_set<Thread> seen(threads.begin(), threads.end());
  std::vector<Thread> todo(seen.begin(), seen.end());
  std::vector<Thread> kept;  // the threads that can consume a byte next, or end the text
  size_t words = 0;
  const auto add = [&](Thread thread) {
    if (!Fits(thread)) return;
    if (seen.insert(thread).second) todo.push_back(std::move(thread));
  };
  while (!todo.empty()) {
    Thread thread = std::move(todo.back());
    todo.pop_back();
    work_ += thread.size() + 8;
    const StateId top = thread.back();
    const Program::State& state = program_.states[top];
    if (state.bytes_begin != state.bytes_end || (state.accept && thread.size() == 1)) {
      words += thread.size() + 1;
      kept.push_back(thread);
      if (kept.size() > kThreadsMax || words > kConfigWordsMax) return Overflow();
    }
    if (seen.size() > 8 * kThreadsMax) return Overflow();
    if (state.accept && thread.size() > 1) add(Thread(thread.begin(), thread.end() - 1));
    for (const CallEdge& call : program_.CallsOf(top)) {
      Thread called = thread;
      called.back() = call.after;
      if (program_.states[call.after].only_accept) {
        called.pop_back();
      } else if (!Fits(called)) {
        continue;
      }
      called.push_back(call.callee);
      add(std::move(called));
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
  const ConfigId target = moved.empty() ? kDeadConfig : Close(std::move(moved));
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
