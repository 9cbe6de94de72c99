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
  // Routers were told a load of which this is HeldBy, with other news.
  void OnReported(int64_t held) { reported_ = held; }
  // Whether they are to be told the load now that this is HeldBy of; they then know it.
  bool TakeDue(int64_t held) { return held < std::exchange(reported_, std::min(held, reported_)); }

  // What NodeCore::held says without building the load. A node with debts is asked for no loan, so
  // its debts' end is room for others, too.
  static int64_t HeldBy(const v1::NodeLoad& load) {
    int64_t held = load.blocks_used() + load.blocks_quarantined() + load.leases() + load.exports();
    for (const v1::Debt& debt : load.debts()) held += debt.blocks();
    return held;
  }

 private:
  int64_t reported_ = 0;
};

}  // namespace tandem::node
