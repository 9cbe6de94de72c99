// Implements Ask and Collect of CreditorLinksImpl (common/lending/creditor_links_impl.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/lending/creditor_links_impl.h"

namespace tandem::lending {

using engine::RemotePart;
using transfer::CallId;

namespace {

// What a creditor says about its computing is rounded, and may be anything.
constexpr absl::Duration kRoundTripMin = absl::Microseconds(1);

}  // namespace

absl::StatusOr<Creditor*> CreditorLinksImpl::CreditorToAsk(LoanId id) {
  const auto found = loans_.find(id);
  if (found == loans_.end()) {
    return absl::NotFoundError(absl::StrCat("loan ", id.value(), " is not used"));
  }
  Loan& loan = found->second;
  RETURN_IF_ERROR(loan.lost);
  RETURN_IF_ERROR(loan.failed);
  Creditor& creditor = *loan.creditor;
  if (creditor.missed.ok() && creditor.num_late > 0) {
    creditor.missed = absl::DeadlineExceededError(absl::StrCat(
        "creditor ", creditor.id.node.value(), " owes ", creditor.num_late, " earlier answers"));
  }
  if (!creditor.missed.ok()) {
    NoteLate(id, loan);
    return creditor.missed;
  }
  return &creditor;
}

void CreditorLinksImpl::Ask(absl::Span<RemotePart> parts) {
  parts_ = parts;
  fragments_left_.assign(parts.size(), 0);
  unanswered_ = 0;
  for (Creditor* creditor : asked_) creditor->plan.Clear();
  asked_.clear();
  const bool has_late = std::any_of(open_calls_.begin(), open_calls_.end(),
                                    [](const OpenCall& call) { return call.is_late; });
  if (has_late) {
    channel_->Progress(*this);  // the answers may have come meanwhile
    DropBroken();
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto creditor = CreditorToAsk(parts[i].lent.loan);
    const auto fragments = creditor.ok() ? (*creditor)->plan.Add(parts, i)
                                         : absl::StatusOr<int32_t>(creditor.status());
    parts[i].status = fragments.status();
    if (!fragments.ok()) {
      ++counters_.failures;
      continue;
    }
    fragments_left_[i] = *fragments;
    unanswered_ += *fragments;
    if (std::find(asked_.begin(), asked_.end(), *creditor) == asked_.end()) {
      asked_.push_back(*creditor);
      (*creditor)->next_question = 0;
    }
  }
  for (Creditor* creditor : asked_) Send(*creditor);
}

void CreditorLinksImpl::Send(Creditor& creditor) {
  while (creditor.peer.has_value() && creditor.broken.ok() &&
         creditor.next_question < creditor.plan.num_questions()) {
    const absl::Status status = SendQuestion(creditor);
    // As many questions as there may be wait for their answers already.
    if (absl::IsResourceExhausted(status)) return;
    creditor.broken = status;
  }
}

absl::Status CreditorLinksImpl::SendQuestion(Creditor& creditor) {
  const auto fragments = creditor.plan.question(creditor.next_question);
  const MessageHead head = {.kind = RequestKind::kAttend,
                            .count = static_cast<uint32_t>(fragments.size())};
  table_.clear();
  pieces_.clear();
  pieces_.push_back({reinterpret_cast<const std::byte*>(&head), sizeof head});
  pieces_.push_back({});  // the table, once it is whole
  for (const QuestionPlan::Fragment& fragment : fragments) {
    const RemotePart& part = parts_[fragment.part];
    table_.push_back(DescribeFragment(part, fragment));
    const auto* row =
        reinterpret_cast<const std::byte*>(part.q + part.q_stride * fragment.first_row);
    const size_t row_bytes = static_cast<size_t>(part.q_floats) * sizeof(float);
    if (part.q_stride == part.q_floats) {
      pieces_.push_back({row, row_bytes * fragment.num_rows});
      continue;
    }
    for (int32_t i = 0; i < fragment.num_rows; ++i) {
      pieces_.push_back({row, row_bytes});
      row += static_cast<size_t>(part.q_stride) * sizeof(float);
    }
  }
  pieces_[1] = {reinterpret_cast<const std::byte*>(table_.data()),
                table_.size() * sizeof(AttendPart)};
  // Without a deadline of its own: Collect has one for all.
  ASSIGN_OR_RETURN(const CallId call,
                   channel_->Call(*creditor.peer, pieces_, absl::InfiniteFuture()));
  open_calls_.push_back({.call = call,
                         .creditor = &creditor,
                         .kind = RequestKind::kAttend,
                         .question = creditor.next_question,
                         .loans = {},
                         .sent = clock_.Now()});
  ++creditor.next_question;
  ++counters_.questions;
  counters_.bytes_out += static_cast<int64_t>(transfer::MessageBytes(pieces_));
  return absl::OkStatus();
}

void CreditorLinksImpl::Collect(absl::Span<RemotePart> parts) {
  TANDEM_CHECK(parts.data() == parts_.data() && parts.size() == parts_.size(),
               "Collect of other parts than the last Ask's");
  collect_began_ = clock_.Now();
  DropBroken();
  while (unanswered_ > 0) {
    Wait(NextDeadline());
    DropBroken();
    for (Creditor* creditor : asked_) Send(*creditor);
    DropBroken();
    if (HasLate()) FailLate();
  }
  parts_ = {};
  counters_.waited += clock_.Now() - collect_began_;
}

void CreditorLinksImpl::FailFragments(absl::Span<const QuestionPlan::Fragment> fragments,
                                      const absl::Status& why) {
  for (const QuestionPlan::Fragment& fragment : fragments) {
    --unanswered_;
    --fragments_left_[fragment.part];
    RemotePart& part = parts_[fragment.part];
    if (!part.status.ok()) continue;
    part.status = why;
    ++counters_.failures;
    const auto loan = loans_.find(part.lent.loan);
    if (loan == loans_.end() || !loan->second.failed.ok()) continue;
    loan->second.failed = why;
    failed_loans_.push_back(part.lent.loan);
  }
}

void CreditorLinksImpl::FailUnsent(Creditor& creditor, const absl::Status& why) {
  for (; creditor.next_question < creditor.plan.num_questions(); ++creditor.next_question) {
    FailFragments(creditor.plan.question(creditor.next_question), why);
  }
}

bool CreditorLinksImpl::OwesThisLayer(const Creditor& creditor) const {
  return creditor.next_question < creditor.plan.num_questions() ||
         std::any_of(open_calls_.begin(), open_calls_.end(), [&](const OpenCall& call) {
           return call.creditor == &creditor && call.kind == RequestKind::kAttend && !call.is_late;
         });
}

// Of a layer that lacks answers.
absl::Time CreditorLinksImpl::NextDeadline() const {
  absl::Time deadline = absl::InfiniteFuture();
  for (const Creditor* creditor : asked_)
    if (OwesThisLayer(*creditor))
      deadline = std::min(deadline, SilentSince(*creditor) + creditor->patience);
  return deadline;
}

bool CreditorLinksImpl::HasLate() const {
  const absl::Time now = clock_.Now();
  return std::any_of(asked_.begin(), asked_.end(), [&](const Creditor* creditor) {
    return now - SilentSince(*creditor) >= creditor->patience && OwesThisLayer(*creditor);
  });
}

void CreditorLinksImpl::FailLate() {
  const absl::Time now = clock_.Now();
  // This thread may not have run: what came before `now` counts.
  channel_->Progress(*this);
  DropBroken();
  for (Creditor* creditor : asked_) {
    if (now - SilentSince(*creditor) < creditor->patience || !OwesThisLayer(*creditor)) continue;
    Miss(*creditor,
         absl::DeadlineExceededError(absl::StrCat(
             creditor->peer.has_value() ? "no answer from" : "no link to", " creditor ",
             creditor->id.node.value(), " within ", absl::FormatDuration(creditor->patience))));
  }
}

void CreditorLinksImpl::Miss(Creditor& creditor, const absl::Status& why) {
  creditor.missed = why;
  creditor.patience = std::min(creditor.patience * 2, options_.answer_time_max);
  creditor.late_since = std::min(creditor.late_since, collect_began_);
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto loan = loans_.find(parts_[i].lent.loan);
    if (fragments_left_[i] == 0 || loan == loans_.end()) continue;
    if (loan->second.creditor == &creditor) NoteLate(loan->first, loan->second);
  }
  for (OpenCall& call : open_calls_) {
    if (call.creditor != &creditor || call.kind != RequestKind::kAttend || call.is_late) continue;
    call.is_late = true;
    ++creditor.num_late;
    FailFragments(creditor.plan.question(call.question), why);
  }
  FailUnsent(creditor, why);
}

