// The first token, compared with what was predicted for it: implements OnFirstToken of
// SequenceMachine (router/core/sequence_machine.h).
#include "router/core/sequence_machine.h"

namespace tandem::router {

void SequenceMachine::OnFirstToken(absl::Time now) {
  const RequestSteps& steps = answer_.steps();
  if (steps.first_token_predicted <= absl::ZeroDuration()) return;
  const NodeKey computed_by =
      legs_.decode().computes_locally() ? legs_.decode().node() : legs_.prefill().node();
  const absl::Duration took = now - *steps.placed;
  const absl::Duration due = goal_.DueWithin(*steps.placed);
  // A node lets what is due sooner pass: what comes before it is due is not held against it.
  const bool in_time = due != absl::InfiniteDuration() && took <= due;
  context_.fleet.FirstTokenCame(computed_by, steps.first_token_predicted,
                                in_time ? std::min(took, steps.first_token_predicted) : took);
}

}  // namespace tandem::router
