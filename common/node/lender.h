// The creditor's end of lending: keeps units of other nodes' sequences in this node's pool while
// they need it, and lets the lending plane answer questions about them. docs/LENDING.md is the
// protocol.
//
//   LendBlocks ─▶ LoanOffered(refused)
//       └─▶ LoanOffered, filling ─LeaseInstalled─▶ held ─LoanReturned, LoanExpired─▶ gone
//                           └─LeaseFailed─▶ gone      └─recalled, notice over─▶ gone
//
// Blocks that this node holds already, as prefix cache or in its own sequences, are pinned and not
// sent again. A loan's blocks become prefix cache when it ends. When this node's own sequences lack
// blocks, it recalls loans, the youngest first, and ends them after a notice.
//
// Thread safety: none; the engine thread. Owner: a core.
// Invariants: the blocks of a loan are pinned until StopServing was issued; at most lend_blocks_max
// blocks are lent; a node that has debts lends nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/kv/block_hash.h"
#include "common/lending/lending.h"
#include "common/node/node_ledger.h"

namespace tandem::node {

class Lender {
 public:
  static constexpr size_t kLoansMax = 4096;
  // How long a debtor may take to send a loan's blocks.
  static constexpr absl::Duration kFillTimeMax = absl::Seconds(6);
  // How long a debtor keeps a loan after its recall.
  static constexpr absl::Duration kNotice = absl::Seconds(1);

  // `scheduler` and `ledger` outlive it. lend_blocks_max 0: every LendBlocks is refused.
  Lender(SequenceScheduler& scheduler, NodeLedger& ledger, int64_t lend_blocks_max)
      : scheduler_(scheduler), ledger_(ledger), lend_blocks_max_(lend_blocks_max) {}

  // `indebted`: this node has borrowed itself.
  void OnLendBlocks(RouterKey router, const v1::LendBlocks& command, bool indebted, absl::Time now);
  // Events of other leases and unknown loans have no effect.
  void Handle(const transfer::LeaseInstalled& event);
  void Handle(const transfer::LeaseFailed& event);
  void Handle(const transfer::LeaseDrained& event);
  void Handle(const lending::LoanReturned& event) { End(event.key, "returned"); }
  void Handle(const lending::LoanExpired& event) { End(event.key, "its debtor was not heard of"); }
  // Forgets the loan's blocks: one of them is damaged, and this node does not know which.
  void Handle(const lending::LoanDamaged& event);
  void OnTick(absl::Time now);
  // Recalls all loans.
  void BeginDrain(absl::Time now);

  bool idle() const { return loans_.empty() && draining_.empty(); }
  int64_t leases() const { return static_cast<int64_t>(by_lease_.size() + draining_.size()); }
  int64_t blocks_lent() const { return blocks_lent_; }

 private:
  struct Loan {
    // Bound: the units of one loan.
    std::vector<BlockId> blocks;
    std::vector<kv::BlockHash> hashes;  // of `blocks`, while it is filled
    std::optional<LeaseId> lease;       // while it is filled
    int64_t held = 0;                   // of `blocks`: they were here before
    uint64_t order = 0;                 // of arrival
    std::optional<absl::Time> recalled_until;
  };
  // OK if a loan can be taken on; otherwise why not.
  absl::Status Check(const v1::LendBlocks& command, const lending::LoanKey& key, bool indebted,
                     int64_t blocks) const;
  // Takes on as many of the units as there is room for: pins those of their blocks that are here
  // and allocates the others. kResourceExhausted when there is no room for one.
  absl::StatusOr<Loan> Take(std::vector<kv::BlockHash> hashes);
  int64_t blocks_per_unit() const {
    return scheduler_.spec().unit_tokens / scheduler_.spec().layout.block_tokens;
  }
  void End(const lending::LoanKey& key, const std::string& why);
  void Recall(const lending::LoanKey& key, absl::Time now);
  // What this node's own sequences keep for themselves.
  int64_t Reserve() const;

  SequenceScheduler& scheduler_;
  NodeLedger& ledger_;
  const int64_t lend_blocks_max_;
  // Bound: kLoansMax.
  std::map<lending::LoanKey, Loan> loans_;
  std::map<LeaseId, lending::LoanKey> by_lease_;
  // Quarantined blocks of loans that ended while they were filled. Bound: lend_blocks_max blocks.
  std::map<LeaseId, std::vector<BlockId>> draining_;
  int64_t blocks_lent_ = 0;
  uint64_t next_order_ = 1;
  bool drains_ = false;
};

}  // namespace tandem::node
