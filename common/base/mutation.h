// Tests of the tests: protections that a test build can take out, to see that the simulator
// notices. TANDEM_MUTATED(name) is the constant false in every other build, so that nothing of it
// is left. A test that wants it compiles the state machines a second time with TANDEM_MUTATIONS
// defined and sets ActiveMutation().
//   if (!TANDEM_MUTATED(kEpochCheckDropped) && frame.epoch() != lease.epoch.value()) ...
// Thread safety: set before threads start.
#pragma once

namespace tandem {

enum class Mutation {
  kNone,
  kEpochCheckDropped,    // a receiver lets stale senders write
  kReleaseLost,          // a drained lease's blocks stay in quarantine
  kDoubleDelivery,       // a token that comes twice is given to the client twice
  kSaltIgnored,          // tenants share prefixes
  kQuarantineSkipped,    // a closed lease's blocks are reused at once
  kAbortIgnored,         // a node does not end a leg whose client left
  kChecksumIgnored,      // damaged payloads are taken
  kExportUnpinnedEarly,  // blocks are reused while they are sent
  kRouterLossIgnored,    // a lost router's legs go on holding blocks
  kForgetSkipped,        // a block known to be wrong stays a cached prefix
  kAdoptedUnseen,        // a peer's prefix block is found before it has arrived
  kMovedTokenRepeated,   // a moved sequence goes on with the token it ended with
  kVerifiedOvercounted,  // a next sender is told that blocks are there which are not
};

#ifdef TANDEM_MUTATIONS
Mutation& ActiveMutation();
#define TANDEM_MUTATED(name) (::tandem::ActiveMutation() == ::tandem::Mutation::name)
#else
#define TANDEM_MUTATED(name) false
#endif

}  // namespace tandem
