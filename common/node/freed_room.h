// Notices that a node has come to hold less than its routers know, so that it can tell them at once
// instead of with the next heartbeat: an abort frees room without an event, and so do a lease that
// has drained, a loan that was returned to its creditor, and a debt that has ended.
//
// A report is due only when less is held than at the last one, and each report says all of it. So
// there are at most as many reports as times that room was taken and freed again.
// Thread safety: none. Owner: NodeRuntime's engine thread, or the simulator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "tandem/v1/client.pb.h"

namespace tandem::node {

class FreedRoom {
 public:
  // Routers were told this load, with other news.
  void OnReported(const v1::NodeLoad& load) { reported_ = HeldBy(load); }
  // Whether they are to be told this load now; they then know it.
  bool TakeDue(const v1::NodeLoad& load) {
    const int64_t held = HeldBy(load);
    return held < std::exchange(reported_, std::min(held, reported_));
  }

 private:
  // A node with debts is asked for no loan, so its debts' end is room for others, too.
  static int64_t HeldBy(const v1::NodeLoad& load) {
    int64_t held = load.blocks_used() + load.blocks_quarantined() + load.leases() + load.exports();
    for (const v1::Debt& debt : load.debts()) held += debt.blocks();
    return held;
  }

  int64_t reported_ = 0;
};

}  // namespace tandem::node
