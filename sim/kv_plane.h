// The seam between a simulated node and the KV plane: what moves KV blocks from node to node. Two
// versions exist. EndpointPlane runs the shipping KV transfer endpoint over the virtual network, so
// that faults can hit single frames. TimedPlane (sim/trace/timed_plane.h) only says when a transfer
// ends, so that thousands of nodes fit into one process.
// Thread safety: none; the simulation's thread. Owner: a SimNode, for one life of its process.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/transfer/kv_transfer.h"

namespace tandem::sim {

class KvPlane {
 public:
  virtual ~KvPlane() = default;

  // Where other nodes reach this one; unique in the simulation.
  virtual const std::string& address() const = 0;
  virtual void Handle(const transfer::TransferCommand& command, absl::Time now) = 0;
  // Deadlines. At least every 50 ms.
  virtual void Tick(absl::Time now) = 0;
  // Events since the last call, in order.
  virtual std::vector<transfer::TransferEvent> TakeEvents() = 0;
  virtual transfer::TransferCounters counters() const = 0;
};

}  // namespace tandem::sim
