// The part of Borrower (common/node/borrower.h) about split prompts: which of their units the
// prefill node lends, and how the decode node takes the loans over.
#include <algorithm>
#include <utility>

#include "common/node/borrower.h"
#include "common/node/lent_units.h"
#include "common/telemetry/log.h"

namespace tandem::node {

// ---- on the node that computes the prompt

// Whole groups, and the last units once all are computed: each loan asks every layer's question.
const Sequence* Borrower::NextSplit() const {
  for (const auto& [order, sequence] : scheduler_.running()) {
    if (sequence->generates || IsAsked(sequence->id)) continue;
    const engine::UnitSpan lendable = LendableUnits(*sequence, scheduler_.spec());
    const int32_t group_end = (lendable.first / kUnitsMax + 1) * kUnitsMax;
    const int32_t due = std::min(group_end, sequence->input.split_units);
    if (lendable.size() > 0 && lendable.end >= due) return sequence;
  }
  return nullptr;
}

void Borrower::OnSplitRefused(const Loan& loan) {
  if (++split_refusals_ < kSplitRefusalsMax) return;
  split_refusals_ = 0;
  if (scheduler_.Find(loan.sequence) != nullptr) scheduler_.GiveUpLoans(loan.sequence);
}

std::vector<v1::KvLoan> Borrower::NameLoans(const Sequence& sequence) {
  std::vector<v1::KvLoan> loans;
  for (const engine::LentUnits& lent : sequence.remote.lent) {
    loans_.at(lent.loan).is_named = true;
    const lending::CreditorAddress& creditor = loans_.at(lent.loan).creditor;
    v1::KvLoan& loan = loans.emplace_back();
    loan.set_first_unit(lent.units.first);
    loan.set_units(lent.units.size());
    loan.set_creditor_node_id(creditor.node.value());
    loan.set_creditor_incarnation(creditor.incarnation.value());
  }
  return loans;
}

void Borrower::ReturnSplitLoans(absl::Time now) {
  while (!split_loans_kept_.empty() && split_loans_kept_.front().second <= now) {
    ledger_.Lend(lending::ReturnLoan{.loan = split_loans_kept_.front().first});
    split_loans_kept_.pop_front();
  }
}

// ---- on the node that goes on with it

bool Borrower::TakeOver(SequenceId id, int32_t units, absl::Span<const v1::KvLoan> loans,
                        absl::Time now) {
  int32_t end = 0;
  for (const v1::KvLoan& loan : loans) {
    const bool follows = loan.first_unit() == end && loan.units() >= 1 && loan.units() <= kUnitsMax;
    if (!follows || loan.creditor_node_id().empty()) return false;
    end += loan.units();
    if (end > units) return false;
  }
  if (!enabled_ || routers_.empty() || units == 0 || end != units) return false;
  std::vector<engine::LentUnits> lent;
  for (const v1::KvLoan& from : loans) {
    const engine::UnitSpan taken = {from.first_unit(), from.first_unit() + from.units()};
    Loan loan{.sequence = id,
              .units = taken,
              .deadline = MoveDeadline(taken, now),
              .creditor = {.node = NodeId(from.creditor_node_id()),
                           .incarnation = Incarnation(from.creditor_incarnation())},
              .taken_over = true};
    const LoanId next(next_loan_++);
    SendWanted(next, loan, now);
    lent.push_back({.loan = next, .units = loan.units});
    loans_.emplace(next, std::move(loan));
  }
  scheduler_.AwaitLoans(id, std::move(lent));
  return true;
}

void Borrower::UseTakenOver(Loans::iterator it) {
  Loan& loan = it->second;
  if (!IsLentAs(loan, it->first)) return Drop(it, "the sequence has ended or is computed again");
  loan.state = State::kUsed;
  loan.taken_over = false;
  scheduler_.CountLoan(loan.sequence, loan.creditor.node.value(), loan.units.size());
  v1::NodeCounters& counters = ledger_.counters();
  counters.set_loans_taken(counters.loans_taken() + 1);
  counters.set_loans_taken_over(counters.loans_taken_over() + 1);
  const bool waits = std::any_of(loans_.begin(), loans_.end(), [&](const auto& other) {
    return other.second.sequence == loan.sequence && other.second.taken_over;
  });
  if (!waits) scheduler_.EndAwaitLoans(loan.sequence);
}

void Borrower::OnNotTakenOver(const Loan& loan, LoanId id) {
  const Sequence* sequence = scheduler_.Find(loan.sequence);
  if (sequence == nullptr || !sequence->awaits_loans || !IsLentAs(loan, id)) return;
  Log(LogLevel::kInfo, "a prompt's loan was not taken over: the sequence is computed again",
      {{"loan", id.value()}, {"creditor", loan.creditor.node.value()}});
  scheduler_.GiveUpLoans(loan.sequence);
}

}  // namespace tandem::node
