// Finds stop strings in a text that comes a byte at a time: the automaton of Aho and Corasick
// (1975). However many strings there are, n bytes of a text take at most 2n steps; a step looks for
// one byte among the bytes that may follow (at most one for each string).
//
// Thread safety: immutable; any thread may read it. Owner: StopRules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace tandem::router {

class StopMatcher {
 public:
  // The longest end of a text with which a stop string begins. kStart: none, as of an empty text.
  using State = int32_t;
  static constexpr State kStart = 0;

  StopMatcher() : StopMatcher(absl::Span<const std::string>()) {}
  // REQUIRES: no text is empty. Takes 2 steps a byte of `texts`, and sorts them.
  explicit StopMatcher(absl::Span<const std::string> texts);

  // The state after one more byte. Adds the steps that it took to `steps`.
  State Advance(State state, char byte, int64_t& steps) const;
  // The longest stop string that the text ends with (of equal ones the first); -1: none.
  int32_t Longest(State state) const { return nodes_[state].longest; }
  // The number of bytes at the end of the text that a stop string may begin with and go on after.
  int32_t Pending(State state) const { return nodes_[state].pending; }

 private:
  // A beginning of stop strings. Nodes are in order of length, and the nodes that continue one by a
  // byte are neighbours, in order of that byte. RequestInput::HeldBytesMax counts
  // 16 bytes for each.
  struct Node {
    int32_t first_child = 0;  // its children end where the next node's begin
    State shorter = kStart;   // the longest proper end of it that is a node
    int16_t longest = -1;
    uint16_t pending = 0;
    uint8_t byte = 0;  // its last
  };
  static_assert(sizeof(Node) <= 16);

  // The node that continues `state` by `byte`; -1: none.
  State Child(State state, uint8_t byte) const;
  void Build(absl::Span<const std::string> texts);

  // Bound: one for each byte of stop strings (64 KiB), the empty beginning and a sentinel.
  std::vector<Node> nodes_;
};

}  // namespace tandem::router
