#include "sim/sim_lending.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem::sim {

void SimLending::Handle(const lending::LendingCommand& command) {
  std::visit([this](const auto& c) { Carry(c); }, command);
}

// ---- creditor

void SimLending::Carry(const lending::ServeLoan& command) {
  const auto [it, added] = served_.emplace(
      command.key, Served{command.units, command.blocks, site_.now(), /*recalled=*/false});
  TANDEM_CHECK(added, "loan ", command.key.loan.value(), " is served already");
  served_blocks_.insert(command.blocks.begin(), command.blocks.end());
}

void SimLending::Carry(const lending::StopServing& command) {
  const auto it = served_.find(command.key);
  if (it == served_.end()) return;
  for (const BlockId block : it->second.blocks) served_blocks_.erase(served_blocks_.find(block));
  served_.erase(it);
}

void SimLending::Carry(const lending::RecallLoan& command) {
  if (const auto it = served_.find(command.key); it != served_.end()) it->second.recalled = true;
}

absl::Status SimLending::Renew(const lending::LoanKey& key, bool& recalled) {
  const auto it = served_.find(key);
  if (it == served_.end())
    return absl::NotFoundError(absl::StrCat("loan ", key.loan.value(), " is not served"));
  it->second.heard = site_.now();
  recalled = it->second.recalled;
  return absl::OkStatus();
}

absl::Status SimLending::Answer(const lending::LoanKey& key, engine::RemotePart& part,
                                bool& recalled) {
  RETURN_IF_ERROR(Renew(key, recalled));
  const Served& loan = served_.at(key);
  if (!(loan.units == part.lent.units))
    return absl::InvalidArgumentError(absl::StrCat("loan ", key.loan.value(), " has other units"));
  const absl::Status status = attention_->Compute({.layer = part.layer,
                                                   .units = part.lent.units,
                                                   .blocks = loan.blocks,
                                                   .num_rows = part.num_rows,
                                                   .first_position = part.first_position,
                                                   .q = absl::MakeConstSpan(part.q, part.q_floats)},
                                                  part.answer);
  if (absl::IsDataLoss(status)) site_.on_event(lending::LoanDamaged{key});
  return status;
}

void SimLending::Returned(const lending::LoanKey& key) {
  if (served_.contains(key)) site_.on_event(lending::LoanReturned{key});
}

// ---- debtor

SimLending::Reached SimLending::CreditorOf(const Used& used) const {
  Reached creditor = site_.reach(used.creditor.node);
  if (creditor.plane != nullptr &&
      creditor.plane->site_.self.incarnation != used.creditor.incarnation)
    creditor.plane = nullptr;
  return creditor;
}

void SimLending::NoteRecall(LoanId loan, bool recalled) {
  Used& used = used_.at(loan);
  if (!recalled || std::exchange(used.recalled, true)) return;
  site_.on_event(lending::LoanRecalled{loan});
}

void SimLending::Lose(LoanId loan, const absl::Status& why) {
  if (std::exchange(used_.at(loan).lost, true)) return;
  site_.on_event(lending::LoanLost{loan, why});
}

void SimLending::Carry(const lending::ReturnLoan& command) {
  const auto it = used_.find(command.loan);
  if (it == used_.end()) return;
  if (SimLending* creditor = CreditorOf(it->second).plane; creditor != nullptr)
    creditor->Returned({site_.self, command.loan});
  used_.erase(it);
}

void SimLending::Collect(absl::Span<engine::RemotePart> parts) {
  for (engine::RemotePart& part : parts) {
    const auto it = used_.find(part.lent.loan);
    if (it == used_.end() || it->second.lost) {
      part.status = absl::UnavailableError("the loan was lost");
      continue;
    }
    bool recalled = false;
    const Reached creditor = CreditorOf(it->second);
    if (creditor.silent || it->second.late_since < absl::InfiniteFuture()) {
      const lending::CreditorAddress& late = it->second.creditor;
      if (it->second.late_since == absl::InfiniteFuture())
        site_.on_event(lending::CreditorLate{{late.node, late.incarnation}});
      it->second.late_since = std::min(it->second.late_since, site_.now());
      part.status = absl::DeadlineExceededError("the creditor is late");
      continue;
    }
    part.status = creditor.plane == nullptr
                      ? absl::UnavailableError("the creditor has gone")
                      : creditor.plane->Answer({site_.self, part.lent.loan}, part, recalled);
    if (part.status.ok()) {
      it->second.heard = site_.now();
      answered_by_.insert({it->second.creditor.node, it->second.creditor.incarnation});
    } else {
      Lose(part.lent.loan, part.status);
    }
    NoteRecall(part.lent.loan, recalled);
  }
}

std::vector<lending::LinkRoundTrip> SimLending::TakeRoundTrips() {
  std::vector<lending::LinkRoundTrip> taken;
  for (const lending::DebtorId& creditor : std::exchange(answered_by_, {}))
    taken.push_back({.creditor = creditor, .least = site_.round_trip});
  return taken;
}

// ---- time

void SimLending::Tick() {
  for (auto& [loan, used] : used_) {
    if (used.lost) continue;
    const Reached reached = CreditorOf(used);
    SimLending* creditor = reached.plane;
    if (creditor == nullptr) {
      if (site_.now() - used.late_since > (reached.silent ? kLateMax : absl::ZeroDuration()))
        Lose(loan, absl::DeadlineExceededError("the creditor gave no answer in time"));
      else if (site_.now() - used.heard > kLeaseTime)
        Lose(loan, absl::DeadlineExceededError("the creditor was silent for the lease time"));
      continue;
    }
    bool recalled = false;
    if (const absl::Status status = creditor->Renew({site_.self, loan}, recalled); status.ok())
      used.heard = site_.now();
    else
      Lose(loan, status);
    NoteRecall(loan, recalled);
    if (std::exchange(used.late_since, absl::InfiniteFuture()) < absl::InfiniteFuture() &&
        !used.lost)
      site_.on_event(lending::CreditorAnswers{{used.creditor.node, used.creditor.incarnation}});
  }
  std::vector<lending::LoanKey> expired;
  for (const auto& [key, loan] : served_)
    if (site_.now() - loan.heard > kLeaseTime) expired.push_back(key);
  for (const lending::LoanKey& key : expired) site_.on_event(lending::LoanExpired{key});
}

// ---- for the checker

void SimLending::AddTo(LoanParty& party) const {
  party.self = site_.self;
  for (const auto& [key, loan] : served_)
    party.served.push_back(
        {.key = key, .units = loan.units, .blocks = loan.blocks, .heard = loan.heard});
  for (const auto& [loan, used] : used_)
    party.used.push_back(
        {.loan = loan, .creditor = &used.creditor, .heard = used.heard, .lost = used.lost});
}

}  // namespace tandem::sim
