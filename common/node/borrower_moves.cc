// The part of Borrower (common/node/borrower.h) that moves loans: to another creditor when theirs
// wants its memory back, and home; and that sees to sequences which have lost some.
#include <algorithm>
#include <utility>

#include "common/cost/loan_time.h"
#include "common/node/borrower.h"
#include "common/node/lent_units.h"
#include "common/telemetry/log.h"

namespace tandem::node {

bool Borrower::IsLentAs(const Loan& loan, LoanId as) const {
  const Sequence* sequence = scheduler_.Find(loan.sequence);
  if (sequence == nullptr || sequence->phase == SequencePhase::kParked) return false;
  const engine::LentUnits* lent = FindLent(*sequence, as);
  return lent != nullptr && lent->units == loan.units;
}

std::vector<Borrower::LoanView> Borrower::loans() const {
  std::vector<LoanView> views;
  views.reserve(loans_.size());
  for (const auto& [id, loan] : loans_) {
    views.push_back({.id = id,
                     .sequence = loan.sequence,
                     .units = loan.units,
                     .creditor = loan.has_creditor ? &loan.creditor : nullptr,
                     .used = loan.state == State::kUsed});
  }
  return views;
}

// ---- to another creditor

absl::Time Borrower::MoveDeadline(const engine::UnitSpan& units, absl::Time now) const {
  return now + kAnswerTimeMax +
         cost::LoanBytesTime(units.size() * blocks_per_unit() *
                             scheduler_.spec().layout.block_bytes());
}

void Borrower::MoveRecalled(absl::Time now) {
  size_t moving = 0;
  for (const auto& [id, loan] : loans_) moving += loan.replaces.has_value();
  std::vector<LoanId> unmoved;
  for (auto& [id, loan] : loans_) {
    if (!loan.recalled || loan.is_replaced || home_.loan() == id || !IsLentAs(loan, id)) continue;
    unmoved.push_back(id);
  }
  for (const LoanId id : unmoved) {
    Loan& loan = loans_.at(id);
    if (!IsLentAs(loan, id)) continue;  // its sequence has just given up all loans
    const bool may_come = loan.away_until <= now && !loan.of_split;
    if (may_come && BeginHome(id, loan, LowWatermark(), now)) continue;
    if (moving >= kMovesMax) continue;  // later, within the creditor's notice
    ++moving;
    AskForAnother(id, loan, now);
  }
}

void Borrower::AskForAnother(LoanId id, Loan& loan, absl::Time now) {
  if (routers_.empty()) return scheduler_.LoseLoan(loan.sequence, id);
  loan.is_replaced = true;
  Loan next{.sequence = loan.sequence,
            .units = loan.units,
            .deadline = MoveDeadline(loan.units, now),
            .replaces = id,
            .of_split = loan.of_split};
  const LoanId next_id(next_loan_++);
  SendWanted(next_id, next, now);
  loans_.emplace(next_id, std::move(next));
}

void Borrower::Replace(Loans::iterator it) {
  const LoanId from = *it->second.replaces;
  if (!IsLentAs(it->second, from)) return Drop(it, "the sequence has ended or is computed again");
  if (scheduler_.Get(it->second.sequence).in_step) return;
  scheduler_.MoveLoan(it->second.sequence, from, it->first);
  scheduler_.CountLoan(it->second.sequence, it->second.creditor.node.value(),
                       it->second.units.size());
  it->second.state = State::kUsed;
  it->second.replaces.reset();
  ledger_.Lend(lending::ReturnLoan{.loan = from});
  loans_.erase(from);
  v1::NodeCounters& counters = ledger_.counters();
  counters.set_loans_moved(counters.loans_moved() + 1);
}

void Borrower::OnNotReplaced(const Loan& loan) {
  const auto old = loans_.find(*loan.replaces);
  if (old == loans_.end() || !IsLentAs(loan, *loan.replaces)) return;
  Log(LogLevel::kInfo, "no node takes over a recalled loan: its units are computed again",
      {{"loan", old->first.value()}, {"creditor", old->second.creditor.node.value()}});
  scheduler_.LoseLoan(loan.sequence, old->first);
}

// ---- home

namespace {

// One that computes lost units again brings none home meanwhile.
bool IsLastLent(const Sequence& sequence, LoanId loan) {
  const auto& lent = sequence.remote.lent;
  return sequence.rebuild == nullptr && !lent.empty() && lent.back().loan == loan;
}

}  // namespace

bool Borrower::BeginHome(LoanId id, const Loan& loan, int64_t spare, absl::Time now) {
  const Sequence* sequence = scheduler_.Find(loan.sequence);
  const bool is_last = sequence != nullptr && IsLastLent(*sequence, id);
  const bool lends_more = std::any_of(loans_.begin(), loans_.end(), [&](const auto& other) {
    return other.second.sequence == loan.sequence && other.second.state != State::kUsed &&
           !other.second.replaces.has_value();
  });
  const OrdinalSpan ordinals = BlocksOf(loan.units, scheduler_.spec());
  const int64_t count = ordinals.end - ordinals.first;
  if (!is_last || lends_more || !home_.idle() || routers_.empty() ||
      scheduler_.block_counts().available() - count < spare) {
    return false;
  }
  const auto first = sequence->hashes.begin() + ordinals.first;
  home_.Begin(routers_[id.value() % routers_.size()], loan.creditor,
              {.loan = id, .sequence = loan.sequence, .hashes = {first, first + count}}, now);
  return true;
}

// Twice the blocks below which it would ask for a loan stay available, so units do not go to and
// fro.
void Borrower::BringHome(absl::Time now) {
  if (!home_.idle() || loans_.empty() || now - last_change_ < kHomeAfter || now < keep_until_)
    return;
  const int64_t spare = 2 * LowWatermark();
  if (scheduler_.block_counts().available() - blocks_per_unit() < spare) return;
  for (const auto& [id, loan] : loans_) {
    const bool stays =
        loan.state != State::kUsed || loan.is_replaced || loan.away_until > now || loan.of_split;
    if (!stays && IsLentAs(loan, id) && BeginHome(id, loan, spare, now)) return;
  }
}

void Borrower::UseHome(absl::Time now) {
  if (!home_.ready()) return;
  const LoanId id = *home_.loan();
  const auto it = loans_.find(id);
  const Sequence* sequence = it == loans_.end() ? nullptr : scheduler_.Find(it->second.sequence);
  const bool follows = sequence != nullptr && IsLentAs(it->second, id) && IsLastLent(*sequence, id);
  if (!follows) return home_.Drop("the sequence has ended or is computed again");
  if (sequence->in_step) return;
  scheduler_.TakeHome(sequence->id, home_.Take());
  ledger_.Lend(lending::ReturnLoan{.loan = id});
  loans_.erase(it);
  last_change_ = now;
  v1::NodeCounters& counters = ledger_.counters();
  counters.set_loans_home(counters.loans_home() + 1);
}

void Borrower::StayAway(LoanId id) {
  if (const auto it = loans_.find(id); it != loans_.end())
    it->second.away_until = now_ + kHomeAgainAfter;
}

void Borrower::Handle(const transfer::LeaseFailed& event) {
  const std::optional<LoanId> id = home_.loan();
  if (home_.Handle(event)) StayAway(*id);
}

void Borrower::OnNoHolder(LeaseId lease) {
  const std::optional<LoanId> id = home_.loan();
  if (home_.OnNoHolder(lease)) StayAway(*id);
}

// ---- lost units

// Before, only as memory is needed: each loan asks every layer's question.
const Sequence* Borrower::NextRebuilt() const {
  for (const auto& [order, sequence] : scheduler_.running()) {
    const bool waits = sequence->rebuild != nullptr && sequence->remaining() == 0 &&
                       !sequence->rebuild->later.empty();
    if (waits && LendableUnits(*sequence, scheduler_.spec()).size() > 0 && !IsAsked(sequence->id))
      return sequence;
  }
  return nullptr;
}

void Borrower::AskForLost(const Loan& lost, absl::Time now) {
  if (scheduler_.Find(lost.sequence) == nullptr ||
      !scheduler_.AwaitsUnits(lost.sequence, lost.units))
    return;
  const auto asked = std::count_if(loans_.begin(), loans_.end(),
                                   [](const auto& loan) { return loan.second.regains; });
  Loan next{.sequence = lost.sequence,
            .units = lost.units,
            .deadline = MoveDeadline(lost.units, now),
            .creditor = lost.creditor,
            .regains = true};
  if (routers_.empty() || asked >= int64_t{kRegainsMax}) return OnNotRegained(next);
  const LoanId id(next_loan_++);
  SendWanted(id, next, now);
  loans_.emplace(id, std::move(next));
}

bool Borrower::MayRegainSome(const Loan& loan) const {
  const Sequence* sequence = scheduler_.Find(loan.sequence);
  return sequence != nullptr && sequence->rebuild != nullptr && sequence->rebuild->computes;
}

void Borrower::UseRegained(Loans::iterator it) {
  Loan& loan = it->second;
  const Sequence* sequence = scheduler_.Find(loan.sequence);
  if (sequence == nullptr || !scheduler_.AwaitsUnits(loan.sequence, loan.units))
    return Drop(it, "its units were computed, or the sequence has ended or is computed again");
  if (sequence->in_step || sequence->lent_units() < loan.units.first) return;
  scheduler_.RegainUnits(loan.sequence, {.loan = it->first, .units = loan.units});
  scheduler_.CountLoan(loan.sequence, loan.creditor.node.value(), loan.units.size());
  loan.state = State::kUsed;
  loan.regains = false;
  v1::NodeCounters& counters = ledger_.counters();
  counters.set_loans_taken(counters.loans_taken() + 1);
  counters.set_units_regained(counters.units_regained() + loan.units.size());
}

void Borrower::OnNotRegained(const Loan& loan) {
  const Sequence* sequence = scheduler_.Find(loan.sequence);
  if (sequence == nullptr || !scheduler_.AwaitsUnits(loan.sequence, loan.units)) return;
  if (!sequence->rebuild->computes) scheduler_.GiveUpLoans(loan.sequence);
}

void Borrower::EndStalledRebuilds(absl::Time now) {
  // Of any sequence: its blocks make room.
  const bool sends = std::any_of(loans_.begin(), loans_.end(), [](const auto& loan) {
    return loan.second.state == State::kSending || loan.second.state == State::kReady;
  });
  std::map<SequenceId, Reached> rebuilds;
  std::vector<SequenceId> stalled;
  for (const auto& [order, sequence] : scheduler_.running()) {
    if (sequence->rebuild == nullptr) continue;
    const int64_t place = sequence->num_computed + sequence->lent_units();
    const auto before = rebuilds_.find(sequence->id);
    const bool waits = before != rebuilds_.end() && before->second.place == place && !sends &&
                       !sequence->awaits_constraint() && !sequence->reading_back;
    rebuilds[sequence->id] = waits ? before->second : Reached{place, BeginWait(now)};
    if (waits && IsTooLong(before->second.wait, kRebuildStalledMax, now))
      stalled.push_back(sequence->id);
  }
  rebuilds_.swap(rebuilds);
  for (const SequenceId id : stalled) {
    Log(LogLevel::kInfo, "lost units get no memory: their sequence is computed again",
        {{"sequence", id.value()}});
    scheduler_.GiveUpLoans(id);
  }
}

void Borrower::CountLoss(SequenceId id, absl::Time now) {
  const Sequence* sequence = scheduler_.Find(id);
  if (sequence == nullptr) return;
  const int64_t place =
      sequence->rebuild != nullptr ? sequence->rebuild->num_computed : sequence->num_computed;
  Losses& losses = losses_[id];
  if (place > losses.place) losses = {.place = place};
  if (now - losses.counted < kLossesApart) return;
  losses.counted = now;
  ++losses.count;
}

std::vector<SequenceId> Borrower::TakeOftenLost() {
  std::vector<SequenceId> often;
  for (const auto& [id, losses] : losses_)
    if (losses.count >= kLossesMax) often.push_back(id);
  for (const SequenceId id : often) losses_.erase(id);
  return often;
}

// ---- creditors that are late

void Borrower::Handle(const lending::CreditorLate& event, absl::Time now) {
  Avoid(event.creditor.node.value(), now + kAvoidTime);
}

// It may be asked for new loans at once, though it lost others.
void Borrower::Handle(const lending::CreditorAnswers& event) {
  avoid_.erase(event.creditor.node.value());
  for (const auto& [id, loan] : loans_)
    if (loan.has_creditor && loan.creditor.node == event.creditor.node)
      scheduler_.EndAwaitCreditors(loan.sequence);
}

}  // namespace tandem::node
