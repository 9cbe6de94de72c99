// Carries out a fault plan on a cluster of real processes, and restarts the processes that faults
// ended. Thread safety: one thread at a time. Owner: the chaos command.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/chaos/chaos_cluster.h"
#include "cli/chaos/fault_plan.h"
#include "cli/chaos/namespaces.h"

namespace tandem::cli {

// A process may still die of a fault of its memory this long after the fault.
inline constexpr absl::Duration kChaosMemoryGrace = absl::Seconds(3);

class FaultRunner {
 public:
  // `cluster` and `namespaces` (null on loopback) outlive this. REQUIRES: no fault of the network
  // or the disk in `faults` without namespaces.
  FaultRunner(std::vector<ChaosFault> faults, const ChaosTopology& topology, ChaosCluster& cluster,
              Namespaces* namespaces);

  // Begins and ends the faults that are due at `since_begin`. Call it about every 10 ms.
  void Tick(absl::Duration since_begin);
  // Ends all active faults, and starts the processes that are down. A drain that goes on is a hang
  // if its time is over at `since_begin`.
  void EndAll(absl::Duration since_begin);
  // Whether every fault has begun and ended.
  bool over() const { return next_ == faults_.size() && active_.empty() && draining_.empty(); }

  // Faults begun so far, with their actual times.
  const std::vector<ChaosFault>& carried_out() const { return carried_out_; }
  // Processes that ended without a fault that explains it, or did not end when they drained.
  const std::vector<std::string>& crashes() const { return crashes_; }

 private:
  void Begin(ChaosFault fault);
  // REQUIRES: the fault is not active any more.
  void End(const ChaosFault& fault, absl::Duration now);
  bool Active(ChaosFaultKind kind) const;
  // Whether a fault of its memory explains that the process ended in this way.
  bool DiedOfMemory(const ChaosCluster::Ended& ended, absl::Duration now) const;
  void EndThoseOverAt(absl::Duration since_begin);
  void OnEnded(const ChaosCluster::Ended& ended, absl::Duration now);
  void StartDown(int process);
  // Gives each network link the worst condition that an active fault sets for it.
  void ApplyNetwork();
  void EndMemoryFault(int process, absl::Duration now);

  const std::vector<ChaosFault> faults_;
  const ChaosTopology topology_;
  ChaosCluster& cluster_;
  Namespaces* const namespaces_;
  size_t next_ = 0;
  absl::Duration late_;  // how far the plan has fallen behind
  std::vector<ChaosFault> active_, carried_out_;
  std::set<int> draining_;  // a fault sent SIGTERM, and the process has not ended yet
  // A fault took the memory of these processes. They may die of it until then.
  std::map<int, absl::Duration> memory_limited_until_;
  std::vector<std::string> crashes_;
};

}  // namespace tandem::cli
