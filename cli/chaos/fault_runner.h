// Carries a plan of faults out on a cluster of real processes, and starts again what they ended.
// Thread safety: by its owner.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/chaos/chaos_cluster.h"
#include "cli/chaos/fault_plan.h"
#include "cli/chaos/namespaces.h"

namespace tandem::cli {

class FaultRunner {
 public:
  // `cluster` and `namespaces` (null on loopback) outlive this. REQUIRES: no fault of the network
  // or the disk in `faults` without namespaces.
  FaultRunner(std::vector<ChaosFault> faults, const ChaosTopology& topology, ChaosCluster& cluster,
              Namespaces* namespaces);

  // Begins and ends what is due `since_begin`. Call every 10 ms or so.
  void Tick(absl::Duration since_begin);
  // Ends all that still goes on, and starts what is down.
  void EndAll();
  // Every fault has begun and ended.
  bool over() const { return next_ == faults_.size() && active_.empty() && draining_.empty(); }

  // Faults begun so far, with the times they really had.
  const std::vector<ChaosFault>& carried_out() const { return carried_out_; }
  // Processes that ended though no fault explains it.
  const std::vector<std::string>& crashes() const { return crashes_; }

 private:
  void Begin(ChaosFault fault);
  void End(const ChaosFault& fault);
  void OnEnded(const ChaosCluster::Ended& ended, absl::Duration now);
  void StartDown(int process);
  // Each link gets the worst of what the active faults do to it.
  void ApplyNetwork();
  void LimitMemory(int process, bool limited);

  const std::vector<ChaosFault> faults_;
  const ChaosTopology topology_;
  ChaosCluster& cluster_;
  Namespaces* const namespaces_;
  size_t next_ = 0;
  absl::Duration late_;  // how far the plan has fallen behind
  std::vector<ChaosFault> active_, carried_out_;
  std::set<int> draining_;  // told to end by a fault, and still there
  std::set<int> starved_;   // processes that ran out of memory by a fault, and may die of it later
  std::vector<std::string> crashes_;
};

}  // namespace tandem::cli
