// The debtor's end of lending: when the pool runs short, it has the oldest units of running
// sequences kept by other nodes, so that the sequences go on instead of being preempted.
// docs/LENDING.md is the protocol.
//
//   BeforeStep ─LoanWanted─▶ router ─LoanAnswer─▶ asked ─▶ sending ─ExportDone─▶ ready
//     ready ─BeforeStep: the scheduler gives the units' blocks back─▶ used
//     used  ─sequence ends, or is computed again─▶ ReturnLoan, gone
//
// A loan that is refused, or fails before it is used, costs nothing: its blocks are still here. The
// units of one that is lost while it is used are computed again from their tokens, and lent again
// where others after them are (sequence_rebuild.h).
//
// A creditor that wants its memory back recalls a loan. The borrower then brings the units home
// (loan_home.h) if they are the last that their sequence has lent and there is room. Otherwise it
// asks for another creditor, which fetches them from the first one; when that one has them, the
// new loan takes the old one's place between two steps. If no node takes them, they are computed
// again. Without a recall, too, units come home when this node has had room for a while:
// attention over them then needs no question.
//
// While the units of a lost loan are computed again, the borrower asks for a node that still holds
// their blocks, as prefix cache: it lends them, or another node fetches them from it.
//
// A router may also ask for loans that the node does not need: requests wait, and there would be
// room for them here (router/core/loan_planner.h). Such a plan holds for a short time; what was
// lent for it does not come home at once.
//
// A split prompt, which its decode node cannot hold, is computed on a prefill node: that lends its
// first units as they are computed, and sends the rest to the decode node. That one takes the loans
// over: it asks each creditor, through a router, for a loan of the blocks that it holds already, or
// another node that fetches them from there, and the sequence sits out until all are granted. The
// prefill node keeps its own loans for a while after that.
//
// Thread safety: none; the engine thread. Owner: NodeResources.
// Invariants: a unit of a sequence lies here or with one creditor; the blocks of a loan that is
// sent are pinned until the export ends; a sequence has at most one loan that is not used yet,
// beside those that replace others or regain lost units; a loan moves once at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/lending/creditor_links.h"
#include "common/lending/lending.h"
#include "common/node/creditor_costs.h"
#include "common/node/loan_home.h"
#include "common/node/moving_pace.h"
#include "common/node/node_ledger.h"

namespace tandem::node {

class Borrower {
 public:
  static constexpr size_t kUnusedMax = 2;   // loans asked for, sent or ready, at a time
  static constexpr size_t kMovesMax = 4;    // likewise, of loans that replace others
  static constexpr size_t kRegainsMax = 8;  // likewise, of loans of lost units
  static constexpr int32_t kUnitsMax = 16;  // of one loan; it ends with a group of so many units
  static constexpr size_t kEndedKept = 64;  // ended loans that are remembered, to blame by name
  // Beside cost::LoanBytesTime where a creditor fetches the units before it answers.
  static constexpr absl::Duration kAnswerTimeMax = absl::Seconds(2);
  static constexpr absl::Duration kSendTimeMax = absl::Seconds(5);
  // No more units are asked for than the pace sends in this time, if it is more than one. When it
  // slows down, the last blocks go so long before kSendTimeMax: they have to be verified.
  static constexpr absl::Duration kSendTimeAimed = absl::Milliseconds(2500);
  static constexpr absl::Duration kSendTimeLeft = absl::Seconds(1);
  static constexpr absl::Duration kAfterRefusal = absl::Milliseconds(200);  // until it asks again
  static constexpr absl::Duration kAvoidTime = absl::Seconds(10);  // a creditor that failed
  static constexpr absl::Duration kAvoidRecaller = absl::Seconds(2);
  // Units come home by themselves so long after the last loan began to be used, or ended, and if
  // that failed, again after some time.
  static constexpr absl::Duration kHomeAfter = absl::Milliseconds(250);
  static constexpr absl::Duration kHomeAgainAfter = absl::Seconds(5);
  // A plan that has not led to loans by then is forgotten.
  static constexpr absl::Duration kPlanTimeMax = absl::Seconds(2);
  // After a planned loan began to be used, no units come home by themselves for so long.
  static constexpr absl::Duration kPlannedKept = absl::Seconds(5);
  // How long the loans of a split prompt are kept after its end was sent.
  static constexpr absl::Duration kSplitLoansKept = absl::Seconds(2);
  // After so many refusals in a row, a prompt that is computed for another node is given up.
  static constexpr int32_t kSplitRefusalsMax = 3;
  // A sequence that has not got on with its lost units for so long, while no loan was sent and
  // nothing of it was being read from storage, gives up all of its blocks and loans, and is
  // computed again.
  static constexpr absl::Duration kRebuildStalledMax = absl::Seconds(3);
  // A sequence that has lost loans so often and got no further meanwhile ends: creditors grant them
  // and cannot serve it.
  static constexpr int32_t kLossesMax = 3;
  static constexpr absl::Duration kLossesApart = absl::Seconds(1);  // those within it count once
  // Sequences that no step has computed for so long, because no node lends, end.
  static constexpr absl::Duration kStarvedMax = absl::Seconds(10);
  // Nothing counts as stalled or starved before so many steps were planned meanwhile: loans get on
  // between two steps only, and a step may take longer than the times above.
  static constexpr int64_t kStalledPlansMin = 8;

