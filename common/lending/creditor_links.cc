#include "common/lending/creditor_links.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/lending/creditor_links_impl.h"

namespace tandem::lending {
namespace {

// How often a thread that waits for a link looks at creditors that could not be dialled yet.
constexpr int kDialAgainMs = 1;
// Loans are renewed after this part of their lease at the latest.
constexpr int kRenewalsOfLease = 4;
// Of the patience with a creditor, after a step in which it needed less than half of it.
constexpr double kPatienceKept = 0.97;

// Whether an answer of this kind says that the loan cannot be used any more; others pass.
bool EndsLoan(absl::StatusCode code) {
  return code != absl::StatusCode::kOk && code != absl::StatusCode::kUnavailable &&
         code != absl::StatusCode::kResourceExhausted &&
         code != absl::StatusCode::kDeadlineExceeded;
}

}  // namespace

using transfer::CallChannel;
using transfer::CallId;
using transfer::CallPeer;

absl::Status CreditorLinksImpl::Prepare() {
  ASSIGN_OR_RETURN(channel_, CallChannel::Create(clock_, {.calls_max = kLinkCallsMax,
                                                          .peers_max = kCreditorsMax,
                                                          .spin = options_.spin}));
  return absl::OkStatus();
}

CreditorLinksCounters CreditorLinksImpl::counters() const {
  CreditorLinksCounters counters = counters_;
  for (const auto& [id, creditor] : creditors_) {
    if (creditor->peer.has_value()) ++counters.creditors;
  }
  return counters;
}

std::vector<LinkRoundTrip> CreditorLinksImpl::TakeRoundTrips() {
  std::vector<LinkRoundTrip> taken;
  for (const auto& [id, creditor] : creditors_) {
    const absl::Duration least =
        std::exchange(creditor->least_round_trip, absl::InfiniteDuration());
    if (least < absl::InfiniteDuration()) taken.push_back({.creditor = id, .least = least});
  }
  return taken;
}

// ---- loans -----------------------------------------------------------------------------------

absl::StatusOr<Creditor*> CreditorLinksImpl::OpenCreditor(const CreditorAddress& address) {
  const DebtorId id = {.node = address.node, .incarnation = address.incarnation};
  const auto found = creditors_.find(id);
  if (found != creditors_.end()) return found->second.get();
  if (creditors_.size() >= kCreditorsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this node borrows from ", creditors_.size(), " others already"));
  }
  auto creditor = std::make_unique<Creditor>();
  creditor->id = id;
  creditor->patience = options_.patience;
  creditor->heard = clock_.Now();
  ASSIGN_OR_RETURN(creditor->dialer, LinkDialer::Start({.self = options_.self,
                                                        .host = options_.host,
                                                        .fleet_secret = options_.fleet_secret},
                                                       address, clock_.Now()));
  Creditor* const opened = creditor.get();
  creditors_[id] = std::move(creditor);
  return opened;
}

void CreditorLinksImpl::Handle(const UseLoan& command) {
  const auto [it, is_new] = loans_.try_emplace(command.loan);
  if (!is_new) return;
  Loan& loan = it->second;
  loan.renewed = clock_.Now();
  absl::StatusOr<Creditor*> creditor =
      absl::ResourceExhaustedError(absl::StrCat("more than ", kLoansMax, " loans"));
  if (loans_.size() <= kLoansMax) creditor = OpenCreditor(command.creditor);
  if (creditor.ok()) {
    loan.creditor = *creditor;
    ++loan.creditor->num_loans;
  } else {
    LoseLoan(command.loan, loan, creditor.status());
  }
}

void CreditorLinksImpl::Handle(const ReturnLoan& command) {
  const auto found = loans_.find(command.loan);
  if (found == loans_.end()) return;
  if (Creditor* const creditor = found->second.creditor; creditor != nullptr) {
    --creditor->num_loans;
    creditor->returns.push_back(command.loan);
    SendReturns(*creditor);
  }
  loans_.erase(found);
}

void CreditorLinksImpl::LoseLoan(LoanId id, Loan& loan, const absl::Status& why) {
  if (!loan.lost.ok()) return;
  if (loan.creditor != nullptr) {
    --loan.creditor->num_loans;
    // It may still keep the blocks. Where the link is gone, the creditor's lease ends them.
    if (!absl::IsNotFound(why)) loan.creditor->returns.push_back(id);
  }
  loan.creditor = nullptr;
  loan.lost = why;
  events_.push_back(LoanLost{.loan = id, .why = why});
}

// Its calls have had their answers, or get none.
void CreditorLinksImpl::LoseCreditor(Creditor& creditor, const absl::Status& why) {
  FailUnsent(creditor, why);
  for (auto& [id, loan] : loans_) {
    if (loan.creditor == &creditor) LoseLoan(id, loan, why);
  }
  if (creditor.peer.has_value()) channel_->RemovePeer(*creditor.peer);
  creditor.peer.reset();
  for (size_t i = 0; i < open_calls_.size();) {
    if (open_calls_[i].creditor != &creditor) {
      ++i;
      continue;
    }
    const OpenCall call = std::move(open_calls_[i]);
    open_calls_.erase(open_calls_.begin() + static_cast<ptrdiff_t>(i));
    if (call.kind == RequestKind::kAttend && !call.is_late) {
      FailFragments(creditor.plan.question(call.question), why);
    }
  }
  const auto owner = creditors_.find(creditor.id);
  gone_.push_back(std::move(owner->second));
  creditors_.erase(owner);
}

// ---- links -----------------------------------------------------------------------------------

bool CreditorLinksImpl::IsDialling() const {
  return std::any_of(creditors_.begin(), creditors_.end(),
                     [](const auto& it) { return it.second->dialer != nullptr; });
}

void CreditorLinksImpl::ProgressDialers() {
  std::vector<std::pair<Creditor*, absl::Status>> failed;
  for (auto& [id, creditor] : creditors_) {
    if (creditor->dialer == nullptr) continue;
    auto link = creditor->dialer->Poll(clock_.Now());
    if (link.ok() && *link == nullptr) continue;
    creditor->dialer.reset();
    auto peer =
        link.ok() ? channel_->AddPeer(*std::move(link)) : absl::StatusOr<CallPeer>(link.status());
    if (peer.ok()) {
      creditor->peer = *peer;
      creditor->heard = clock_.Now();
    } else {
      failed.emplace_back(creditor.get(), peer.status());
    }
  }
  for (const auto& [creditor, why] : failed) LoseCreditor(*creditor, why);
}

// Waits for the first thing to handle.
void CreditorLinksImpl::Wait(absl::Time until) {
  if (!IsDialling()) {
    channel_->Wait(*this, until);
    return;
  }
  ProgressDialers();
  if (channel_->Progress(*this) > 0 || !IsDialling()) return;
  std::vector<pollfd> waits = {{.fd = channel_->descriptor(), .events = POLLIN, .revents = 0}};
  for (const auto& [id, creditor] : creditors_) {
    if (creditor->dialer == nullptr) continue;
    const short events = creditor->dialer->wants_write() ? POLLOUT : POLLIN;
    waits.push_back({.fd = creditor->dialer->descriptor(), .events = events, .revents = 0});
  }
  if (channel_->PrepareSleep()) ::poll(waits.data(), waits.size(), kDialAgainMs);
  channel_->EndSleep();
}

// Not from a handler, where no peer may be removed.
void CreditorLinksImpl::DropBroken() {
  std::vector<Creditor*> broken;
  for (const auto& [id, creditor] : creditors_) {
    if (!creditor->broken.ok()) broken.push_back(creditor.get());
  }
  for (Creditor* creditor : broken) LoseCreditor(*creditor, creditor->broken);
}

Creditor* CreditorLinksImpl::FindPeer(CallPeer peer) {
  for (const auto& [id, creditor] : creditors_) {
    if (creditor->peer == peer) return creditor.get();
  }
  return nullptr;
}

void CreditorLinksImpl::OnRequest(CallPeer peer, CallId, absl::Span<const std::byte>) {
  if (Creditor* const creditor = FindPeer(peer); creditor != nullptr) {
    creditor->broken = absl::DataLossError("a creditor asked its debtor");
  }
}

void CreditorLinksImpl::OnPeerLost(CallPeer peer, const absl::Status& why) {
  Creditor* const creditor = FindPeer(peer);
  if (creditor == nullptr) return;
  // The channel has removed the peer already.
  creditor->peer.reset();
  if (creditor->broken.ok()) creditor->broken = why;
}

void CreditorLinksImpl::OnResponse(CallId id, absl::StatusOr<absl::Span<const std::byte>> bytes) {
  const auto found = std::find_if(open_calls_.begin(), open_calls_.end(),
                                  [&](const OpenCall& call) { return call.call == id; });
  if (found == open_calls_.end()) return;
  const OpenCall call = std::move(*found);
  open_calls_.erase(found);
  Creditor& creditor = *call.creditor;
  if (call.is_late) --creditor.num_late;
  if (call.kind == RequestKind::kRenew) creditor.is_renewing = false;
  if (!bytes.ok()) {
    if (call.kind == RequestKind::kAttend && !call.is_late) {
      FailFragments(creditor.plan.question(call.question), bytes.status());
    }
    return;
  }
  const absl::Time now = clock_.Now();
  if (call.kind == RequestKind::kAttend && !call.is_late)
    creditor.slowest = std::max(creditor.slowest, now - SilentSince(creditor));
  creditor.heard = now;
  counters_.bytes_in += static_cast<int64_t>(bytes->size());
  absl::Status status;
  if (call.kind != RequestKind::kAttend) {
    status = TakeLoans(call, *bytes);
  } else if (!call.is_late) {
    status = TakeAnswers(creditor, call, *bytes);
  }
  if (!status.ok() && creditor.broken.ok()) creditor.broken = status;
}

absl::Status CreditorLinksImpl::TakeLoans(const OpenCall& call, absl::Span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(ResponseReader reader,
                   ResponseReader::Read(bytes, call.kind, call.loans.size()));
  for (const LoanId loan : call.loans) TakeEntry(loan, reader.Next(), call.sent);
  return absl::OkStatus();
}

// What a creditor says about a loan, in whatever response.
void CreditorLinksImpl::TakeEntry(LoanId id, const ResponseReader::Entry& entry, absl::Time sent) {
  const auto found = loans_.find(id);
  if (found == loans_.end()) return;  // returned meanwhile
  Loan& loan = found->second;
  if (entry.code == absl::StatusCode::kOk) loan.renewed = std::max(loan.renewed, sent);
  if (EndsLoan(entry.code)) LoseLoan(id, loan, entry.status());
  if (entry.is_recalled && loan.lost.ok() && !loan.is_recall_told) {
    loan.is_recall_told = true;
    events_.push_back(LoanRecalled{.loan = id});
  }
}

// ---- between steps ---------------------------------------------------------------------------

void CreditorLinksImpl::EndStep() {
  for (const LoanId id : failed_loans_) {
    const auto loan = loans_.find(id);
    if (loan != loans_.end()) loan->second.failed = absl::OkStatus();
  }
  failed_loans_.clear();
  for (Creditor* creditor : asked_) {
    creditor->plan.Clear();
    creditor->next_question = 0;
  }
  asked_.clear();
  for (const auto& [id, creditor] : creditors_) AdaptPatience(*creditor);
  gone_.clear();
}

void CreditorLinksImpl::AdaptPatience(Creditor& creditor) const {
  creditor.missed = absl::OkStatus();
  const absl::Duration slowest = std::exchange(creditor.slowest, absl::ZeroDuration());
  if (slowest > absl::ZeroDuration() && slowest * 2 < creditor.patience)
    creditor.patience = std::max(options_.patience, creditor.patience * kPatienceKept);
}

// Tells which creditors are late and which have answered, and ends loans that waited too long.
void CreditorLinksImpl::EndLate(absl::Time now) {
  for (const auto& [id, creditor] : creditors_) {
    if (creditor->late_since == absl::InfiniteFuture()) continue;
    if (!std::exchange(creditor->is_late_told, true))
      events_.push_back(CreditorLate{.creditor = id});
    if (creditor->num_late > 0 || !creditor->peer.has_value()) continue;
    creditor->late_since = absl::InfiniteFuture();
    creditor->is_late_told = false;
    events_.push_back(CreditorAnswers{.creditor = id});
  }
  for (const LoanId id : std::exchange(late_loans_, {})) {
    const auto found = loans_.find(id);
    if (found == loans_.end() || !found->second.lost.ok()) continue;
    Loan& loan = found->second;
    const Creditor& creditor = *loan.creditor;
    if (creditor.late_since == absl::InfiniteFuture()) {
      loan.is_late = false;
    } else if (creditor.dialer == nullptr &&
               now - creditor.late_since >= options_.answer_time_max) {
      LoseLoan(id, loan,
               absl::DeadlineExceededError(
                   absl::StrCat("creditor ", creditor.id.node.value(), " gave no answer within ",
                                absl::FormatDuration(options_.answer_time_max))));
    } else {
      late_loans_.push_back(id);
    }
  }
}

// A creditor that owes an answer for the lease time has lost this node's loans by then.
void CreditorLinksImpl::LoseSilent(absl::Time now) {
  for (const OpenCall& call : open_calls_) {
    Creditor& creditor = *call.creditor;
    if (now - call.sent < options_.lease_time || now - creditor.heard < options_.lease_time ||
        !creditor.broken.ok()) {
      continue;
    }
    creditor.broken = absl::DeadlineExceededError(
        absl::StrCat("creditor ", creditor.id.node.value(), " was silent for ",
                     absl::FormatDuration(options_.lease_time)));
  }
}

void CreditorLinksImpl::SendLoans(Creditor& creditor, RequestKind kind, std::vector<LoanId> loans) {
  const MessageHead head = {.kind = kind, .count = static_cast<uint32_t>(loans.size())};
  static_assert(sizeof(LoanId) == sizeof(uint64_t));
  const absl::Span<const std::byte> pieces[] = {
      {reinterpret_cast<const std::byte*>(&head), sizeof head},
      {reinterpret_cast<const std::byte*>(loans.data()), loans.size() * sizeof(LoanId)}};
  const auto call = channel_->Call(*creditor.peer, pieces, absl::InfiniteFuture());
  if (!call.ok()) {
    if (kind == RequestKind::kReturn) {
      creditor.returns.insert(creditor.returns.end(), loans.begin(), loans.end());
    }
    if (!absl::IsResourceExhausted(call.status())) creditor.broken = call.status();
    return;
  }
  if (kind == RequestKind::kRenew) creditor.is_renewing = true;
  open_calls_.push_back({.call = *call,
                         .creditor = &creditor,
                         .kind = kind,
                         .question = 0,
                         .loans = std::move(loans),
                         .sent = clock_.Now()});
}

void CreditorLinksImpl::SendReturns(Creditor& creditor) {
  if (!creditor.peer.has_value() || creditor.returns.empty()) return;
  const size_t count = std::min(creditor.returns.size(), kEntriesMax);
  const auto first = creditor.returns.end() - static_cast<ptrdiff_t>(count);
  std::vector<LoanId> loans(first, creditor.returns.end());
  creditor.returns.erase(first, creditor.returns.end());
  SendLoans(creditor, RequestKind::kReturn, std::move(loans));
}

void CreditorLinksImpl::Renew(absl::Time now) {
  const absl::Duration after = std::min(kRenewAfter, options_.lease_time / kRenewalsOfLease);
  absl::flat_hash_map<Creditor*, std::vector<LoanId>> due;
  for (const auto& [id, loan] : loans_) {
    if (loan.creditor == nullptr || !loan.creditor->peer.has_value() ||
        loan.creditor->is_renewing || now - loan.renewed < after) {
      continue;
    }
    std::vector<LoanId>& loans = due[loan.creditor];
    if (loans.size() < kEntriesMax) loans.push_back(id);
  }
  for (auto& [creditor, loans] : due) SendLoans(*creditor, RequestKind::kRenew, std::move(loans));
}

void CreditorLinksImpl::CloseIdle(absl::Time now) {
  std::vector<Creditor*> idle;
  for (const auto& [id, creditor] : creditors_) {
    const bool has_calls = std::any_of(
        open_calls_.begin(), open_calls_.end(),
        [waiting = creditor.get()](const OpenCall& it) { return it.creditor == waiting; });
    if (creditor->num_loans == 0 && creditor->returns.empty() && !has_calls &&
        now - creditor->heard >= options_.lease_time) {
      idle.push_back(creditor.get());
    }
  }
  for (Creditor* creditor : idle) {
    LoseCreditor(*creditor, absl::UnavailableError("the link had no loans any more"));
  }
}

std::vector<LendingEvent> CreditorLinksImpl::Progress() {
  EndStep();
  ProgressDialers();
  channel_->Progress(*this);
  const absl::Time now = clock_.Now();
  EndLate(now);
  LoseSilent(now);
  DropBroken();
  for (const auto& [id, creditor] : creditors_) SendReturns(*creditor);
  Renew(now);
  DropBroken();
  CloseIdle(now);
  gone_.clear();
  return std::exchange(events_, {});
}

absl::StatusOr<std::unique_ptr<CreditorLinks>> CreditorLinks::Create(
    const CreditorLinksOptions& options, const Clock& clock) {
  auto links = std::make_unique<CreditorLinksImpl>(options, clock);
  RETURN_IF_ERROR(links->Prepare());
  return links;
}

}  // namespace tandem::lending
