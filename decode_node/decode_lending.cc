// The parts of DecodeCore (decode_node/decode_core.h) about memory: it hands the lending plane's
// events to the two ends, ends sequences that get no memory, and says how much is in use.
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "decode_node/decode_core.h"

namespace tandem::decode_node {

void DecodeCore::EndStarved(absl::Time now) {
  for (const SequenceId id : borrower_.TakeStarved(now)) {
    const auto found = by_sequence_.find(id);
    if (found == by_sequence_.end()) continue;
    FailAndEnd(
        found->second,
        absl::ResourceExhaustedError(
            "KV pool: the sequence needs more blocks than this node has and other nodes lend"),
        "no memory");
  }
}

void DecodeCore::OnLending(const lending::LendingEvent& event, absl::Time now) {
  if (const auto* returned = std::get_if<lending::LoanReturned>(&event))
    return lender_.Handle(*returned);
  if (const auto* expired = std::get_if<lending::LoanExpired>(&event))
    return lender_.Handle(*expired);
  if (const auto* damaged = std::get_if<lending::LoanDamaged>(&event))
    return lender_.Handle(*damaged);
  if (const auto* lost = std::get_if<lending::LoanLost>(&event))
    return borrower_.Handle(*lost, now);
  borrower_.Handle(std::get<lending::LoanRecalled>(event), now);
}

void DecodeCore::SendBlocks(node::RouterKey router, const v1::SendBlocks& command, absl::Time now) {
  if (command.hashes().empty()) {
    lender_.OnNoHolder(LeaseId(command.lease_id()));
    return borrower_.OnNoHolder(LeaseId(command.lease_id()));
  }
  // What is lent lies in memory.
  if (command.lent() || !stored_blocks_.Hold(router, command, now))
    prefix_fetch_.OnSendBlocks(command, now);
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

v1::NodeLoad DecodeCore::load() const {
  v1::NodeLoad load = node::LoadOf(scheduler_);
  load.set_leases(static_cast<int64_t>(by_lease_.size() + draining_leases_.size()) +
                  prefix_migration_.leases() + lender_.leases() + borrower_.leases());
  stored_blocks_.AddTo(load);
  borrower_.AddTo(load);
  load.set_blocks_lent(lender_.blocks_lent());
  load.set_exports(borrower_.exports() + retained_.exports() + prefix_migration_.exports() +
                   prefix_fetch_.exports());
  return load;
}

}  // namespace tandem::decode_node