  // `scheduler` and `ledger` outlive it. Not `enabled`: it never asks.
  Borrower(SequenceScheduler& scheduler, NodeLedger& ledger, bool enabled)
      : scheduler_(scheduler), ledger_(ledger), enabled_(enabled), home_(scheduler, ledger) {}

  // The node begins a role. REQUIRES: idle().
  void OnRoleBegun() {
    plan_ = {};
    starved_.reset();
  }
  void OnRouterJoined(RouterKey router) { routers_.push_back(router); }
  void OnRouterLost(RouterKey router);
  void OnAnswer(const v1::LoanAnswer& answer, absl::Time now);
  // A router's plan; it replaces the one before. Blocks that no running sequence can lend are
  // ignored.
  void OnPlan(const v1::BorrowBlocks& plan, absl::Time now);
  // Events of other exports and leases and unknown loans have no effect.
  void Handle(const transfer::ExportDone& event);
  void Handle(const transfer::ExportFailed& event, absl::Time now);
  void Handle(const transfer::LeaseInstalled& event) { home_.Handle(event); }
  void Handle(const transfer::LeaseFailed& event);
  void Handle(const transfer::LeaseDrained& event) { home_.Handle(event); }
  // The creditor whose blocks come home under `lease` has left the fleet.
  void OnNoHolder(LeaseId lease);
  void Handle(const lending::LoanLost& event, absl::Time now);
  void Handle(const lending::LoanRecalled& event, absl::Time now);
  void Handle(const lending::CreditorLate& event, absl::Time now);
  void Handle(const lending::CreditorAnswers& event);

  // The loans of a prompt, for the node that takes them over.
  std::vector<v1::KvLoan> NameLoans(const Sequence& sequence);
  // Takes over the loans of the prompt's first `units` units, all of which were received. False:
  // they are not these units, or no router can be asked; nothing has changed then. If a loan is
  // refused later, the sequence is computed again. REQUIRES: as SequenceScheduler::AwaitLoans.
  bool TakeOver(SequenceId id, int32_t units, absl::Span<const v1::KvLoan> loans, absl::Time now);

  // Before each PlanStep, with no step running.
  void BeforeStep(absl::Time now);
  // Whether that PlanStep planned something, or had nothing to do, or blocks come back by a
  // deadline.
  void AfterPlan(bool progress, absl::Time now);
  void OnTick(absl::Time now);
  // The sequence that cannot go on because it gets no memory, if there is one: the core ends it.
  std::vector<SequenceId> TakeStarved(absl::Time now);
  // Those that have lost loans kLossesMax times and got no further: the core ends them.
  std::vector<SequenceId> TakeOftenLost();
  // A wait that begins now.
  struct Wait {
    absl::Time since;
    int64_t plans = 0;  // that there were before it
  };
  Wait BeginWait(absl::Time now) const { return {now, plans_}; }
  // Whether it has taken `most`, and kStalledPlansMin steps were planned meanwhile.
  bool IsTooLong(const Wait& wait, absl::Duration most, absl::Time now) const {
    return now - wait.since >= most && plans_ - wait.plans >= kStalledPlansMin;
  }

  // Of running sequences, whole units: other nodes could keep them.
  int64_t blocks_lendable() const;
  // Sets the debts.
  void AddTo(v1::NodeLoad& load) const;
  // What the links have measured since the last time; the driver hands it on before each report.
  void OnRoundTrips(absl::Span<const lending::LinkRoundTrip> round_trips);
  // What is known of the links to creditors. The version rises when it changes.
  google::protobuf::RepeatedPtrField<v1::CreditorLink> links() const;
  int64_t links_version() const { return costs_.version(); }
  // Their blocks.
  int64_t blocks_owed() const;
  bool idle() const { return !indebted() && split_loans_kept_.empty(); }
  // Whether this node has borrowed, or has asked for a loan. The loans of a split prompt whose end
  // was sent do not count: nothing here waits for them, and they end by themselves.
  bool indebted() const { return !loans_.empty() || !home_.idle(); }
  int64_t leases() const { return home_.leases(); }
  int64_t exports() const { return static_cast<int64_t>(by_export_.size()); }

