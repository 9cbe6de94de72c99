// AbortLeg: ends a leg in whatever phase it is; unknown legs and older attempts are ignored.
#include "prefill_node/prefill_core.h"

namespace tandem::prefill_node {

void PrefillCore::Abort(node::RouterKey router, const v1::AbortLeg& command) {
  const auto found = legs_.find(node::LegKey(router, command.leg()));
  if (found == legs_.end() || command.leg().attempt() < found->second->second.wire.attempt()) {
    return;
  }
  Abandon(found->second, command.reason());
}

}  // namespace tandem::prefill_node
