#include "common/node/node_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "common/telemetry/log.h"

namespace tandem::node {

absl::StatusOr<absl::Duration> ParseDeadline(double seconds) {
  if (!(seconds > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("deadline_s: ", seconds, ", expected seconds > 0"));
  }
  return absl::Seconds(seconds);
}

v1::NodeEvent FailedEvent(const v1::Leg& leg, const absl::Status& status, bool sender_side) {
  v1::NodeEvent event;
  v1::LegFailed& failed = *event.mutable_leg_failed();
  *failed.mutable_leg() = leg;
  *failed.mutable_status() = rpc::ToWire(status);
  failed.set_sender_side(sender_side);
  return event;
}

void AddToken(const v1::Leg& leg, v1::GeneratedToken token, v1::TokensGenerated& tokens) {
  if (leg.number() != 0 && token.top_logprobs().empty()) {
    v1::TokensGenerated::Plain& plain = *tokens.mutable_plain();
    plain.add_leg_numbers(leg.number());
    plain.add_leg_attempts(leg.attempt());
    plain.add_token_ids(token.token_id());
    plain.add_indices(token.index());
    plain.add_logprobs(token.logprob());
    return;
  }
  v1::TokensGenerated::Step& step = *tokens.add_steps();
  *step.mutable_leg() = leg;
  *step.add_tokens() = std::move(token);
}

void NodeLedger::Send(RouterKey router, v1::NodeEvent&& event) {
  actions_.events.emplace_back(router, std::move(event));
}

void NodeLedger::Reserve(v1::TokensGenerated::Plain& plain) const {
  if (plain.token_ids().Capacity() >= tokens_expected_) return;
  plain.mutable_leg_numbers()->Reserve(tokens_expected_);
  plain.mutable_leg_attempts()->Reserve(tokens_expected_);
  plain.mutable_token_ids()->Reserve(tokens_expected_);
  plain.mutable_indices()->Reserve(tokens_expected_);
  plain.mutable_logprobs()->Reserve(tokens_expected_);
}

v1::TokensGenerated& NodeLedger::TokensFor(RouterKey router) {
  auto it = std::find_if(tokens_.begin(), tokens_.end(),
                         [router](const auto& entry) { return entry.first == router; });
  if (it == tokens_.end()) {
    if (spare_.empty()) spare_.emplace_back();
    it = tokens_.emplace(tokens_.end(), router, std::move(spare_.back()));
    spare_.pop_back();
  }
  return *it->second.mutable_tokens();
}

void NodeLedger::AddToken(RouterKey router, const v1::Leg& leg, const engine::SampledToken& token,
                          int32_t index) {
  v1::TokensGenerated& tokens = TokensFor(router);
  if (leg.number() == 0 || !token.top_logprobs.empty())
    return node::AddToken(leg, ToWire(token, index), tokens);
  v1::TokensGenerated::Plain& plain = *tokens.mutable_plain();
  Reserve(plain);
  plain.add_leg_numbers(leg.number());
  plain.add_leg_attempts(leg.attempt());
  plain.add_token_ids(token.token);
  plain.add_indices(index);
  plain.add_logprobs(token.logprob);
}

void NodeLedger::AddWaiting(RouterKey router, const v1::Leg& leg) {
  *TokensFor(router).add_steps()->mutable_leg() = leg;
}

void NodeLedger::SendTokens() {
  for (auto& [router, event] : tokens_) Send(router, std::move(event));
  tokens_.clear();
}

void NodeLedger::Recycle(v1::NodeEvent&& event) {
  if (!event.has_tokens() || spare_.size() >= kSpareMax) return;
  v1::TokensGenerated& tokens = *event.mutable_tokens();
  tokens.clear_steps();
  v1::TokensGenerated::Plain& plain = *tokens.mutable_plain();
  plain.clear_leg_numbers();
  plain.clear_leg_attempts();
  plain.clear_token_ids();
  plain.clear_indices();
  plain.clear_logprobs();
  spare_.push_back(std::move(event));
}

void NodeLedger::SendScores(RouterKey router, const v1::Leg& leg, const StepOutcome& outcome) {
  if (outcome.prompt_scores.empty()) return;
  v1::NodeEvent event;
  v1::PromptScored& scored = *event.mutable_prompt_scored();
  *scored.mutable_leg() = leg;
  scored.set_first_index(static_cast<int32_t>(outcome.first_scored));
  for (const engine::SampledToken& token : outcome.prompt_scores)
    *scored.add_tokens() = ToWire(token, 0);
  Send(router, std::move(event));
}

void NodeLedger::LegTaken(const v1::Leg& leg, absl::string_view trace_id) {
  Log(LogLevel::kDebug, "took a leg",
      {{"request_id", leg.request_id()},
       {trace_id.empty() ? "" : "trace_id", trace_id},
       {"sequence", leg.sequence_index()},
       {"attempt", leg.attempt()}});
}

void NodeLedger::Refuse(RouterKey router, const v1::Leg& leg, const absl::Status& status,
                        absl::string_view trace_id) {
  Log(LogLevel::kDebug, "refused a leg",
      {{"request_id", leg.request_id()},
       {trace_id.empty() ? "" : "trace_id", trace_id},
       {"sequence", leg.sequence_index()},
       {"attempt", leg.attempt()},
       {"why", status.ToString()}});
  v1::NodeEvent event;
  *event.mutable_refused()->mutable_leg() = leg;
  *event.mutable_refused()->mutable_status() = rpc::ToWire(status);
  Send(router, std::move(event));
}

void NodeLedger::FailLeg(RouterKey router, const v1::Leg& leg, const absl::Status& status,
                         bool sender_side, absl::string_view trace_id) {
  Log(LogLevel::kWarning, "a leg failed",
      {{"request_id", leg.request_id()},
       {trace_id.empty() ? "" : "trace_id", trace_id},
       {"sequence", leg.sequence_index()},
       {"attempt", leg.attempt()},
       {"why", status.ToString()}});
  Send(router, FailedEvent(leg, status, sender_side));
}

void NodeLedger::FailRequest(RouterKey router, const v1::Leg& leg, const absl::Status& status,
                             absl::string_view trace_id) {
  FailLeg(router, leg, status, /*sender_side=*/false, trace_id);
  actions_.events.back().second.mutable_leg_failed()->set_request_at_fault(true);
}

void NodeLedger::Transfer(transfer::TransferCommand command) {
  actions_.transfer.push_back(std::move(command));
}

void NodeLedger::BeginDrain() {
  if (draining_) return;
  draining_ = true;
  v1::NodeEvent event;
  event.mutable_draining();
  actions_.broadcast.push_back(std::move(event));
}

void NodeLedger::CountPrompt(const v1::TokensBySource& tokens) {
  v1::TokensBySource& sum = *counters_.mutable_prompt_tokens();
  sum.set_computed(sum.computed() + tokens.computed());
  sum.set_received(sum.received() + tokens.received());
  sum.set_cached(sum.cached() + tokens.cached());
  sum.set_from_host_memory(sum.from_host_memory() + tokens.from_host_memory());
  sum.set_from_disk(sum.from_disk() + tokens.from_disk());
  sum.set_fetched(sum.fetched() + tokens.fetched());
  counters_.set_prompt_tokens_total(counters_.prompt_tokens_total() + tokens.computed() +
                                    tokens.received() + tokens.cached());
}

v1::NodeEvent StoredEvent(storage::StoreTier tier, absl::Span<const kv::BlockHash> hashes) {
  v1::NodeEvent event;
  v1::BlocksStored& stored = *event.mutable_blocks_stored();
  stored.set_hashes(kv::PackHashes(hashes));
  stored.set_on_disk(true);
  stored.set_in_host_memory(tier == storage::StoreTier::kHost);
  return event;
}

v1::NodeCounters NodeLedger::CountersWith(const SequenceScheduler& scheduler) const {
  v1::NodeCounters counters = counters_;
  counters.set_preemptions(scheduler.preemption_count());
  counters.set_loans_lost(scheduler.recomputed_for_loans());
  counters.set_sequences_held_back(scheduler.held_back_count());
  counters.set_sequences_postponed(scheduler.postponed());
  return counters;
}

void NodeLedger::Take(const kv::BlockEvents& memory,
                      const storage::PerTier<std::vector<kv::BlockHash>>& stored_only,
                      NodeActions& actions) {
  if (!memory.removed.empty()) {
    v1::NodeEvent event;
    event.mutable_blocks_removed()->set_hashes(kv::PackHashes(memory.removed));
    actions_.broadcast.push_back(std::move(event));
  }
  for (const storage::StoreTier tier : storage::kStoreTiers) {
    if (stored_only[tier].empty()) continue;
    actions_.broadcast.push_back(StoredEvent(tier, stored_only[tier]));
  }
  if (!memory.stored.empty()) {
    v1::NodeEvent event;
    event.mutable_blocks_stored()->set_hashes(kv::PackHashes(memory.stored));
    actions_.broadcast.push_back(std::move(event));
  }
  Take(actions);
}

kv::BlockPool::Counts ReportedBlocks(const SequenceScheduler& scheduler) {
  kv::BlockPool::Counts counts = scheduler.block_counts();
  if (const auto room = scheduler.RoomForOne(); room < counts.free + counts.cached) {
    // Blocks for which there are no window slots are of no use to a sequence that would join.
    counts.used += counts.free + counts.cached - room;
    counts.free = std::min(counts.free, room);
    counts.cached = room - counts.free;
  }
  return counts;
}

v1::NodeLoad LoadOf(const SequenceScheduler& scheduler) {
  const kv::BlockPool::Counts counts = ReportedBlocks(scheduler);
  v1::NodeLoad load;
  load.set_blocks_total(counts.total);
  load.set_blocks_free(counts.free);
  load.set_blocks_cached(counts.cached);
  load.set_blocks_used(counts.used);
  load.set_blocks_quarantined(counts.quarantined);
  load.set_sequences_running(scheduler.running_count());
  load.set_sequences_waiting(scheduler.waiting_count());
  load.set_prefill_tokens_waiting(scheduler.prefill_tokens_waiting());
  return load;
}

}  // namespace tandem::node
