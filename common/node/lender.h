// The creditor's end of lending: keeps units of other nodes' sequences in this node's pool while
// they need it, and lets the lending plane answer questions about them. docs/LENDING.md is the
// protocol.
//
//   LendBlocks ─▶ LoanOffered(refused)
//       └─▶ LoanOffered, filling ─LeaseInstalled─▶ held ─LoanReturned, LoanExpired─▶ gone
//                           └─LeaseFailed─▶ gone      └─recalled, notice over─▶ gone
//
// A loan that moves here from another creditor is fetched from that one; its LoanOffered comes when
// the blocks have arrived and were verified.
//
// Blocks that this node holds already, as prefix cache or in its own sequences, are pinned and not
// sent again. A question about blocks that are arriving for another loan is answered when they have
// arrived: a decode node may ask for the units of a split prompt before this node's own threads
// have told each other that they are here. A loan's blocks become prefix cache when it ends. When
// this node's own sequences lack blocks, it recalls loans, those that no sequence needs and then
// the youngest first, and ends them after a notice. The debtor moves a recalled loan if it can, and
// computes the sequence again otherwise.
//
// Two sequences that outgrow their nodes could keep each other from going on for ever. So the one
// that came to its router first goes on, of two that came at once the one whose node has the lesser
// id: for it, this node holds back a sequence of its own that may outgrow the pool and is younger,
// and starts it again when nothing is lent to an older one.
//
// Thread safety: none; the engine thread. Owner: NodeResources.
// Invariants: the blocks of a loan are pinned until StopServing was issued; at most lend_blocks_max
// blocks are lent, where a block of several loans counts once; a node that has debts lends nothing.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/cost/loan_time.h"
#include "common/kv/block_hash.h"
#include "common/lending/lending.h"
#include "common/node/node_ledger.h"

namespace tandem::node {

class Lender {
 public:
  static constexpr size_t kLoansMax = 4096;
  // How long a debtor may take to send a loan's blocks.
  static constexpr absl::Duration kFillTimeMax = absl::Seconds(6);
  // How long a debtor keeps a loan after its recall, beside cost::LoanBytesTime of its blocks.
  static constexpr absl::Duration kNotice = absl::Seconds(1);
  // How long the creditor that a loan leaves may take to send its blocks here, likewise.
  static constexpr absl::Duration kFetchTimeMax = absl::Seconds(1);
  // Questions that wait for another loan's blocks, and for how long at most: routers ask another
  // node soon after that (LoanBroker::kFirstTime).
  static constexpr size_t kWaitingMax = 64;
  static constexpr absl::Duration kWaitMax = absl::Seconds(1);
  // How long a sequence that gave way to another node's waits at least: that one asks again.
  static constexpr absl::Duration kHeldMin = absl::Seconds(1);

  // `scheduler` and `ledger` outlive it. lend_blocks_max 0: every LendBlocks is refused.
  Lender(SequenceScheduler& scheduler, NodeLedger& ledger, int64_t lend_blocks_max)
      : scheduler_(scheduler), ledger_(ledger), lend_blocks_max_(lend_blocks_max) {}

  // `indebted`: this node has borrowed itself (Borrower::indebted).
  void OnLendBlocks(RouterKey router, const v1::LendBlocks& command, bool indebted, absl::Time now);
  // Answers questions that have waited: call it before each plan.
  void AnswerWaiting(bool indebted, absl::Time now);
  // Events of other leases and unknown loans have no effect.
  void Handle(const transfer::LeaseInstalled& event);
  void Handle(const transfer::LeaseFailed& event);
  void Handle(const transfer::LeaseDrained& event);
  void Handle(const lending::LoanReturned& event) { End(event.key, "returned"); }
  void Handle(const lending::LoanExpired& event) { End(event.key, "its debtor was not heard of"); }
  // Forgets the loan's blocks: one of them is damaged, and this node does not know which.
  void Handle(const lending::LoanDamaged& event);
  // The node that a loan's blocks were to be fetched from has left the fleet.
  void OnNoHolder(LeaseId lease);
  void OnTick(absl::Time now);
  // Recalls all loans; each ends within half of `time_left`, or after its usual notice if that is
  // longer.
  void BeginDrain(absl::Time now, absl::Duration time_left);

  bool idle() const { return loans_.empty() && draining_.empty() && waiting_.empty(); }
  int64_t leases() const { return static_cast<int64_t>(by_lease_.size() + draining_.size()); }
  int64_t blocks_lent() const { return std::ssize(lent_); }

