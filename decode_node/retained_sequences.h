// Sequences whose legs a draining decode node gave up, and whose KV it keeps for a while. When the
// router asks for it with a Prefill command, this class sends the KV to the decode node that
// continues the sequence, in the same way as a prefill node sends a prompt
// (docs/adr/0021-a-draining-node-is-a-sender.md).
//
//   Retain ─▶ retained ─Send─▶ sending ─ExportDone, ExportFailed─▶ gone
//                └─ Abort, router lost, time over ─▶ gone; an export is cancelled first
//
// Thread safety: none; one thread, the engine thread. Owner: the decode core.
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

  // A sequence to retain.
  struct Entry {
    node::LegKey key;
    v1::Leg leg;
    node::SequenceId sequence;  // owned by RetainedSequences from now on
    engine::SampledToken next;  // follows its tokens; sampled but not yet reported to the router
    absl::Time until;           // released then, unless it is being sent
  };
  // Fails the leg with `retained`. REQUIRES: all tokens of the sequence are computed.
  void Retain(Entry entry);
  // A router's Prefill command. Refuses it unless its prompt equals, token for token, a sequence
  // that is retained here.
  void Send(node::RouterKey router, const v1::Prefill& command, absl::Time now);
  void Abort(node::RouterKey router, const v1::AbortLeg& command);
  void OnRouterLost(node::RouterKey router);
  void OnTick(absl::Time now);
  // Of other exports: no effect.
  void Handle(const transfer::ExportDone& event);
  void Handle(const transfer::ExportFailed& event);

  int64_t exports() const { return static_cast<int64_t>(exports_.size()); }

 private:
  using Retained = std::map<node::LegKey, Entry>;
  struct Export {
    node::LegKey key;
    v1::Leg leg;  // of the Prefill
    std::string trace_id;
    node::SequenceId sequence;
    bool cancelled = false;  // its end is not reported to the router
  };
  using Exports = std::map<transfer::ExportId, Export>;

  // Releases the sequence without a word to its router.
  void Drop(Retained::iterator it);
  void Cancel(Exports::value_type& exported, const std::string& reason);
  absl::Status Check(const Entry& retained, const v1::Prefill& command) const;
  // Opens the export and pushes all of it.
  void Push(const Entry& retained, const v1::Prefill& command, absl::Time deadline);

  node::SequenceScheduler& scheduler_;
  node::NodeLedger& ledger_;
  // Bound: the legs that ran when the migration began.
  Retained retained_;
  Exports exports_;
};

}  // namespace tandem::decode_node
