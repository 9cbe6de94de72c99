// The debtor's end of lending: links to creditors, over which the engine asks about lent KV in
// every layer of a step. One link serves all loans of a creditor; all parts of a layer that go to
// one creditor travel in one message, or in several where they are longer than a message may be.
//
// Links open by themselves: the first UseLoan of a creditor begins to connect, and Collect waits
// for it. A creditor of the same host is reached over shared memory, others over TCP. A link that
// fails is tried again for the next loan, not for those that it lost.
//
// A step ends where Progress is called. It waits for a creditor until nothing has come from it for
// a while (`patience`), and then goes on without the rows that need it. The creditor is late, and
// Progress says so (CreditorLate); no loan is lost yet. In the step's later layers nothing waits
// for it, and it is not asked again before it has answered. Then Progress returns CreditorAnswers.
// If that takes longer than answer_time_max, Progress first returns LoanLost for the loans that it
// was asked about. A link that still opens loses its loans only after LinkDialer::kDialTime.
//
// Loans are kept alive by the questions about them; Progress renews those that no step has
// asked about recently. The answer to either says whether the creditor recalls the loan.
// Thread safety: none; the engine thread. Owner: NodeRuntime, which hands it to the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/engine/remote_attention.h"
#include "common/lending/lending.h"
#include "common/runtime/clock.h"

namespace tandem::lending {

struct CreditorLinksOptions {
  DebtorId self;
  std::string host;  // equal for processes that share memory
  std::string fleet_secret;
  // How long a creditor may say nothing while Collect waits for it. Each time that it is not enough
  // it is doubled for that creditor, up to answer_time_max; it shrinks again while answers take
  // less than half of it. So a creditor that is slow, but answers, is late a few times at most.
  absl::Duration patience = absl::Milliseconds(100);
  // A creditor that is late for this long loses the loans that it was asked about.
  absl::Duration answer_time_max = absl::Seconds(1);
  // As LendingServiceOptions::lease_time: loans are renewed after a quarter of it at the latest.
  absl::Duration lease_time = absl::Seconds(5);
  // How long Collect spins before it sleeps: about as long as an answer takes.
  absl::Duration spin = absl::Microseconds(500);
};

struct CreditorLinksCounters {
  int64_t creditors = 0;  // connected now
  int64_t questions = 0;  // messages since the start, as all below
  int64_t failures = 0;   // parts without an answer, or without one in time
  int64_t bytes_out = 0, bytes_in = 0;
  absl::Duration waited;       // in Collect
  absl::Duration round_trips;  // of questions that were answered, with the creditors' computing
};

// The quickest question to a creditor in some time. From the question's leaving to the answer, less
// what the creditor says it computed; so it includes both ends' messages, the creditor's waking,
// and its waits for its compute share. An answer is noticed when Collect looks, so a question whose
// own layer took longer than the answer counts as long as that layer: the least of many questions
// rarely does.
struct LinkRoundTrip {
  DebtorId creditor;  // its node and incarnation
  absl::Duration least;
};

class CreditorLinks : public engine::RemoteAttention {
 public:
  // Beyond these a loan is lost at once.
  static constexpr size_t kLoansMax = 16384;
  static constexpr size_t kCreditorsMax = 64;
  // A loan that nothing has asked about for so long is renewed: well below the notice of a recall.
  static constexpr absl::Duration kRenewAfter = absl::Milliseconds(250);

  // `clock` outlives it. Errors: as CallChannel::Create.
  static absl::StatusOr<std::unique_ptr<CreditorLinks>> Create(const CreditorLinksOptions& options,
                                                               const Clock& clock);

  virtual void Handle(const UseLoan& command) = 0;
  virtual void Handle(const ReturnLoan& command) = 0;
  // Between steps, at least every 50 ms: opens links, renews loans, and returns what happened since
  // the last call (LoanLost, LoanRecalled, CreditorLate, CreditorAnswers).
  virtual std::vector<LendingEvent> Progress() = 0;
  // Whether a creditor is late, so that Progress is to be called soon.
  virtual bool awaits_answers() const = 0;
  virtual CreditorLinksCounters counters() const = 0;
  // Of the creditors that answered a question since the last call. Those whose links were lost
  // meanwhile are left out.
  virtual std::vector<LinkRoundTrip> TakeRoundTrips() = 0;
};

}  // namespace tandem::lending