  // A loan as this end knows it; for checkers. Valid until the next call that is not const.
  struct LoanView {
    lending::LoanKey key;
    absl::Span<const BlockId> blocks;
    absl::Span<const kv::BlockHash> hashes;  // of `blocks`
    bool filling = false;                    // not all blocks have arrived
    bool offered = false;                    // served once they have: it moves here
  };
  std::vector<LoanView> loans() const;

 private:
  struct Loan {
    // Bound: the units of one loan.
    std::vector<BlockId> blocks;
    std::vector<kv::BlockHash> hashes;  // of `blocks`
    std::optional<LeaseId> lease;       // while it is filled
    int64_t held = 0;                   // of `blocks`: they were here before
    uint64_t order = 0;                 // of arrival
    // Of the sequence, at its router; 0: no sequence needs the loan.
    int64_t arrived_us = 0;
    std::optional<absl::Time> recalled_until;
    // Of a loan that moves here, until it is filled: it is not served before.
    struct Offer {
      RouterKey router;
      int32_t first_unit = 0, units = 0;
    };
    std::optional<Offer> offer;
  };
  struct Question {
    RouterKey router;
    v1::LendBlocks command;
    LeaseId lease;  // that brings the first block which is not here
    absl::Time until;
  };
  // The lease of another loan that brings the first of these blocks that is not here.
  std::optional<LeaseId> Bringing(absl::Span<const kv::BlockHash> hashes) const;
  // `may_wait`: for blocks that are arriving.
  void Answer(RouterKey router, const v1::LendBlocks& command, bool indebted, bool may_wait,
              absl::Time now);
  // OK if a loan can be taken on; otherwise why not.
  absl::Status Check(const v1::LendBlocks& command, const lending::LoanKey& key, bool indebted,
                     int64_t blocks) const;
  // Takes on as many of the units as there is room for: pins those of their blocks that are here
  // and allocates the others. kResourceExhausted when there is no room for one, or, with `whole`,
  // for all.
  absl::StatusOr<Loan> Take(std::vector<kv::BlockHash> hashes, bool whole);
  void CountLent(absl::Span<const BlockId> blocks);
  void UncountLent(absl::Span<const BlockId> blocks);
  // Opens the lease that fills the loan.
  void OpenLease(const lending::LoanKey& key, Loan& loan, absl::Time deadline);
  // Asks the router to have the blocks that the loan lacks sent here.
  void Fetch(RouterKey router, const v1::LendBlocks& command, const Loan& loan);
  void Serve(const lending::LoanKey& key, const Loan& loan, int32_t first_unit, int32_t units);
  int64_t blocks_per_unit() const {
    return scheduler_.spec().unit_tokens / scheduler_.spec().layout.block_tokens;
  }
  void End(const lending::LoanKey& key, const std::string& why);
  void Recall(const lending::LoanKey& key, absl::Time until);
  // What so many blocks of a loan may take to another node.
  absl::Duration BlocksTime(int64_t blocks) const {
    return cost::LoanBytesTime(blocks * scheduler_.spec().layout.block_bytes());
  }
  // Holds back a sequence of this node's that is younger than the debtor's, which came at
  // `arrived_us`; false when there is none.
  bool MakeRoom(const NodeId& debtor, int64_t arrived_us, absl::Time now);
  // Sequences that are held back go on if no loan of an older one is left.
  void EndHoldBack(absl::Time now);
  // What this node's own sequences keep for themselves.
  int64_t Reserve() const;

  SequenceScheduler& scheduler_;
  NodeLedger& ledger_;
  const int64_t lend_blocks_max_;
  // Bound: kLoansMax.
  std::map<lending::LoanKey, Loan> loans_;
  std::map<LeaseId, lending::LoanKey> by_lease_;
  // Bound: kWaitingMax, each about as many blocks as the pool has at most.
  std::vector<Question> waiting_;
  // Quarantined blocks of loans that ended while they were filled. Bound: lend_blocks_max blocks.
  std::map<LeaseId, std::vector<BlockId>> draining_;
  // How many loans each lent block belongs to. Bound: lend_blocks_max blocks.
  absl::flat_hash_map<BlockId, int32_t> lent_;
  uint64_t next_order_ = 1;
  bool drains_ = false;
  std::optional<absl::Time> held_until_;  // a sequence is held back, at least until then
};

}  // namespace tandem::node
