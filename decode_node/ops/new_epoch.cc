// NewEpoch: another sender takes over a lease; what was received and verified stays. The answer
// waits for the KV plane's word of how much that is.
#include "absl/strings/str_cat.h"
#include "decode_node/decode_core.h"

namespace tandem::decode_node {

void DecodeCore::NewEpoch(node::RouterKey router, const v1::NewEpoch& command, absl::Time now) {
  const auto it = legs_.find(node::LegKey(router, command.leg()));
  if (it == legs_.end()) {
    ledger_.FailLeg(router, command.leg(),
                    absl::NotFoundError(absl::StrCat("lease ", command.lease_id(),
                                                     ": its leg is not here (any more)")),
                    /*sender_side=*/false);
    return;
  }
  Leg& leg = it->second;
  if (command.leg().attempt() < leg.wire.attempt()) return;
  // Installed in the meantime: the router hears of it by the event already under way.
  if (leg.phase != Phase::kReceiving) return;
  if (command.lease_id() != leg.lease.value() || command.epoch() <= leg.epoch.value()) {
    ledger_.FailLeg(router, command.leg(),
                    absl::FailedPreconditionError(absl::StrCat(
                        "lease ", leg.lease.value(), " has epoch ", leg.epoch.value(),
                        ", command names lease ", command.lease_id(), " epoch ", command.epoch())),
                    /*sender_side=*/false);
    return;
  }
  if (command.local_prefill_tokens_max() < -1) {
    ledger_.FailLeg(
        router, command.leg(),
        absl::InvalidArgumentError(absl::StrCat(
            "local_prefill_tokens_max: ", command.local_prefill_tokens_max(), ", expected >= -1")),
        /*sender_side=*/false);
    return End(it, "a command that makes no sense");
  }
  leg.local_prefill_tokens_max = command.local_prefill_tokens_max();
  leg.wire.set_attempt(command.leg().attempt());
  leg.epoch = Epoch(command.epoch());
  leg.deadline = now + leg.time_allowed;
  ledger_.Transfer(
      transfer::RaiseEpoch{.lease = leg.lease, .epoch = leg.epoch, .deadline = leg.deadline});
}

}  // namespace tandem::decode_node