void CreditorLinksImpl::NoteLate(LoanId id, Loan& loan) {
  if (!std::exchange(loan.is_late, true)) late_loans_.push_back(id);
}

absl::Status CreditorLinksImpl::TakeAnswers(Creditor& creditor, const OpenCall& call,
                                            absl::Span<const std::byte> bytes) {
  const auto fragments = creditor.plan.question(call.question);
  auto reader = ResponseReader::Read(bytes, RequestKind::kAttend, fragments.size());
  if (!reader.ok()) {
    FailFragments(fragments, reader.status());
    return reader.status();
  }
  const absl::Duration round_trip = creditor.heard - call.sent;  // OnResponse has just heard of it
  counters_.round_trips += round_trip;
  creditor.least_round_trip =
      std::min(creditor.least_round_trip, std::max(round_trip - reader->busy(), kRoundTripMin));
  absl::Status status;
  for (const QuestionPlan::Fragment& fragment : fragments) {
    const ResponseReader::Entry entry = reader->Next();
    const RemotePart& part = parts_[fragment.part];
    absl::Status failure = entry.status();
    // Only this end says what is late: it has to end that, too.
    if (absl::IsDeadlineExceeded(failure)) failure = absl::UnavailableError(failure.message());
    if (failure.ok() && entry.bytes.size() != DescribeFragment(part, fragment).answer_bytes) {
      failure = status = absl::DataLossError(
          absl::StrCat("an answer about loan ", part.lent.loan.value(), " has ", entry.bytes.size(),
                       " bytes, expected ", DescribeFragment(part, fragment).answer_bytes));
    }
    if (failure.ok()) {
      PlaceAnswer(part, fragment, entry.bytes);
      --unanswered_;
      --fragments_left_[fragment.part];
    } else {
      FailFragments({&fragment, 1}, failure);
    }
    TakeEntry(part.lent.loan, entry, call.sent);
  }
  return status;
}

}  // namespace tandem::lending
