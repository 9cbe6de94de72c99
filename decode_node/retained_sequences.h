// Sequences whose legs a draining decode node gave up, and whose KV it keeps for a while: when the
// router asks, they are sent to the decode node that goes on with them, as a prefill node would
// send a prompt (docs/adr/0021-a-draining-node-is-a-sender.md).
//
//   Keep ─▶ retained ─Send─▶ sending ─ExportDone, ExportFailed─▶ gone
//             └─ Abort, router lost, time over ─▶ gone; what is being sent is cancelled first
//
// Thread safety: none; owned by the decode core.
// Invariants: each entry holds one parked sequence of the scheduler, all of whose tokens are
// computed; blocks are pinned until no send is in flight.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/node/node_ledger.h"
#include "common/node/sequence_scheduler.h"

namespace tandem::decode_node {

class RetainedSequences {
 public:
  RetainedSequences(node::SequenceScheduler& scheduler, node::NodeLedger& ledger)
      : scheduler_(scheduler), ledger_(ledger) {}

  struct Given {
    node::LegKey key;
    v1::Leg leg;
    node::SequenceId sequence;  // of which this is the owner from now on
    engine::SampledToken next;  // follows its tokens; nobody was told
    absl::Time until;           // then it is given up, unless it is being sent
  };
  // Fails the leg with `retained`. REQUIRES: all tokens of the sequence are computed.
  void Keep(Given given);
  // A router's Prefill. Refuses what is not retained here, token for token.
  void Send(node::RouterKey router, const v1::Prefill& command, absl::Time now);
  void Abort(node::RouterKey router, const v1::AbortLeg& command);
  void OnRouterLost(node::RouterKey router);
  void OnTick(absl::Time now);
  // Of other exports: no effect.
  void Handle(const transfer::ExportDone& event);
  void Handle(const transfer::ExportFailed& event);

  int64_t exports() const { return static_cast<int64_t>(exports_.size()); }

 private:
  using Retained = std::map<node::LegKey, Given>;
  struct Export {
    node::LegKey key;
    v1::Leg leg;  // of the Prefill
    std::string trace_id;
    node::SequenceId sequence;
    bool cancelled = false;  // nobody wants to hear of it
  };
  using Exports = std::map<transfer::ExportId, Export>;

  void Drop(Retained::iterator it);
  void Cancel(Exports::value_type& exported, const std::string& reason);
  absl::Status Check(const Given& retained, const v1::Prefill& command) const;
  void Push(const Given& retained, const v1::Prefill& command, absl::Time deadline);

  node::SequenceScheduler& scheduler_;
  node::NodeLedger& ledger_;
  // Bound: the legs that ran when the node began to hand over.
  Retained retained_;
  Exports exports_;
};

}  // namespace tandem::decode_node
