// Mutation tests: a test build removes one protection from the state machines, and the simulator
// must then report a violation. In every other build TANDEM_MUTATED(name) is the constant false, so
// the compiler removes the branch. A mutation test compiles the state machines a second time with
// TANDEM_MUTATIONS defined and sets ActiveMutation().
//   if (!TANDEM_MUTATED(kEpochCheckDropped) && frame.epoch() != lease.epoch.value()) ...
// Thread safety: set ActiveMutation() before threads start; any thread may read it.
#pragma once

namespace tandem {

enum class Mutation {
  kNone,
  kEpochCheckDropped,    // a receiver lets senders of old epochs write
  kReleaseLost,          // a drained lease's blocks stay quarantined forever
  kDoubleDelivery,       // the router delivers a repeated token to the client twice
  kSaltIgnored,          // requests with different cache salts share prefix blocks
  kQuarantineSkipped,    // the pool reuses a closed lease's blocks at once
  kAbortIgnored,         // a node keeps running a leg whose client left
  kChecksumIgnored,      // a receiver accepts damaged payloads
  kExportUnpinnedEarly,  // the pool reuses blocks while a sender still reads them
  kRouterLossIgnored,    // the legs of a lost router keep their blocks
  kForgetSkipped,        // a block whose contents are wrong stays in the prefix cache
  kAdoptedUnseen,        // a migrated prefix block can be matched before it has arrived
  kMovedTokenRepeated,   // a migrated sequence emits its last token again
  kLegFoundByName,       // a request hears the legs of an ended one that had the same id
  kPartTokensIgnored,    // a fork copies rows of other tokens than the sequence's
  kUncomputedRowNamed,   // the end of an answer is named with a row that has no KV yet
  kForkNeverUnpinned,    // the block that a fork copied stays pinned after the step
  kLoanServedTooLong,    // a creditor answers about blocks that it has given back to its pool
  kLoanKept,             // a returned or expired loan keeps its blocks
  kIndebtedLends,        // a node that has borrowed lends as well
  kDebtsUnheard,         // a router keeps no record of what its nodes owe each other
  kLoanUsedUnverified,   // a debtor gives blocks back before its creditor has verified them
  kVerifiedOvercounted,  // a receiver tells the next sender of blocks that it does not hold
  kIndexUnbounded,       // a router's prefix index grows beyond its bound
  kRequestsUnbounded,    // a router takes on more sequences than it may run
  kRejoinRefused,        // a router that has lost a decode node lets no node join any more
  kHealthyAborted,       // a router aborts its requests when a node is lost
  kEndRepeated,          // a router tells a client twice that its request has ended
  kSentKept,             // a draining node keeps a sequence that another node continues
};

#ifdef TANDEM_MUTATIONS
Mutation& ActiveMutation();
#define TANDEM_MUTATED(name) (::tandem::ActiveMutation() == ::tandem::Mutation::name)
#else
#define TANDEM_MUTATED(name) false
#endif

}  // namespace tandem
