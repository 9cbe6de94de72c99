// The parts of DecodeCore (decode_node/decode_core.h) about memory: which part of a prompt it holds
// itself, which sequences wait or end because they get none, and how much is in use.
#include <cstdint>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/request/split_prompt.h"
#include "common/telemetry/log.h"
#include "decode_node/decode_core.h"

namespace tandem::decode_node {

bool DecodeCore::CanReceive(Leg& leg, int64_t prefill_blocks) {
  const node::Sequence& sequence = scheduler_.Get(leg.sequence);
  const int64_t pool = scheduler_.block_counts().total;
  const int64_t blocks = scheduler_.spec().layout.BlocksFor(sequence.prompt_tokens);
  const bool beyond_sender = prefill_blocks > 0 && blocks > prefill_blocks;
  if (!sequence.grows && !beyond_sender) return true;
  if (prefill_blocks <= 0 || sequence.input.forks_follow) return !sequence.grows;
  const int64_t kept =
      request::SplitBlocksMax({pool, sequence.grows}, {prefill_blocks, beyond_sender});
  leg.lent_units = scheduler_.HoldEndOnly(leg.sequence, kept);
  return leg.lent_units > 0;
}

void DecodeCore::EndStarved(absl::Time now) {
  const auto end = [this](SequenceId id, const std::string& why) {
    const auto found = by_sequence_.find(id);
    if (found == by_sequence_.end()) return;
    FailAndEnd(found->second, absl::ResourceExhaustedError(absl::StrCat("KV pool: ", why)),
               "no memory");
  };
  node::Borrower& borrower = resources_.borrower();
  for (const SequenceId id : borrower.TakeStarved(now))
    end(id, "the sequence needs more blocks than this node has and other nodes lend");
  for (const SequenceId id : borrower.TakeOftenLost()) {
    end(id, absl::StrCat("the sequence lost what other nodes lent it ", node::Borrower::kLossesMax,
                         " times, and got no further meanwhile"));
  }
}

void DecodeCore::ReportWaiting(absl::Time now) {
  if (now < next_waiting_report_) return;
  next_waiting_report_ = now + kWaitingInterval;
  for (const auto& [key, leg] : legs_)
    if (leg.phase == Phase::kGenerating && scheduler_.Get(leg.sequence).makes_no_token())
      ledger_.AddWaiting(key.router, leg.wire);
  ledger_.SendTokens();
}

void DecodeCore::RefuseForSlots(Legs::iterator leg) {
  const kv::WindowSlots::Counts slots = scheduler_.pool().slot_counts();
  ledger_.Refuse(leg->first.router, leg->second.wire,
                 absl::ResourceExhaustedError(
                     absl::StrCat("KV pool: the prompt's windowed layers need slots, ",
                                  slots.available(), " of ", slots.total, " are available")),
                 leg->second.trace_id);
  leg->second.phase = Phase::kComputing;  // no lease
  End(leg, "no window slots");
}

void DecodeCore::LogLentUse(const Leg& leg) const {
  const node::Sequence& sequence = scheduler_.Get(leg.sequence);
  const node::LentUse& use = sequence.lent_use;
  if (use.units_max == 0) return;
  Log(LogLevel::kInfo, "a sequence ended that had lent KV",
      {{"request_id", leg.wire.request_id()},
       {"trace_id", leg.trace_id},
       {"tokens", std::ssize(sequence.tokens)},
       {"lent_tokens_max", int64_t{use.units_max} * scheduler_.spec().unit_tokens},
       {"locality", absl::StrFormat("%.3f", use.locality())},
       {"lent_steps", use.steps},
       {"creditors_awaited_ms", absl::ToDoubleMilliseconds(use.waited)}});
}

void DecodeCore::AddLentUse(const Leg& leg, v1::LegFinished& finished) const {
  const node::LentUse& use = scheduler_.Get(leg.sequence).lent_use;
  if (!LentSome(leg)) return;
  const engine::EngineSpec& spec = scheduler_.spec();
  v1::LentUse& wire = *finished.mutable_lent();
  for (const auto& [node, lent] : use.creditors) {
    v1::LentUse::Creditor& creditor = *wire.add_creditors();
    creditor.set_node_id(node);
    creditor.set_loans(lent.loans);
    creditor.set_blocks(lent.units * spec.unit_tokens / spec.layout.block_tokens);
  }
  wire.set_tokens_max(int64_t{use.units_max} * spec.unit_tokens);
  wire.set_steps(use.steps);
  wire.set_awaited_ms(absl::ToDoubleMilliseconds(use.waited));
  wire.set_locality(use.locality());
}

v1::NodeLoad DecodeCore::load() const {
  v1::NodeLoad load = resources_.load();
  load.set_leases(load.leases() + own_leases());
  load.set_exports(load.exports() + retained_.exports());
  return load;
}

}  // namespace tandem::decode_node
