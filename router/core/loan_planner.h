// Decides which nodes shall lend so that the fleet generates more tokens a second (Infinite-LLM's
// second version, arXiv 2401.02669v2). A node whose pool is full of long sequences computes small
// batches while requests wait. If another node has memory to spare, the first one (the debtor) can
// have k blocks kept there (at the creditor), and take waiting sequences into its batch.
//
// For each pair of nodes, and each number n of waiting sequences that would fit in, the planner
// predicts the tokens a second of both nodes, before and after, with the cost model of placement
// (common/cost/step_cost.h). B sequences that attend to A tokens generate B / T(B, A):
//
//   debtor    B / T(B, A)  ─▶  (B + n) / T',   T' = kSlowdown * max(T(B + n, A + a - L), R)
//   creditor  B / T(B, A)  ─▶  B / T(B, A) * (1 - min(R / T', kComputeShare))
//
// where the n sequences have a tokens, L tokens of KV are lent, and R is the time that the creditor
// takes to attend to them, once for each step of the debtor. The best plan is ordered if both
// together gain more than kGainMin. The debtor then asks for the loan as for any other
// (loan_broker.h); either node may refuse.
//
// Hysteresis: a debtor keeps a planned loan for some time (Borrower::kPlannedKept); a node that was
// one end of a plan becomes the other end of none for kRoleKept.
//
// Thread safety: none; the core owns it, on the core's strand.
// Invariants: one plan a tick at most; each tick looks at kNodesMax debtors, kNodesMax creditors
// and kWaitingMax sequences at most.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "router/core/router_actions.h"
#include "router/fleet/fleet.h"

namespace tandem::router {

class LoanPlanner {
 public:
  static constexpr size_t kWaitingMax = 32, kNodesMax = 8;
  static constexpr absl::Duration kInterval = absl::Milliseconds(100);
  // From a debtor's plan to its next one: its reports show by then what became of the first.
  static constexpr absl::Duration kSettle = absl::Milliseconds(500);
  static constexpr absl::Duration kRoleKept = absl::Seconds(10);
  // Of the tokens a second of both nodes.
  static constexpr double kGainMin = 0.05;
  // What asking creditors adds to a debtor's steps: the median gap of an answer on a machine whose
  // two cores debtor and creditors share (docs/measurements/2026-11-27-lending.md).
  static constexpr double kSlowdown = 1.05;
  static constexpr double kComputeShare = 0.5;  // nodes' default --lend-compute-share

  struct Plan {
    const Node* debtor = nullptr;
    const Node* creditor = nullptr;
    int64_t blocks = 0;     // whole units
    int64_t sequences = 0;  // that then fit in
    double gain = 0;        // as a share of both nodes' tokens a second before
  };

  // Both outlive the planner.
  LoanPlanner(const Fleet& fleet, RouterActions& actions) : fleet_(fleet), actions_(actions) {}

  // Orders the best plan, if there is one and it is time. `waiting`: the tokens that sequences in
  // the queue need room for, in order.
  void OnTick(absl::Span<const int64_t> waiting, absl::Time now);
  // Whether OnTick would look for a plan.
  bool due(absl::Time now) const { return fleet_.lends() && now >= next_; }
  // The best plan now, whatever time it is.
  std::optional<Plan> Best(absl::Span<const int64_t> waiting, absl::Time now) const;
  void OnNodeLost(NodeKey key) { roles_.erase(key); }
  int64_t plans() const { return plans_; }

 private:
  struct Role {
    bool debtor = false;
    absl::Time since;
  };
  // Whether the node may be the debtor, or else the creditor, of a plan.
  bool MayBe(const Node& node, bool debtor, absl::Time now) const;
  // The nodes that may be, those with the most blocks to lend away, or to spare, first.
  std::vector<const Node*> Candidates(bool debtor, absl::Time now) const;
  // The best plan of the pair; no gain if there is none.
  Plan BestOf(const Node& debtor, const Node& creditor, absl::Span<const int64_t> waiting) const;

  const Fleet& fleet_;
  RouterActions& actions_;
  absl::Time next_ = absl::InfinitePast();
  int64_t plans_ = 0;
  // The nodes' last plans. Bound: the fleet's nodes.
  std::map<NodeKey, Role> roles_;
};

}  // namespace tandem::router
