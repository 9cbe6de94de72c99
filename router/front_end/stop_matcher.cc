#include "router/front_end/stop_matcher.h"

#include <algorithm>

namespace tandem::router {

StopMatcher::StopMatcher(absl::Span<const std::string> texts) {
  Build(texts);
  int64_t steps = 0;
  // Shorter nodes come first, so what a node needs of them is known.
  for (State node = 0; node + 1 < static_cast<State>(nodes_.size()); ++node) {
    const State end = nodes_[node + 1].first_child;
    for (State child = nodes_[node].first_child; child < end; ++child) {
      Node& next = nodes_[child];
      if (node != kStart) {
        next.shorter = Advance(nodes_[node].shorter, static_cast<char>(next.byte), steps);
      }
      const Node& shorter = nodes_[next.shorter];
      if (next.longest < 0) next.longest = shorter.longest;
      if (next.first_child == nodes_[child + 1].first_child) next.pending = shorter.pending;
    }
  }
}

// Builds the tree of the texts' beginnings, breadth first.
void StopMatcher::Build(absl::Span<const std::string> texts) {
  std::vector<size_t> order(texts.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return texts[a] < texts[b]; });
  struct Range {
    size_t begin, end;  // of `order`: the texts that begin with the node
  };
  std::vector<Range> ranges = {{0, order.size()}};
  nodes_.emplace_back();
  for (size_t depth = 0, level_begin = 0; level_begin < nodes_.size(); ++depth) {
    const size_t level_end = nodes_.size();
    for (size_t node = level_begin; node < level_end; ++node) {
      nodes_[node].first_child = static_cast<int32_t>(nodes_.size());
      nodes_[node].pending = static_cast<uint16_t>(depth);
      auto [begin, end] = ranges[node];
      // Texts that end here sort before those that go on.
      for (; begin < end && texts[order[begin]].size() == depth; ++begin) {
        if (nodes_[node].longest < 0) nodes_[node].longest = static_cast<int16_t>(order[begin]);
      }
      while (begin < end) {
        const char byte = texts[order[begin]][depth];
        size_t next = begin + 1;
        while (next < end && texts[order[next]][depth] == byte) ++next;
        nodes_.push_back({.byte = static_cast<uint8_t>(byte)});
        ranges.push_back({begin, next});
        begin = next;
      }
    }
    level_begin = level_end;
  }
  nodes_.push_back({.first_child = static_cast<int32_t>(nodes_.size())});
  nodes_.shrink_to_fit();
}

StopMatcher::State StopMatcher::Child(State state, uint8_t byte) const {
  const auto begin = nodes_.begin() + nodes_[state].first_child;
  const auto end = nodes_.begin() + nodes_[state + 1].first_child;
  const auto child = std::lower_bound(
      begin, end, byte, [](const Node& node, uint8_t wanted) { return node.byte < wanted; });
  if (child == end || child->byte != byte) return -1;
  return static_cast<State>(child - nodes_.begin());
}

StopMatcher::State StopMatcher::Advance(State state, char byte, int64_t& steps) const {
  for (;; state = nodes_[state].shorter) {
    ++steps;
    const State child = Child(state, static_cast<uint8_t>(byte));
    if (child >= 0) return child;
    if (state == kStart) return kStart;
  }
}

}  // namespace tandem::router
