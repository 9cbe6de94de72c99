// The one implementation of CreditorLinks. Its functions are in two sources: loans and links in
// creditor_links.cc, the questions of a layer in creditor_questions.cc.
// Thread safety: none; the engine thread. Owner: as CreditorLinks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/engine/remote_attention.h"
#include "common/lending/creditor_links.h"
#include "common/lending/lending.h"
#include "common/lending/lending_wire.h"
#include "common/lending/link_dialer.h"
#include "common/lending/question_plan.h"
#include "common/runtime/clock.h"
#include "common/transfer/call_channel.h"

namespace tandem::lending {

// One creditor and the link to it.
struct Creditor {
  DebtorId id;  // the creditor's node and incarnation
  // One of the two, unless the link is lost.
  std::unique_ptr<LinkDialer> dialer;
  std::optional<transfer::CallPeer> peer;
  absl::Status broken;  // its link has to be dropped, outside of the channel's handlers
  absl::Time heard;     // its last response
  int64_t num_loans = 0;
  // What it has to be told. Bound: CreditorLinks::kLoansMax.
  std::vector<LoanId> returns;
  bool is_renewing = false;
  // Of the questions that were answered since the last TakeRoundTrips.
  absl::Duration least_round_trip = absl::InfiniteDuration();

  // Of the layer that is asked about.
  QuestionPlan plan;
  size_t next_question = 0;  // those before it are sent
  // Questions whose layer was given up: their answers are ignored when they come.
  int64_t num_late = 0;
  absl::Status missed;  // why it is not waited for any more, in this step
  // How long it may say nothing while a layer waits for it, and how long it did in this step.
  absl::Duration patience, slowest;
  // When the layer began to wait that was given up; InfiniteFuture: it is not late.
  absl::Time late_since = absl::InfiniteFuture();
  bool is_late_told = false;
};

// A message that waits for its response.
struct OpenCall {
  transfer::CallId call;
  Creditor* creditor;
  RequestKind kind;
  size_t question;            // kAttend: of the creditor's plan
  std::vector<LoanId> loans;  // kRenew, kReturn
  absl::Time sent;
  bool is_late = false;
};

class CreditorLinksImpl final : public CreditorLinks, private transfer::CallHandler {
 public:
  CreditorLinksImpl(const CreditorLinksOptions& options, const Clock& clock)
      : options_(options), clock_(clock) {}

  // Errors: as CallChannel::Create.
  absl::Status Prepare();

  void Handle(const UseLoan& command) override;
  void Handle(const ReturnLoan& command) override;
  void Ask(absl::Span<engine::RemotePart> parts) override;
  void Collect(absl::Span<engine::RemotePart> parts) override;
  std::vector<LendingEvent> Progress() override;
  bool awaits_answers() const override { return !late_loans_.empty(); }

  CreditorLinksCounters counters() const override;
  std::vector<LinkRoundTrip> TakeRoundTrips() override;

 private:
  struct Loan {
    Creditor* creditor = nullptr;  // nullptr: lost
    absl::Status lost;
    absl::Status failed;   // in this step
    bool is_late = false;  // a slice failed because its creditor is late
    bool is_recall_told = false;
    absl::Time renewed;  // when the creditor surely heard of it last
  };

  absl::StatusOr<Creditor*> OpenCreditor(const CreditorAddress& address);
  absl::StatusOr<Creditor*> CreditorToAsk(LoanId loan);
  void Send(Creditor& creditor);
  absl::Status SendQuestion(Creditor& creditor);
  void Wait(absl::Time until);
  bool IsDialling() const;
  void ProgressDialers();
  void DropBroken();
  void FailFragments(absl::Span<const QuestionPlan::Fragment> fragments, const absl::Status& why);
  void FailUnsent(Creditor& creditor, const absl::Status& why);
  // Whether a question of this layer has no answer from it yet.
  bool OwesThisLayer(const Creditor& creditor) const;
  // Since when a layer that lacks answers waits for the creditor's next one.
  absl::Time SilentSince(const Creditor& creditor) const {
    return std::max(collect_began_, creditor.heard);
  }
  absl::Time NextDeadline() const;
  bool HasLate() const;
  void FailLate();
  void Miss(Creditor& creditor, const absl::Status& why);
  void NoteLate(LoanId id, Loan& loan);
  void LoseLoan(LoanId id, Loan& loan, const absl::Status& why);
  void LoseCreditor(Creditor& creditor, const absl::Status& why);
  Creditor* FindPeer(transfer::CallPeer peer);

  void OnRequest(transfer::CallPeer peer, transfer::CallId call,
                 absl::Span<const std::byte> bytes) override;
  void OnResponse(transfer::CallId call,
                  absl::StatusOr<absl::Span<const std::byte>> bytes) override;
  void OnPeerLost(transfer::CallPeer peer, const absl::Status& why) override;
  absl::Status TakeAnswers(Creditor& creditor, const OpenCall& call,
                           absl::Span<const std::byte> bytes);
  absl::Status TakeLoans(const OpenCall& call, absl::Span<const std::byte> bytes);
  void TakeEntry(LoanId id, const ResponseReader::Entry& entry, absl::Time sent);

  void EndStep();
  void AdaptPatience(Creditor& creditor) const;
  void EndLate(absl::Time now);
  void LoseSilent(absl::Time now);
  void SendReturns(Creditor& creditor);
  void Renew(absl::Time now);
  void SendLoans(Creditor& creditor, RequestKind kind, std::vector<LoanId> loans);
  void CloseIdle(absl::Time now);

  const CreditorLinksOptions options_;
  const Clock& clock_;
  std::unique_ptr<transfer::CallChannel> channel_;
  // Bound: kCreditorsMax, and those that are gone until the next Progress.
  absl::btree_map<DebtorId, std::unique_ptr<Creditor>> creditors_;
  // Bound: kCreditorsMax; kept until Progress, because a layer's questions may name them.
  std::vector<std::unique_ptr<Creditor>> gone_;
  // Bound: kLoansMax.
  absl::flat_hash_map<LoanId, Loan> loans_;
  // Bound: kLinkCallsMax for each creditor.
  std::vector<OpenCall> open_calls_;
  // Bound: two for each loan; Progress hands them out.
  std::vector<LendingEvent> events_;
  // Loans that failed in this step. Bound: kLoansMax.
  std::vector<LoanId> failed_loans_;
  // Loans whose creditors are late, and some that were returned since the last Progress. Bound:
  // kLoansMax.
  std::vector<LoanId> late_loans_;
  absl::Time collect_began_;

  // Of the last Ask, until Collect.
  absl::Span<engine::RemotePart> parts_;
  // Bound: the parts. How many fragments of each part have no answer yet.
  std::vector<int32_t> fragments_left_;
  int64_t unanswered_ = 0;  // fragments of all parts
  // Bound: kCreditorsMax.
  std::vector<Creditor*> asked_;
  // The message that is being made. Bound: kEntriesMax; a piece for each row.
  std::vector<AttendPart> table_;
  std::vector<absl::Span<const std::byte>> pieces_;
  CreditorLinksCounters counters_;
};

}  // namespace tandem::lending
