// The creditor's end of lending: a thread that answers debtors' questions about the loans that its
// node serves. It computes beside the engine thread, so that a debtor's step never waits for a step
// of this node; --lend-compute-share bounds the processor time that it takes from this node's own
// sequences.
//
//   debtor's engine thread ══ link (shared memory or TCP) ══ lending thread ── PartialAttention
//
// A debtor proves that it holds the fleet's secret before its first byte is read, and says who it
// is; it can ask only about its own loans. Every size in a question is checked before anything is
// computed.
// Thread safety: the engine thread calls Handle; any thread calls address() and counters(); `sink`
// is called on the lending thread. The owner alone destroys it. Owner: NodeRuntime.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/engine/remote_attention.h"
#include "common/lending/lending.h"
#include "common/runtime/clock.h"

namespace tandem::lending {

struct LendingServiceOptions {
  NodeId node;
  Incarnation incarnation;
  std::string fleet_secret;
  // Where debtors of other hosts connect: an IP address, without a port. Empty: debtors of this
  // host only.
  std::string tcp_host;
  // A loan whose debtor was not heard of for so long has expired.
  absl::Duration lease_time = absl::Seconds(5);
  // The part of one processor that answers may take, over a second or so. Answers beyond it wait.
  double compute_share = 0.5;
  // How long the thread spins for the next question before it sleeps: in any case, and while its
  // processor has nothing else to do. A debtor's next question comes after the rest of its layer; a
  // thread that sleeps by then costs it a wake-up, 20 to 50 us on a virtual machine.
  absl::Duration spin = absl::Microseconds(50);
  absl::Duration spin_alone = absl::Milliseconds(3);
};

struct LendingServiceCounters {
  int64_t answers = 0;              // since the start, as all but `debtors`
  int64_t refusals = 0;             // questions about loans not served, or not well formed
  int64_t connections_refused = 0;  // without the secret, or for another node
  // For tests.
  int64_t debtors = 0;    // connected now
  int64_t delayed = 0;    // questions that waited because the share was used up
  int64_t bytes_out = 0;  // of answers
};

class LendingService {
 public:
  using Sink = absl::AnyInvocable<void(LendingEvent)>;
  // Starts the thread. `clock` outlives it. Errors: kUnavailable when no socket can be had.
  static absl::StatusOr<std::unique_ptr<LendingService>> Start(
      const LendingServiceOptions& options, std::unique_ptr<engine::PartialAttention> attention,
      const Clock& clock, Sink sink);
  virtual ~LendingService() = default;

  // For CreditorAddress: an abstract Unix socket's name, and a TCP address if there is one.
  virtual const std::string& address() const = 0;
  virtual void Handle(const ServeLoan& command) = 0;
  // Waits until the answer that is being computed from this loan is done: some milliseconds.
  virtual void Handle(const StopServing& command) = 0;
  virtual void Handle(const RecallLoan& command) = 0;
  virtual LendingServiceCounters counters() const = 0;
};

}  // namespace tandem::lending