  // A loan as this end knows it; for checkers. Valid until the next call that is not const.
  struct LoanView {
    LoanId id;
    SequenceId sequence;
    engine::UnitSpan units;
    const lending::CreditorAddress* creditor = nullptr;  // null until one has granted the loan
    bool used = false;
  };
  std::vector<LoanView> loans() const;
  // Likewise those of split prompts whose end was sent.
  const std::deque<std::pair<LoanId, absl::Time>>& split_loans_kept() const {
    return split_loans_kept_;
  }

 private:
  enum class State { kAsked, kSending, kReady, kUsed };
  struct Loan {
    SequenceId sequence;
    engine::UnitSpan units;
    State state = State::kAsked;
    absl::Time deadline;  // until used
    lending::CreditorAddress creditor;
    bool has_creditor = false;
    // Bound: kUnitsMax units' blocks.
    std::vector<BlockId> pinned;  // those that are sent, while they are
    transfer::ExportId export_id;
    int32_t pushed = 0;  // of `pinned`
    // A loan that is used, and whose units this one takes over from its creditor.
    std::optional<LoanId> replaces;
    bool planned = false;   // a router wants it for the fleet's throughput
    bool is_needed = true;  // a sequence of this node lacks the memory
    bool of_split = false;  // of a prompt that is computed for another node
    bool is_named = false;  // that node knows of it, and may take it over
    // Until it is used: `creditor` keeps the units for another node's loan, and is asked first.
    bool taken_over = false;
    // Of lost units. Until it is granted, `creditor` is the one that has lost them.
    bool regains = false;
    // Of a used one: its creditor wants its memory back; another loan is to replace it; it did not
    // come home, and stays away until then.
    bool recalled = false, is_replaced = false;
    absl::Time away_until = absl::InfinitePast();
  };
  using Loans = std::map<LoanId, Loan>;

  int64_t blocks_per_unit() const {
    return scheduler_.spec().unit_tokens / scheduler_.spec().layout.block_tokens;
  }
  // Fewer available blocks than this are too few.
  int64_t LowWatermark() const;
  void Ask(absl::Time now);
  // Units that a plan still wants lent.
  int64_t PlannedUnits(absl::Time now) const;
  // Asks a router for a creditor. `loan` has its sequence and units.
  void SendWanted(LoanId id, const Loan& loan, absl::Time now);
  // The running sequence with the most units to lend, without those of a loan not yet used.
  const Sequence* Richest() const;
  // A prompt whose units are to be lent now because it is computed for another node, or null.
  const Sequence* NextSplit() const;
  // A sequence whose lost units were computed again, and are to be lent now: loans follow them.
  const Sequence* NextRebuilt() const;
  // Whether a loan for the sequence is not used yet, beside those that replace others or regain
  // lost units.
  bool IsAsked(SequenceId sequence) const;
  // When a loan of units that another creditor has, or had, has to be granted.
  absl::Time MoveDeadline(const engine::UnitSpan& units, absl::Time now) const;
  // Whether the units are the next that the sequence can lend.
  bool CanLend(const Sequence& sequence, const engine::UnitSpan& units) const;

  // ---- sending: borrower_sends.cc
  void Send(LoanId id, Loan& loan, const v1::LoanAnswer& answer, absl::Time now);
  // Blocks that loans may send before the next step, all together.
  int32_t BlocksBeforeStep(absl::Time now) const;
  // What is to be sent, and the room that is left meanwhile; nothing is due.
  MovingPace::Room SendingRoom() const;
  // As many of the sequence's next units as are sent in kSendTimeAimed and as sent_units_max_
  // allows, and at least one.
  int32_t UnitsInTime(const Sequence& sequence, int32_t units) const;
  // Whether there are steps that the loan's copies share the machine with: not of a prompt whose
  // rows are all computed.
  bool SharesSteps(const Loan& loan) const;
  // Sends what is left of the step's blocks.
  void PushSome(Loan& loan);
  void UseReady(absl::Time now);
  // Drops loans whose time is over before they were used: those that are ready, or the others.
  void DropLate(bool ready, absl::Time now);
  void ReturnEnded(absl::Time now);
  void ReturnSplitLoans(absl::Time now);
  void EndStalledRebuilds(absl::Time now);

