// Carries out a schedule's faults on a simulated cluster. The end of a fault undoes what that fault
// did, and nothing that another fault still does: a process that one fault holds down, pauses or
// slows is not touched by the end of another. Thread safety: none; the simulation's thread. Owner:
// the simulation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/control_stream.h"
#include "sim/sim_clients.h"
#include "sim/sim_node.h"
#include "sim/sim_router.h"
#include "sim/world/schedule.h"
#include "sim/world/violations.h"
#include "sim/world/virtual_network.h"
#include "sim/world/world.h"

namespace tandem::sim {

class FaultInjector {
 public:
  // What faults act on. All of it outlives the injector.
  struct Cluster {
    const Topology& topology;
    const std::vector<std::unique_ptr<SimRouter>>& routers;
    const std::vector<std::unique_ptr<SimNode>>& nodes;
    const std::vector<std::unique_ptr<ControlStream>>& streams;
    SimClients& clients;
    VirtualNetwork& network;
  };
  FaultInjector(World& world, RunLog& log, const Cluster& cluster)
      : world_(world), log_(log), cluster_(cluster) {}

  // Begins the fault now; it ends by itself. `fault` outlives the injector.
  void Inject(const Fault& fault);

 private:
  // A fault that has begun and not ended.
  struct Active {
    const Fault* fault;
    // The life of the process that it pauses or drains: what comes after it is not its doing.
    uint64_t life;
  };

  SimNode* NodeAt(int64_t id) const;
  Process& ProcessAt(int64_t id) const;
  void InjectProcessFault(const Fault& fault);
  void EndProcessFault(const Active& ended);
  // Ends a drain that did not end in time.
  void EndDrain(const Active& ended, Process& process);
  // Starts a process that is down, unless another fault holds it down.
  void StartAgain(int64_t target);
  void BlockFor(const Fault& fault, bool both_ways);
  // Gives links, frames and processes' speeds what the last fault of this kind says that is active.
  void SetRate(const Fault& fault);
  void SetFrameFaults(FaultKind kind);
  void SetSlowness(int64_t target);
  // The active fault that began last among those for which `is` holds; null: none.
  template <typename Predicate>
  const Active* Last(Predicate is) const;
  // Puts the fault among the active ones; calls `end` when it is over.
  template <typename Callable>
  void Activate(const Fault& fault, uint64_t life, Callable end);

  World& world_;
  RunLog& log_;
  const Cluster cluster_;
  std::vector<Active> active_;  // by their beginnings; bound: the schedule's faults
};

}  // namespace tandem::sim
