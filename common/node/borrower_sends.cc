// The part of Borrower (common/node/borrower.h) that sends a loan's blocks to its creditor.
#include <algorithm>
#include <utility>

#include "common/node/borrower.h"
#include "common/node/lent_units.h"

namespace tandem::node {

void Borrower::Send(LoanId id, Loan& loan, const v1::LoanAnswer& answer, absl::Time now) {
  const OrdinalSpan ordinals = BlocksOf(loan.units, scheduler_.spec());
  const int64_t count = ordinals.end - ordinals.first;
  const int64_t held = std::clamp<int64_t>(answer.held_blocks(), 0, count);
  const Sequence* sequence = scheduler_.Find(loan.sequence);
  const bool still_here = sequence != nullptr && CanLend(*sequence, loan.units);
  if (!still_here) return Drop(loans_.find(id), "the sequence has ended or is computed again");
  loan.deadline = now + kSendTimeMax;
  if (held == count) {
    loan.state = State::kReady;
    return;
  }
  const auto hashes =
      absl::MakeConstSpan(sequence->hashes)
          .subspan(static_cast<size_t>(ordinals.first + held), static_cast<size_t>(count - held));
  // A block whose hash another block has, or took, is not sealed. That other may be gone.
  for (auto i = static_cast<size_t>(ordinals.first + held); i < static_cast<size_t>(ordinals.end);
       ++i)
    scheduler_.pool().SealAgain(sequence->blocks[i], sequence->hashes[i],
                                kv::ParentOf(sequence->hashes, i));
  loan.pinned = scheduler_.pool().MatchBlocks(hashes);
  if (loan.pinned.size() != hashes.size()) return OnWithdrawn(loans_.find(id), now);
  loan.state = State::kSending;
  loan.export_id = ledger_.NewExport();
  by_export_.emplace(loan.export_id, id);
  ledger_.Transfer(
      transfer::OpenExport{.export_id = loan.export_id,
                           .peer = {.node = loan.creditor.node,
                                    .incarnation = loan.creditor.incarnation,
                                    .transport_address = answer.creditor_address(),
                                    .host = answer.creditor_host()},
                           .lease = LeaseId(answer.lease_id()),
                           .epoch = Epoch(answer.epoch()),
                           .blocks = loan.pinned,
                           .deadline = loan.deadline,
                           .window_first_ordinal = static_cast<int32_t>(loan.pinned.size())});
  PushSome(loan);
}

// A block turned out to be damaged, and has been forgotten. It can never be lent.
void Borrower::OnWithdrawn(Loans::iterator it, absl::Time now) {
  const SequenceId sequence = it->second.sequence;
  Unpin(it->second);
  Drop(it, "a block was withdrawn");
  ask_after_ = now + kAfterRefusal;
  scheduler_.GiveUpLoans(sequence);
}

bool Borrower::SharesSteps(const Loan& loan) const {
  const Sequence* sequence = scheduler_.Find(loan.sequence);
  return sequence == nullptr || sequence->remaining() > 0;
}

int32_t Borrower::BlocksBeforeStep(absl::Time now) const {
  const double step_us = scheduler_.meter().PredictLastUs();
  MovingPace::Room room = SendingRoom();
  for (const auto& [id, loan] : loans_) {
    if (loan.state != State::kSending || !SharesSteps(loan)) continue;
    room.due += MovingPace::BlocksToFinish(static_cast<int64_t>(loan.pinned.size()) - loan.pushed,
                                           loan.deadline - kSendTimeLeft - now, step_us);
  }
  return pace_.BlocksBeforeStep(step_us, scheduler_.spec().layout.block_bytes(), room);
}

MovingPace::Room Borrower::SendingRoom() const {
  MovingPace::Room room{.available = scheduler_.block_counts().available(),
                        .sequences = scheduler_.running_count(),
                        .block_tokens = scheduler_.spec().layout.block_tokens};
  for (const auto& [id, loan] : loans_)
    if (loan.state == State::kSending && SharesSteps(loan))
      room.unsent += static_cast<int64_t>(loan.pinned.size()) - loan.pushed;
  return room;
}

int32_t Borrower::UnitsInTime(const Sequence& sequence, int32_t units) const {
  units = std::min(units, sent_units_max_);
  if (sequence.remaining() == 0) return units;
  MovingPace::Room room = SendingRoom();
  const int64_t before = room.unsent;
  for (; units > 1; --units) {
    room.unsent = before + units * blocks_per_unit();
    if (pace_.SendsWithin(kSendTimeAimed, scheduler_.meter().PredictLastUs(),
                          scheduler_.spec().layout.block_bytes(), room))
      break;
  }
  return units;
}

// A part of the blocks at a time: the copies share the machine with the steps.
void Borrower::PushSome(Loan& loan) {
  const auto count = static_cast<int32_t>(loan.pinned.size());
  if (loan.state != State::kSending || loan.pushed == count) return;
  const bool steps = SharesSteps(loan);
  const int32_t part = std::min(steps ? step_blocks_ : count, count - loan.pushed);
  if (part == 0) return;
  step_blocks_ -= steps ? part : 0;
  ledger_.Transfer(transfer::PushRange{.export_id = loan.export_id,
                                       .first_ordinal = loan.pushed,
                                       .ordinal_count = part,
                                       .first_layer = 0,
                                       .layer_count = scheduler_.spec().layout.num_layers});
  loan.pushed += part;
  if (loan.pushed < count) return;
  // These blocks are no prompt's, so there is no first token.
  ledger_.Transfer(
      transfer::FinishExport{.export_id = loan.export_id, .first_token = {}, .tokens = {}});
}

void Borrower::Unpin(Loan& loan) {
  for (auto block = loan.pinned.rbegin(); block != loan.pinned.rend(); ++block)
    scheduler_.pool().Unref(*block);
  loan.pinned.clear();
}

void Borrower::Handle(const transfer::ExportDone& event) {
  const auto found = by_export_.find(event.export_id);
  if (found == by_export_.end()) return;
  ledger_.counters().set_kv_bytes_sent(ledger_.counters().kv_bytes_sent() + event.bytes_sent);
  pace_.Observe(event.bytes_sent, event.processor_time);
  if (const auto it = loans_.find(found->second); it != loans_.end()) {
    const lending::CreditorAddress& creditor = it->second.creditor;
    costs_.OnSent({creditor.node, creditor.incarnation}, event.last_stretch_bytes,
                  event.last_stretch);
    Unpin(it->second);
    it->second.state = State::kReady;
  }
  for (const BlockId block : cancelled_[event.export_id]) scheduler_.pool().Unref(block);
  cancelled_.erase(event.export_id);
  by_export_.erase(found);
}

void Borrower::Handle(const transfer::ExportFailed& event, absl::Time now) {
  const auto found = by_export_.find(event.export_id);
  if (found == by_export_.end()) return;
  for (const BlockId block : cancelled_[event.export_id]) scheduler_.pool().Unref(block);
  cancelled_.erase(event.export_id);
  const auto it = loans_.find(found->second);
  by_export_.erase(found);
  if (it == loans_.end()) return;
  Unpin(it->second);
  Avoid(it->second.creditor.node.value(), now + kAvoidTime);
  it->second.state = State::kReady;  // nothing is in flight
  Drop(it, event.status.ToString());
}

}  // namespace tandem::node
