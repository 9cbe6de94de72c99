// The first token, compared with what was predicted for it: implements OnFirstToken of
// SequenceMachine (router/core/sequence_machine.h).
#include "router/core/sequence_machine.h"

namespace tandem::router {

void SequenceMachine::OnFirstToken(absl::Time now) {
  const RequestSteps& steps = answer_.steps();
  if (steps.first_token_predicted <= absl::ZeroDuration()) return;
  const NodeKey computed_by =
      legs_.decode().computes_locally() ? legs_.decode().node() : legs_.prefill().node();
  context_.fleet.FirstTokenCame(computed_by, steps.first_token_predicted, now - *steps.placed);
}

}  // namespace tandem::router
