// A simulated node's lending plane: both ends of its loans (common/lending/lending.h). A question
// is answered in no time, from the creditor's memory as it is at that moment; it fails when the
// creditor is dead, another incarnation, or does not serve the loan. A creditor that is paused, or
// behind a partition, is late: it answers when it can be reached again, or has lost its loans after
// kLateMax. One that nothing is asked has lost them after the lease time, as for CreditorLinks.
// Thread safety: none; the simulation's thread. Owner: a SimNode, for one life of its process.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/engine/remote_attention.h"
#include "common/lending/creditor_links.h"
#include "common/lending/lending.h"
#include "sim/checkers/loan_checker.h"

namespace tandem::sim {

class SimLending final : public engine::RemoteAttention {
 public:
  static constexpr absl::Duration kLeaseTime = absl::Seconds(1);
  static constexpr absl::Duration kLateMax = absl::Milliseconds(300);

  // What a node's lending plane is for another node now.
  struct Reached {
    SimLending* plane = nullptr;  // null: messages do not reach it, or do not come back
    bool silent = false;          // it may live: it is stopped, or behind a partition
  };
  struct Site {
    lending::DebtorId self;
    std::function<Reached(const NodeId& node)> reach;
    // Something for the core.
    std::function<void(lending::LendingEvent event)> on_event;
    std::function<absl::Time()> now;  // the world's
    absl::Duration round_trip;        // that it reports of a question; no time passes
  };
  SimLending(Site site, std::unique_ptr<engine::PartialAttention> attention)
      : site_(std::move(site)), attention_(std::move(attention)) {}

  void Handle(const lending::LendingCommand& command);
  // Renews and expires loans, and tells which creditors are late. At least every 50 ms.
  void Tick();
  void Ask(absl::Span<engine::RemotePart>) override {}
  void Collect(absl::Span<engine::RemotePart> parts) override;
  // As CreditorLinks does.
  std::vector<lending::LinkRoundTrip> TakeRoundTrips();

  // For checkers.
  bool Serves(BlockId block) const { return served_blocks_.contains(block); }
  // Whether it neither serves nor uses a loan.
  bool idle() const { return served_.empty() && used_.empty(); }
  // What the checker of loans wants to know of this plane.
  void AddTo(LoanParty& party) const;
  // The nodes that keep units for this one, lost loans' included, under other loans than `but`.
  std::set<std::string> creditors(const std::set<LoanId>& but) const {
    std::set<std::string> names;
    for (const auto& [loan, used] : used_)
      if (!but.contains(loan)) names.insert(used.creditor.node.value());
    return names;
  }

 private:
  struct Served {
    engine::UnitSpan units;
    std::vector<BlockId> blocks;
    absl::Time heard;
    bool recalled = false;
  };
  struct Used {
    lending::CreditorAddress creditor;
    absl::Time heard;
    bool lost = false, recalled = false;
    absl::Time late_since = absl::InfiniteFuture();  // InfiniteFuture: it is not
  };
  // At the creditor.
  absl::Status Answer(const lending::LoanKey& key, engine::RemotePart& part, bool& recalled);
  absl::Status Renew(const lending::LoanKey& key, bool& recalled);
  void Returned(const lending::LoanKey& key);
  // At the debtor.
  // Another incarnation is not reached.
  Reached CreditorOf(const Used& used) const;
  void NoteRecall(LoanId loan, bool recalled);
  void Lose(LoanId loan, const absl::Status& why);

  void Carry(const lending::ServeLoan& command);
  void Carry(const lending::StopServing& command);
  void Carry(const lending::RecallLoan& command);
  void Carry(const lending::UseLoan& command) {
    used_[command.loan] = {.creditor = command.creditor, .heard = site_.now()};
  }
  void Carry(const lending::ReturnLoan& command);

  const Site site_;
  const std::unique_ptr<engine::PartialAttention> attention_;
  std::map<lending::LoanKey, Served> served_;
  std::multiset<BlockId> served_blocks_;
  std::map<LoanId, Used> used_;
  std::set<lending::DebtorId> answered_by_;  // since the last TakeRoundTrips
};

}  // namespace tandem::sim
