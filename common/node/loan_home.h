// Brings the units of one loan home: fetches their blocks from the creditor, which still holds them
// by name, into this node's pool. An ordinary KV transfer (lease and export) moves them, as in
// PrefixFetch; layers with a window have no part in it.
//
//   Begin ─▶ BlocksWanted to the router ─▶ leased ─LeaseInstalled─▶ ready ─Take─▶ gone
//                                             └─LeaseFailed─▶ quarantined ─LeaseDrained─▶ gone
//
// Thread safety: none; the engine thread. Owner: a Borrower.
// Invariants: one loan at a time; the blocks are pinned from Begin to Take or Drop, and are found
// by their hashes only after all of them arrived and were verified.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/kv/block_hash.h"
#include "common/lending/lending.h"
#include "common/node/node_ledger.h"

namespace tandem::node {

class LoanHome {
 public:
  // A fetch that takes longer, beside cost::LoanBytesTime of its blocks, is given up: the creditor
  // was lost before it began to send.
  static constexpr absl::Duration kTimeMax = absl::Seconds(1);

  // `scheduler` and `ledger` outlive it.
  LoanHome(SequenceScheduler& scheduler, NodeLedger& ledger)
      : scheduler_(scheduler), ledger_(ledger) {}

  // What comes home.
  struct Units {
    LoanId loan;
    SequenceId sequence;
    std::vector<kv::BlockHash> hashes;  // of the units' blocks. Bound: the units of one loan
  };
  // Asks `router` for the units' blocks. REQUIRES: idle; that many blocks are available.
  void Begin(RouterKey router, const lending::CreditorAddress& creditor, Units units,
             absl::Time now);
  // The loan that comes home now, if one does; ready: all of its blocks are here.
  std::optional<LoanId> loan() const {
    return units_.has_value() ? std::optional(units_->loan) : std::nullopt;
  }
  bool IsOf(SequenceId sequence) const {
    return units_.has_value() && units_->sequence == sequence;
  }
  bool ready() const { return ready_; }
  // The blocks, in the units' order; the caller owns the references. REQUIRES: ready.
  std::vector<BlockId> Take();
  // Gives up what is under way or ready. No effect when nothing is.
  void Drop(const std::string& why);

  // Events of other leases have no effect. True: the loan did not come home.
  bool Handle(const transfer::LeaseFailed& event);
  void Handle(const transfer::LeaseInstalled& event);
  void Handle(const transfer::LeaseDrained& event);
  // The creditor has left the fleet. True as above.
  bool OnNoHolder(LeaseId lease);

  bool idle() const { return !units_.has_value() && quarantined_.empty(); }
  int64_t leases() const { return idle() || ready_ ? 0 : 1; }

 private:
  SequenceScheduler& scheduler_;
  NodeLedger& ledger_;
  std::optional<Units> units_;
  LeaseId lease_;
  bool ready_ = false;
  // Bound: the blocks of one loan, each. The second is of a fetch that was given up.
  std::vector<BlockId> blocks_, quarantined_;
};

}  // namespace tandem::node
