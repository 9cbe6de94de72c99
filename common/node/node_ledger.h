// What both kinds of core keep beside their legs: the actions that TakeActions will return, the
// counters, the next lease and export ids, and whether the node drains.
// Thread safety: none; one thread, the engine thread. Owner: NodeResources.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/node/node_core.h"
#include "common/node/sequence_scheduler.h"
#include "common/storage/store_tier.h"

namespace tandem::node {

// A leg's name without its attempt: one router's one sequence. The number tells apart the requests
// that used one id after another.
struct LegKey {
  RouterKey router;
  uint64_t number = 0;
  std::string request_id;
  int32_t sequence_index = 0;

  LegKey(RouterKey from, const v1::Leg& leg)
      : router(from),
        number(leg.number()),
        request_id(leg.request_id()),
        sequence_index(leg.sequence_index()) {}
  friend bool operator<(const LegKey& a, const LegKey& b) {
    return std::tie(a.router, a.number, a.request_id, a.sequence_index) <
           std::tie(b.router, b.number, b.request_id, b.sequence_index);
  }
};

// A deadline as routers give it: seconds from now. kInvalidArgument unless it is positive.
absl::StatusOr<absl::Duration> ParseDeadline(double seconds);

// Blocks that lie in this tier of the node's storage, and in nothing faster.
v1::NodeEvent StoredEvent(storage::StoreTier tier, absl::Span<const kv::BlockHash> hashes);
v1::NodeEvent FailedEvent(const v1::Leg& leg, const absl::Status& status, bool sender_side);

// Appends a leg's next token to `tokens`, in the most compact form that its router can read.
void AddToken(const v1::Leg& leg, v1::GeneratedToken token, v1::TokensGenerated& tokens);

class NodeLedger {
 public:
  // Appends an event for one router; a router's events reach it in the order of these calls. Take
  // returns it even if the router is gone by then.
  void Send(RouterKey router, v1::NodeEvent&& event);
  // The tokens of one engine step are one event for each router: AddToken adds a leg's next token,
  // SendTokens sends all that were added. ExpectTokens says how many these are at most, so that the
  // event's lists get their memory once.
  void ExpectTokens(int count) { tokens_expected_ = count; }
  void AddToken(RouterKey router, const v1::Leg& leg, const engine::SampledToken& token,
                int32_t index);
  // Adds a leg whose sequence waits, without a token: its router then knows that the node serves
  // it.
  void AddWaiting(RouterKey router, const v1::Leg& leg);
  void SendTokens();
  // As NodeResources::Recycle.
  void Recycle(v1::NodeEvent&& event);
  // The prompt log-probabilities that a step computed for a leg. REQUIRES: sent before the leg's
  // tokens.
  void SendScores(RouterKey router, const v1::Leg& leg, const StepOutcome& outcome);
  // These write a log line with the request's id and `trace_id` (from the leg's command), so that
  // it can be found together with the router's log lines. LegTaken only logs.
  void LegTaken(const v1::Leg& leg, absl::string_view trace_id);
  void Refuse(RouterKey router, const v1::Leg& leg, const absl::Status& status,
              absl::string_view trace_id = "");
  void FailLeg(RouterKey router, const v1::Leg& leg, const absl::Status& status, bool sender_side,
               absl::string_view trace_id = "");
  // As FailLeg, for a request that no node can continue: the router ends it with this status.
  void FailRequest(RouterKey router, const v1::Leg& leg, const absl::Status& status,
                   absl::string_view trace_id = "");
  // Appends a command for the KV plane, which carries out all of them in the order of these calls.
  void Transfer(transfer::TransferCommand command);
  void Lend(lending::LendingCommand command) { actions_.lending.push_back(std::move(command)); }
  // Those that Take has yet to return; for checkers.
  const std::vector<lending::LendingCommand>& lending_untaken() const { return actions_.lending; }
  void Store(storage::StorageCommand command) { actions_.storage.push_back(std::move(command)); }
  // Ids that this node has not used before.
  LeaseId NewLease() { return LeaseId(next_lease_++); }
  transfer::ExportId NewExport() { return transfer::ExportId(next_export_++); }
  // Tells all routers, once, that the node takes no new work.
  void BeginDrain();
  bool draining() const { return draining_; }

  // Counts a prompt whose KV is complete.
  void CountPrompt(const v1::TokensBySource& tokens);
  v1::NodeCounters& counters() { return counters_; }
  // The counters, with those of the scheduler added.
  v1::NodeCounters CountersWith(const SequenceScheduler& scheduler) const;

  // All actions since the last call, with events for the blocks that came and went meanwhile:
  // `memory`, and blocks that from now on lie in storage only, by the fastest tier. Takes the
  // memory of `actions`.
  void Take(const kv::BlockEvents& memory,
            const storage::PerTier<std::vector<kv::BlockHash>>& stored_only, NodeActions& actions);
  // The same when no block came or went.
  void Take(NodeActions& actions) {
    actions.clear();
    if (!actions_.empty()) actions.swap(actions_);
  }

 private:
  // Spare events: a step needs one for each router, and some are on their way.
  static constexpr size_t kSpareMax = 16;

  // Those that SendTokens will send to the router.
  v1::TokensGenerated& TokensFor(RouterKey router);
  // Makes room for the tokens that are expected.
  void Reserve(v1::TokensGenerated::Plain& plain) const;

  NodeActions actions_;
  int tokens_expected_ = 0;
  // Bound: one for each router.
  std::vector<std::pair<RouterKey, v1::NodeEvent>> tokens_;
  // Without tokens, but with the memory of lists. Bound: kSpareMax.
  std::vector<v1::NodeEvent> spare_;
  v1::NodeCounters counters_;
  bool draining_ = false;
  uint64_t next_lease_ = 1, next_export_ = 1;
};

// The pool's blocks as a load report counts them.
kv::BlockPool::Counts ReportedBlocks(const SequenceScheduler& scheduler);

// The scheduler's part of a load report.
v1::NodeLoad LoadOf(const SequenceScheduler& scheduler);

}  // namespace tandem::node
