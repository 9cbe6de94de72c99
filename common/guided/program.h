// A compiled constraint: a pushdown automaton over bytes. Each rule of the grammar is a finite
// automaton whose edges consume a byte or call a rule. A configuration of it is a set of pairs
// (state, stack of return states).
//
// Thread safety: immutable once built; any thread may read it.
// Invariants (established by Lower): every state can reach the end of its rule in a finite number
// of bytes. No rule calls itself without first consuming a byte. A state's `height` is the nesting
// depth of the calls on the least nested path from it to the end of its rule.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tandem::guided {

using StateId = uint32_t;

struct ByteEdge {
  uint8_t low = 0, high = 0;  // inclusive
  StateId target = 0;
};
struct CallEdge {
  StateId callee = 0;  // the rule's first state
  StateId after = 0;   // the caller's state after the call returns
};

struct Program {
  struct State {
    uint32_t bytes_begin = 0, bytes_end = 0;
    uint32_t calls_begin = 0, calls_end = 0;
    uint16_t height = 0;
    bool accept = false;
    bool only_accept = false;  // accepts and has no edges: a call that returns here needs no frame
    // A state that allows the same byte strings, up to the length of the longest token.
    StateId alias = 0;
  };
  std::vector<State> states;
  std::vector<ByteEdge> bytes;
  std::vector<CallEdge> calls;
  StateId start = 0;

  absl::Span<const ByteEdge> BytesOf(StateId id) const {
    const State& state = states[id];
    return absl::MakeConstSpan(bytes).subspan(state.bytes_begin,
                                              state.bytes_end - state.bytes_begin);
  }
  absl::Span<const CallEdge> CallsOf(StateId id) const {
    const State& state = states[id];
    return absl::MakeConstSpan(calls).subspan(state.calls_begin,
                                              state.calls_end - state.calls_begin);
  }
};

}  // namespace tandem::guided