  // ---- moving: borrower_moves.cc
  // Recalled loans go home, to another creditor, or end with the computation of their units.
  void MoveRecalled(absl::Time now);
  // Brings one loan's units home if there has been room for them for a while.
  void BringHome(absl::Time now);
  // Begins to bring the units home; false when they have to stay. `spare`: blocks that stay
  // available beside theirs.
  bool BeginHome(LoanId id, const Loan& loan, int64_t spare, absl::Time now);
  // What has come home is this node's again.
  void UseHome(absl::Time now);
  // The loan did not come home.
  void StayAway(LoanId id);
  // Asks for a creditor that takes the place of the used loan's.
  void AskForAnother(LoanId id, Loan& loan, absl::Time now);
  // The ready loan takes the place of the one that it replaces, if that is still used.
  void Replace(Loans::iterator it);
  // Whether the loan's sequence is to go on here, and has lent these units under `as`.
  bool IsLentAs(const Loan& loan, LoanId as) const;
  // No creditor takes over what the loan was to replace: its units are computed again.
  void OnNotReplaced(const Loan& loan);
  // No node lends what a prompt's decode node cannot hold.
  void OnSplitRefused(const Loan& loan);
  // No creditor grants the loan that was to be taken over: its sequence is computed again.
  void OnNotTakenOver(const Loan& loan, LoanId id);
  void UseTakenOver(Loans::iterator it);
  // Asks for another holder of a lost loan's units, if its sequence has kept the rest.
  void AskForLost(const Loan& lost, absl::Time now);
  // Whether the first of its units are of use without the others: those can be computed.
  bool MayRegainSome(const Loan& loan) const;
  // The units are lent again once they follow what the sequence has lent.
  void UseRegained(Loans::iterator it);
  // No other node holds them: they are computed again, or, where they cannot be, the sequence is.
  void OnNotRegained(const Loan& loan);
  // Forgets a loan that is not used; its creditor hears of it if it has one.
  void Drop(Loans::iterator it, const std::string& why);
  void Unpin(Loan& loan);
  // The sequence's blocks cannot be sent: it is computed again.
  void OnWithdrawn(Loans::iterator it, absl::Time now);
  // The sequence has lost a loan that it used.
  void CountLoss(SequenceId id, absl::Time now);
  // Avoids the loan's creditor for a while. If a block was damaged (kDataLoss), forgets the loan's
  // blocks that are here instead: this node may have sent them damaged.
  void Blame(const Loan& loan, const absl::Status& why, absl::Time now);
  void Avoid(const std::string& node, absl::Time until) {
    absl::Time& avoided = avoid_[node];
    avoided = std::max(avoided, until);
  }

  SequenceScheduler& scheduler_;
  NodeLedger& ledger_;
  const bool enabled_;
  LoanHome home_;
  // Bound: the routers that this node has joined.
  std::vector<RouterKey> routers_;
  // Bound: the units of the node's sequences, kUnusedMax, kMovesMax and kRegainsMax.
  Loans loans_;
  // When a loan last began to be used, or ended.
  absl::Time last_change_ = absl::InfinitePast();
  // Bound: kUnusedMax, and exports that were cancelled and have not ended.
  std::map<transfer::ExportId, LoanId> by_export_;
  // Pinned blocks of cancelled exports. Bound: as by_export_.
  std::map<transfer::ExportId, std::vector<BlockId>> cancelled_;
  // Until when a creditor that failed is not asked. Bound: the nodes of the fleet; past ones go.
  std::map<std::string, absl::Time> avoid_;
  // Loans of split prompts whose end was sent, and until when they are kept. Bound: as loans_, of
  // those that ended within kSplitLoansKept.
  std::deque<std::pair<LoanId, absl::Time>> split_loans_kept_;
  struct Reached {
    int64_t place = 0;
    Wait wait;
  };
  // How far sequences that compute lost units were, and since when. Bound: the sequences.
  std::map<SequenceId, Reached> rebuilds_;
  struct Losses {
    int64_t place = 0;  // how far the sequence was at the last one
    int32_t count = 0;  // since it came there
    absl::Time counted = absl::InfinitePast();
  };
  // Of sequences that have lost loans. Bound: the sequences, and those that ended since a tick.
  std::map<SequenceId, Losses> losses_;
  // The last loans that ended. Bound: kEndedKept.
  std::deque<std::pair<LoanId, Loan>> ended_;
  absl::Time ask_after_ = absl::InfinitePast();
  MovingPace pace_;
  CreditorCosts costs_;
  int32_t step_blocks_ = MovingPace::kBlocksMax;  // that may still be sent before the next step
  int32_t split_refusals_ = 0;                    // in a row
  // Half of those of a loan that came too late: the links may be slower than the pace. It doubles
  // with each loan of so many units that is used.
  int32_t sent_units_max_ = kUnitsMax;
  // The last plan, as far as no loan was asked for.
  struct Planned {
    int64_t units = 0;
    std::string creditor;
    absl::Time until = absl::InfinitePast();
  } plan_;
  absl::Time keep_until_ = absl::InfinitePast();  // what is lent stays, unless it is recalled
  // Since sequences run of which no step computes any, though no blocks come back by a deadline.
  std::optional<Wait> starved_;
  int64_t plans_ = 0;  // steps that were planned
  absl::Time now_;     // of the last BeforeStep or OnTick
  uint64_t next_loan_ = 1;
};

}  // namespace tandem::node
