// Lending KV memory: a node whose pool is short (the debtor) has the oldest KV of a running
// sequence kept by another node (the creditor). The creditor keeps the blocks and computes
// attention over them; docs/LENDING.md is the protocol. This file holds the commands by which a
// node's core runs both ends, and the events by which the node's lending plane answers. The lending
// plane is two objects: the LendingService serves a creditor's loans on a thread of its own, and
// the CreditorLinks ask for a debtor's on the engine thread. The simulator has its own plane.
//
//   a loan at its creditor   ServeLoan ─▶ served ─StopServing──▶ gone
//                                           ├─LoanReturned──▶ (core) StopServing
//                                           ├─LoanExpired───▶ (core) StopServing
//                                           └─LoanDamaged───▶ (core) StopServing
//   a loan at its debtor     UseLoan ──▶ used ─ReturnLoan──▶ gone
//                                           └─LoanLost──▶ (core) ReturnLoan
//
// A creditor that is late fails the slices that ask it: CreditorLate. CreditorAnswers follows when
// it has answered, or LoanLost for the loans that it was asked about.
//
// Blocks travel to a creditor as an ordinary KV transfer (common/transfer/kv_transfer.h).
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/engine/remote_attention.h"

namespace tandem::lending {

// One run of a debtor's process.
struct DebtorId {
  NodeId node;
  Incarnation incarnation;
  friend bool operator==(const DebtorId& a, const DebtorId& b) {
    return a.node == b.node && a.incarnation == b.incarnation;
  }
  friend bool operator<(const DebtorId& a, const DebtorId& b) {
    return std::tie(a.node, a.incarnation) < std::tie(b.node, b.incarnation);
  }
};

// Names a loan at its creditor. The debtor chose the number and never uses it again.
struct LoanKey {
  DebtorId debtor;
  LoanId loan;
  friend bool operator<(const LoanKey& a, const LoanKey& b) {
    return std::tie(a.debtor, a.loan) < std::tie(b.debtor, b.loan);
  }
  friend bool operator==(const LoanKey& a, const LoanKey& b) {
    return a.debtor == b.debtor && a.loan == b.loan;
  }
};

// ---- core → plane, at the creditor -----------------------------------------------------------

// Answer this debtor's questions about `units`, whose KV lies in `blocks`. The blocks are
// pinned until StopServing. The debtor asks only after the KV transfer that fills them was
// acknowledged. REQUIRES: the key is not served.
struct ServeLoan {
  LoanKey key;
  engine::UnitSpan units;
  std::vector<BlockId> blocks;
};
// Answers no more, from the moment at which the command has been carried out: no thread reads the
// loan's blocks after it. The driver carries it out before the core's transfer commands and before
// the next step.
struct StopServing {
  LoanKey key;
};
// The debtor has to give the loan back within the notice that the core allows: it hears of it with
// its next answer. Once a loan.
struct RecallLoan {
  LoanKey key;
};

// ---- core → plane, at the debtor -------------------------------------------------------------

// How to reach a creditor; from its registration.
struct CreditorAddress {
  NodeId node;
  Incarnation incarnation;
  std::string host;
  std::string lending_address;  // opaque
};
// Questions about `loan` go to this creditor.
struct UseLoan {
  LoanId loan;
  CreditorAddress creditor;
};
// No more questions about the loan; tell the creditor so, if it can be reached.
struct ReturnLoan {
  LoanId loan;
};

using LendingCommand = std::variant<ServeLoan, StopServing, RecallLoan, UseLoan, ReturnLoan>;

// ---- plane → core ----------------------------------------------------------------------------

// The debtor has given the loan back.
struct LoanReturned {
  LoanKey key;
};
// The debtor has not been heard of for the lease time.
struct LoanExpired {
  LoanKey key;
};
// A block of the loan does not hold what it should: questions about it fail with kDataLoss.
struct LoanDamaged {
  LoanKey key;
};
// At the debtor: the creditor does not hold the loan any more, or cannot be reached. Its units have
// to be computed again. kDataLoss: what it holds is damaged, as may be what this node sent. At most
// once a loan; slices that use the loan fail meanwhile.
struct LoanLost {
  LoanId loan;
  absl::Status why;
};
// At the debtor: the creditor wants its memory back.
struct LoanRecalled {
  LoanId loan;
};
// At the debtor: slices failed because this creditor has not answered in time.
struct CreditorLate {
  DebtorId creditor;
};
// At the debtor: this creditor was late. It has answered since, and may be asked again. Some of the
// loans that it was asked about may have been lost meanwhile.
struct CreditorAnswers {
  DebtorId creditor;
};

using LendingEvent = std::variant<LoanReturned, LoanExpired, LoanDamaged, LoanLost, LoanRecalled,
                                  CreditorLate, CreditorAnswers>;

}  // namespace tandem::lending
