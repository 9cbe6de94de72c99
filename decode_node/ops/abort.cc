// AbortLeg: ends a leg in whatever phase it is; unknown legs and older attempts are ignored.
#include "common/base/mutation.h"
#include "decode_node/decode_core.h"

namespace tandem::decode_node {

void DecodeCore::Abort(node::RouterKey router, const v1::AbortLeg& command) {
  const auto it = legs_.find(node::LegKey(router, command.leg()));
  if (TANDEM_MUTATED(kAbortIgnored)) return;
  retained_.Abort(router, command);
  if (it == legs_.end() || command.leg().attempt() < it->second.wire.attempt()) return;
  End(it, command.reason());
}

}  // namespace tandem::decode_node
