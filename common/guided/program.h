// A compiled constraint: a pushdown automaton over bytes. Each rule of the grammar is a finite
// automaton whose edges consume a byte or call a rule; a configuration is a set of (state, stack of
// return states).
//
// Invariants (Lower establishes them): every state can reach the end of its rule in a finite
// number of bytes; no rule calls itself without consuming a byte first; a state's `height` is how
// many more calls deep its shortest way to the end nests.
// Thread safety: immutable once built.
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
  StateId after = 0;   // where the caller goes on
};

struct Program {
  struct State {
    uint32_t bytes_begin = 0, bytes_end = 0;
    uint32_t calls_begin = 0, calls_end = 0;
    uint16_t height = 0;
    bool accept = false;
    bool only_accept = false;  // accepts and has no edges: calls that return here need no frame
    // A state that behaves the same for as many bytes as the longest token has.
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
