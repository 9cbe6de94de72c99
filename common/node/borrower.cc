#include "common/node/borrower.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutation.h"
#include "common/node/lent_units.h"
#include "common/rpc/convert.h"
#include "common/telemetry/log.h"

namespace tandem::node {

void Borrower::OnRouterLost(RouterKey router) {
  routers_.erase(std::remove(routers_.begin(), routers_.end(), router), routers_.end());
}

// Not one that was parked meanwhile: another node gets its blocks.
bool Borrower::CanLend(const Sequence& sequence, const engine::UnitSpan& units) const {
  return sequence.phase == SequencePhase::kRunning && !sequence.blocks.empty() &&
         sequence.lent_units() == units.first &&
         LendableUnits(sequence, scheduler_.spec()).end >= units.end;
}

// ---- asking

int64_t Borrower::LowWatermark() const {
  const int64_t total = scheduler_.block_counts().total;
  int64_t low = std::max(scheduler_.running_count() + 2, total / 16);
  for (const auto& [order, sequence] : scheduler_.running())
    if ((sequence->grows || sequence->rebuild != nullptr) && sequence->remaining() > 1)
      low = std::max(low, total / 4);
  return std::min(low, total / 2);
}

bool Borrower::IsAsked(SequenceId sequence) const {
  return std::any_of(loans_.begin(), loans_.end(), [&](const auto& loan) {
    return loan.second.sequence == sequence && loan.second.state != State::kUsed &&
           !loan.second.replaces.has_value() && !loan.second.regains;
  });
}

const Sequence* Borrower::Richest() const {
  const Sequence* best = nullptr;
  int32_t most = 0;
  for (const auto& [order, sequence] : scheduler_.running()) {
    const int32_t units = LendableUnits(*sequence, scheduler_.spec()).size();
    if (units <= most || home_.IsOf(sequence->id) || IsAsked(sequence->id)) continue;
    most = units;
    best = sequence;
  }
  return best;
}

void Borrower::Ask(absl::Time now) {
  const int64_t low = LowWatermark();
  int64_t available = scheduler_.block_counts().available();
  size_t unused = 0;
  for (const auto& [id, loan] : loans_) {
    const bool makes_room = !loan.replaces.has_value() && !loan.taken_over && !loan.regains;
    if (loan.state == State::kUsed || !makes_room) continue;
    ++unused;
    available += loan.units.size() * blocks_per_unit();
  }
  const int64_t planned = PlannedUnits(now);
  const bool needed = available < low;
  if (unused >= kUnusedMax || routers_.empty() || now < ask_after_) return;
  const Sequence* const split = NextSplit();
  const Sequence* sequence = split != nullptr ? split : NextRebuilt();
  const bool all = sequence != nullptr;
  if (sequence == nullptr && (needed || planned > 0)) sequence = Richest();
  if (sequence == nullptr) return;
  const engine::UnitSpan lendable = LendableUnits(*sequence, scheduler_.spec());
  const int64_t lacking = (2 * low - available + blocks_per_unit() - 1) / blocks_per_unit();
  const int64_t wanted = all ? int64_t{kUnitsMax} : std::max(planned, needed ? lacking : 0);
  const int32_t group_end = (lendable.first / kUnitsMax + 1) * kUnitsMax;
  const int32_t end =
      std::min({lendable.end, group_end, static_cast<int32_t>(lendable.first + wanted)});
  Loan loan{
      .sequence = sequence->id,
      .units = {lendable.first, lendable.first + UnitsInTime(*sequence, end - lendable.first)},
      .deadline = now + kAnswerTimeMax,
      .planned = planned > 0 && !all,
      .is_needed = needed || all,
      .of_split = !sequence->generates};
  if (loan.planned) plan_.units -= std::min<int64_t>(planned, loan.units.size());
  const LoanId id(next_loan_++);
  SendWanted(id, loan, now);
  loans_.emplace(id, std::move(loan));
}

void Borrower::OnPlan(const v1::BorrowBlocks& plan, absl::Time now) {
  const int64_t blocks = std::clamp<int64_t>(plan.blocks(), 0, scheduler_.block_counts().total);
  const bool lends = enabled_ && scheduler_.spec().unit_tokens > 0;
  plan_ = {.units = lends ? blocks / blocks_per_unit() : 0,
           .creditor = plan.creditor_node_id(),
           .until = now + kPlanTimeMax};
}

int64_t Borrower::PlannedUnits(absl::Time now) const { return now < plan_.until ? plan_.units : 0; }

int64_t Borrower::blocks_lendable() const {
  if (!enabled_ || scheduler_.spec().unit_tokens == 0) return 0;
  int64_t units = 0;
  for (const auto& [order, sequence] : scheduler_.running())
    units += LendableUnits(*sequence, scheduler_.spec()).size();
  return units * blocks_per_unit();
}

void Borrower::SendWanted(LoanId id, const Loan& loan, absl::Time now) {
  const Sequence& sequence = scheduler_.Get(loan.sequence);
  const OrdinalSpan blocks = BlocksOf(loan.units, scheduler_.spec());
  const auto hashes = absl::MakeConstSpan(sequence.hashes)
                          .subspan(static_cast<size_t>(blocks.first),
                                   static_cast<size_t>(blocks.end - blocks.first));
  v1::NodeEvent event;
  v1::LoanWanted& ask = *event.mutable_loan_wanted();
  ask.set_loan(id.value());
  ask.set_first_unit(loan.units.first);
  ask.set_units(loan.units.size());
  ask.set_hashes(kv::PackHashes(hashes));
  // Without an age: no other node's sequence has to make room for it.
  ask.set_arrived_us(loan.is_needed ? sequence.input.arrived_us : 0);
  if (loan.planned) ask.set_prefer_node_id(plan_.creditor);
  if (!sequence.input.split_receiver.empty()) ask.add_avoid_node_ids(sequence.input.split_receiver);
  std::erase_if(avoid_, [now](const auto& avoided) { return avoided.second <= now; });
  for (const auto& [node, until] : avoid_) ask.add_avoid_node_ids(node);
  if (loan.taken_over) ask.set_prefer_node_id(loan.creditor.node.value());
  ask.set_lost(loan.regains);
  if (loan.replaces.has_value() || loan.taken_over || loan.regains) {
    const lending::CreditorAddress& from =
        loan.replaces.has_value() ? loans_.at(*loan.replaces).creditor : loan.creditor;
    ask.set_from_node_id(from.node.value());
    ask.set_from_incarnation(from.incarnation.value());
  }
  ledger_.Send(routers_[id.value() % routers_.size()], std::move(event));
}

void Borrower::OnAnswer(const v1::LoanAnswer& answer, absl::Time now) {
  const auto it = loans_.find(LoanId(answer.loan()));
  if (it == loans_.end() || it->second.state != State::kAsked) return;
  const absl::Status status = rpc::FromWire(answer.status());
  if (!status.ok()) {
    const Loan refused = std::move(it->second);
    loans_.erase(it);
    if (refused.replaces.has_value()) return OnNotReplaced(refused);
    if (refused.taken_over) return OnNotTakenOver(refused, LoanId(answer.loan()));
    if (refused.regains) return OnNotRegained(refused);
    if (refused.planned) plan_ = {};  // the router plans again
    if (refused.of_split) OnSplitRefused(refused);
    ask_after_ = now + kAfterRefusal;
    return;
  }
  Loan& loan = it->second;
  loan.creditor = {.node = NodeId(answer.creditor_node_id()),
                   .incarnation = Incarnation(answer.creditor_incarnation()),
                   .host = answer.creditor_host(),
                   .lending_address = answer.lending_address()};
  loan.has_creditor = true;
  if (loan.of_split) split_refusals_ = 0;
  ledger_.Lend(lending::UseLoan{.loan = it->first, .creditor = loan.creditor});
  const int32_t granted = std::clamp(answer.units(), 1, loan.units.size());
  // The others may be nowhere.
  if (loan.regains && MayRegainSome(loan)) loan.units.end = loan.units.first + granted;
  if (loan.regains || loan.taken_over || loan.replaces.has_value()) {
    // The units lie with another creditor: all or none.
    const OrdinalSpan blocks = BlocksOf(loan.units, scheduler_.spec());
    const auto old = loan.replaces.has_value() ? loans_.find(*loan.replaces) : it;
    const bool whole = granted == loan.units.size() &&
                       answer.held_blocks() >= blocks.end - blocks.first && old != loans_.end() &&
                       old->second.units == loan.units;
    if (!whole) {
      return Drop(it, absl::StrCat("its creditor grants ", answer.units(), " of ",
                                   loan.units.size(), " units and holds ", answer.held_blocks(),
                                   " of ", blocks.end - blocks.first, " blocks"));
    }
    loan.state = State::kReady;
    return;
  }
  // The creditor may have taken the first units only.
  loan.units.end = loan.units.first + granted;
  Send(it->first, loan, answer, now);
}

// ---- using

void Borrower::Drop(Loans::iterator it, const std::string& why) {
  Loan& loan = it->second;
  Log(LogLevel::kInfo, "a loan was not used",
      {{"loan", it->first.value()}, {"creditor", loan.creditor.node.value()}, {"why", why}});
  if (loan.state == State::kSending) {
    cancelled_[loan.export_id] = std::exchange(loan.pinned, {});
    ledger_.Transfer(transfer::CancelExport{.export_id = loan.export_id, .reason = why});
  }
  if (loan.has_creditor) ledger_.Lend(lending::ReturnLoan{.loan = it->first});
  const Loan dropped = std::move(loan);
  const LoanId id = it->first;
  loans_.erase(it);
  if (dropped.replaces.has_value()) OnNotReplaced(dropped);
  if (dropped.taken_over) OnNotTakenOver(dropped, id);
  if (dropped.regains) OnNotRegained(dropped);
}

void Borrower::UseReady(absl::Time now) {
  for (auto it = loans_.begin(); it != loans_.end();) {
    const auto loan = it++;
    const bool sending = loan->second.state == State::kSending;
    if (loan->second.state != State::kReady && !(sending && TANDEM_MUTATED(kLoanUsedUnverified)))
      continue;
    last_change_ = now;
    if (loan->second.replaces.has_value()) {
      Replace(loan);
      continue;
    }
    if (loan->second.taken_over) {
      UseTakenOver(loan);
      continue;
    }
    if (loan->second.regains) {
      UseRegained(loan);
      continue;
    }
    const Sequence* sequence = scheduler_.Find(loan->second.sequence);
    const bool follows =
        sequence != nullptr && !sequence->in_step && CanLend(*sequence, loan->second.units);
    if (!follows) {
      Drop(loan, "the sequence has ended or is computed again");
      continue;
    }
    scheduler_.Lend(sequence->id, {.loan = loan->first, .units = loan->second.units});
    scheduler_.CountLoan(sequence->id, loan->second.creditor.node.value(),
                         loan->second.units.size());
    loan->second.state = State::kUsed;
    if (loan->second.units.size() >= sent_units_max_)
      sent_units_max_ = std::min(kUnitsMax, 2 * sent_units_max_);
    if (loan->second.planned) keep_until_ = now + kPlannedKept;
    v1::NodeCounters& counters = ledger_.counters();
    counters.set_loans_taken(counters.loans_taken() + 1);
    counters.set_units_lent(counters.units_lent() + loan->second.units.size());
  }
}

void Borrower::ReturnEnded(absl::Time now) {
  for (const LoanId id : scheduler_.TakeEndedLoans()) {
    last_change_ = now;
    if (home_.loan() == id) home_.Drop("the sequence has ended or is computed again");
    const auto it = loans_.find(id);
    if (it != loans_.end() && it->second.is_named)
      split_loans_kept_.emplace_back(id, now + kSplitLoansKept);
    else
      ledger_.Lend(lending::ReturnLoan{.loan = id});
    if (it == loans_.end()) continue;
    ended_.emplace_back(id, std::move(it->second));
    loans_.erase(it);
    AskForLost(ended_.back().second, now);
    if (ended_.size() > kEndedKept) ended_.pop_front();
  }
}

void Borrower::BeforeStep(absl::Time now) {
  ++plans_;
  now_ = now;
  if (!enabled_) return;
  ReturnEnded(now);
  UseReady(now);
  DropLate(/*ready=*/true, now);
  UseHome(now);
  step_blocks_ = BlocksBeforeStep(now);
  for (auto& [id, loan] : loans_) PushSome(loan);
  MoveRecalled(now);
  Ask(now);
  BringHome(now);
  scheduler_.set_loan_expected(std::any_of(loans_.begin(), loans_.end(), [](const auto& loan) {
    return loan.second.state != State::kUsed && !loan.second.replaces.has_value() &&
           !loan.second.taken_over && !loan.second.regains;
  }));
}

void Borrower::OnTick(absl::Time now) {
  now_ = now;
  if (!enabled_) return;
  ReturnSplitLoans(now);
  EndStalledRebuilds(now);
  std::erase_if(losses_, [this](const auto& e) { return scheduler_.Find(e.first) == nullptr; });
  // A loan may have become ready during a step that took longer than its time.
  DropLate(/*ready=*/false, now);
}

void Borrower::DropLate(bool ready, absl::Time now) {
  for (auto it = loans_.begin(); it != loans_.end();) {
    const auto loan = it++;
    const State state = loan->second.state;
    if (state == State::kUsed || (state == State::kReady) != ready || loan->second.deadline > now)
      continue;
    if (!loan->second.replaces.has_value() && !loan->second.taken_over && !loan->second.regains)
      ask_after_ = now + kAfterRefusal;
    if (state == State::kSending) sent_units_max_ = std::max(1, loan->second.units.size() / 2);
    Drop(loan, "it took too long");
  }
}

void Borrower::AfterPlan(bool progress, absl::Time now) {
  if (progress || scheduler_.running().empty())
    starved_.reset();
  else if (!starved_.has_value())
    starved_ = BeginWait(now);
}

std::vector<SequenceId> Borrower::TakeStarved(absl::Time now) {
  if (!enabled_ || !starved_.has_value() || !IsTooLong(*starved_, kStarvedMax, now)) return {};
  starved_ = BeginWait(now);
  // Those that skip the step wait for something else than memory.
  const auto& running = scheduler_.running();
  const auto last = std::find_if(running.rbegin(), running.rend(), [](const auto& entry) {
    return !entry.second->skips_step() && entry.second->remaining() > 0;
  });
  if (last == running.rend()) return {};
  return {last->second->id};
}

// ---- losing

void Borrower::Handle(const lending::LoanLost& event, absl::Time now) {
  const auto it = loans_.find(event.loan);
  if (it == loans_.end()) {
    // A step failed before, and ended it.
    for (const auto& [id, loan] : ended_) {
      if (id != event.loan) continue;
      CountLoss(loan.sequence, now);
      Blame(loan, event.why, now);
    }
    return;
  }
  Blame(it->second, event.why, now);
  if (it->second.state != State::kUsed) return Drop(it, event.why.ToString());
  Log(LogLevel::kWarning, "a loan was lost: its units are computed again",
      {{"loan", event.loan.value()},
       {"creditor", it->second.creditor.node.value()},
       {"why", event.why.ToString()}});
  CountLoss(it->second.sequence, now);
  if (scheduler_.Find(it->second.sequence) != nullptr)
    scheduler_.LoseLoan(it->second.sequence, event.loan);
}

void Borrower::Blame(const Loan& loan, const absl::Status& why, absl::Time now) {
  if (!absl::IsDataLoss(why)) return Avoid(loan.creditor.node.value(), now + kAvoidTime);
  const Sequence* sequence = scheduler_.Find(loan.sequence);
  if (sequence == nullptr) return;
  const OrdinalSpan ordinals = BlocksOf(loan.units, scheduler_.spec());
  for (int64_t i = ordinals.first; i < ordinals.end; ++i) {
    const kv::BlockHash& hash = sequence->hashes[static_cast<size_t>(i)];
    for (const BlockId block : scheduler_.pool().MatchBlocks(absl::MakeConstSpan(&hash, 1))) {
      scheduler_.pool().Forget(block);
      scheduler_.pool().Unref(block);
    }
  }
}

// The creditor needs its memory. It is not asked again for a while: it is short.
void Borrower::Handle(const lending::LoanRecalled& event, absl::Time now) {
  const auto it = loans_.find(event.loan);
  if (it == loans_.end()) return;
  v1::NodeCounters& counters = ledger_.counters();
  counters.set_loans_recalled(counters.loans_recalled() + 1);
  Avoid(it->second.creditor.node.value(), now + kAvoidRecaller);
  if (it->second.state != State::kUsed) return Drop(it, "its creditor recalled it");
  it->second.recalled = true;  // BeforeStep moves it
}

int64_t Borrower::blocks_owed() const {
  int64_t blocks = 0;
  for (const auto& [id, loan] : loans_)
    if (loan.state == State::kUsed) blocks += loan.units.size() * blocks_per_unit();
  return blocks;
}

void Borrower::AddTo(v1::NodeLoad& load) const {
  std::map<std::string, std::pair<int64_t, int64_t>> debts;  // blocks, loans
  for (const auto& [id, loan] : loans_) {
    if (loan.state != State::kUsed) continue;
    auto& [blocks, count] = debts[loan.creditor.node.value()];
    blocks += loan.units.size() * blocks_per_unit();
    ++count;
  }
  for (const auto& [node, debt] : debts) {
    v1::Debt& wire = *load.add_debts();
    wire.set_creditor_node_id(node);
    wire.set_blocks(debt.first);
    wire.set_loans(debt.second);
  }
}

void Borrower::OnRoundTrips(absl::Span<const lending::LinkRoundTrip> round_trips) {
  for (const lending::LinkRoundTrip& link : round_trips)
    costs_.OnRoundTrip(link.creditor, link.least);
}

google::protobuf::RepeatedPtrField<v1::CreditorLink> Borrower::links() const {
  // Layers with a window ask for nothing: only tokens behind every window are lent.
  const kv::BlockLayout& layout = scheduler_.spec().layout;
  return costs_.Links(layout.num_layers - static_cast<int32_t>(layout.windowed_layers.size()));
}

}  // namespace tandem::node
