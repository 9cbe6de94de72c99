// The loans that a creditor serves. The engine thread adds and ends them; the lending thread looks
// them up, and marks one as in use while it computes from its blocks.
// Invariants: after Stop no thread reads the loan's blocks. A loan that has ended (expired,
// returned) is answered no more, and one event says so; it stays until Stop.
// Thread safety: the engine thread calls Serve, Stop and Recall; the lending thread calls the rest.
// Owner: LendingService.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/engine/remote_attention.h"
#include "common/lending/lending.h"

namespace tandem::lending {

class LoanTable {
 public:
  static constexpr size_t kLoansMax = 16384;
  static constexpr size_t kLoansOfDebtorMax = 4096;

  // Adds a loan, or units to one. A loan beyond the two bounds ends at once, as if it had expired.
  // REQUIRES: each unit has the same number of blocks, in all loans; units that are added follow
  // the loan's.
  void Serve(const ServeLoan& command, absl::Time now);
  // Waits while the loan is in use.
  void Stop(const LoanKey& key);
  void Recall(const LoanKey& key);

  // What an answer is computed from. `blocks` stay valid until EndUse, with any number of Serve.
  struct Use {
    std::shared_ptr<const std::vector<BlockId>> owner;  // shared: Serve may replace the loan's
    absl::Span<const BlockId> blocks;                   // of the units asked for
  };
  // Marks the loan as in use until EndUse; its debtor was heard at `now`. One loan at a time.
  // `debtor` outlives the use. Errors: kNotFound: the loan is not served; kInvalidArgument: units
  // that are not the loan's.
  absl::StatusOr<Use> BeginUse(const DebtorId& debtor, LoanId loan, const engine::UnitSpan& units,
                               absl::Time now);
  void EndUse();
  // The debtor was heard at `now`. Errors: kNotFound.
  absl::Status Renew(const DebtorId& debtor, LoanId loan, absl::Time now);
  // The debtor gives the loan back. Errors: kNotFound.
  absl::Status Return(const DebtorId& debtor, LoanId loan);
  bool IsRecalled(const DebtorId& debtor, LoanId loan);
  // Ends the loans whose debtors were not heard since `heard_after`. Returns what ended since the
  // last call.
  std::vector<LendingEvent> TakeEnded(absl::Time heard_after);
  size_t size() const;

 private:
  struct Loan {
    engine::UnitSpan units;
    std::shared_ptr<const std::vector<BlockId>> blocks;  // shared with the use that reads them
    absl::Time heard;
    bool is_recalled = false;
    bool has_ended = false;
  };
  // Bound: kLoansOfDebtorMax served ones; those that have ended stay until the core's Stop.
  using DebtorLoans = absl::flat_hash_map<LoanId, Loan>;

  Loan* Find(const DebtorId& debtor, LoanId loan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Loan*> FindServed(const DebtorId& debtor, LoanId loan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  // Bound: kLoansMax loans of all debtors; a debtor without loans is removed.
  absl::btree_map<DebtorId, DebtorLoans> debtors_ ABSL_GUARDED_BY(mutex_);
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  // Bound: the loans; TakeEnded empties it.
  std::vector<LendingEvent> ended_ ABSL_GUARDED_BY(mutex_);
  // What is in use; nullptr: nothing.
  const DebtorId* used_debtor_ ABSL_GUARDED_BY(mutex_) = nullptr;
  LoanId used_loan_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::lending
