// Numbers the legs of one sequence, and builds and sends their commands. Both kinds of leg use it,
// so both send the same name and the same sequence.
//
// Thread safety: none; a SequenceMachine owns it.
// Invariants: attempt numbers rise by one with each leg, of either kind; commands go to joined
// nodes only.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/core/placed_prompt.h"
#include "router/core/request_input.h"
#include "router/core/sequence_context.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

class LegCommands {
 public:
  // `input` outlives this. `number`: of the sequence; nodes repeat it in their events.
  LegCommands(const RequestInput& input, uint64_t number, const SequenceContext& context)
      : input_(input), number_(number), context_(context) {}

  // The attempt of a new leg.
  uint32_t NextAttempt() { return ++last_attempt_; }
  uint32_t last_attempt() const { return last_attempt_; }

  // The name of a leg on the wire.
  v1::Leg NameOf(uint32_t attempt) const;
  // What the node computes: prompt, sampling, stop conditions. `wants_scores`: the leg also
  // computes the prompt's log-probabilities.
  v1::SequenceSpec SpecOf(const PlacedPrompt& prompt, bool wants_scores) const;

  // What is left until the first token is due, for first_token_due_us; 0 = no time is set.
  static int64_t DueUs(absl::Duration within) {
    return within == absl::InfiniteDuration() ? 0 : absl::ToInt64Microseconds(within);
  }

  // Does nothing if the node has left the fleet.
  void Send(NodeKey node, v1::NodeCommand command);
  void SendAbort(NodeKey node, uint32_t attempt, absl::string_view reason);

 private:
  const RequestInput& input_;
  const uint64_t number_;
  const SequenceContext context_;
  uint32_t last_attempt_ = 0;
};

}  // namespace tandem::router
