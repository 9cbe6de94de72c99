// The clients of a simulated trace: each request is sent once, when the trace says, to the routers
// in rotation, and its answer is timed.
// Thread safety: none; the simulation's thread. Owner: the trace simulation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "sim/sim_router.h"
#include "sim/trace/service_mix.h"
#include "sim/trace/trace_result.h"
#include "sim/trace/trace_summary.h"
#include "sim/trace/workload_source.h"

namespace tandem::sim {

class TraceClients {
 public:
  struct Options {
    int64_t block_tokens = kTraceBlockTokens;  // of the source
    TraceObjectives objectives;
    ServiceMix service_mix;
    uint64_t seed = 1;
  };
  // What is named here outlives the clients; `result` gets all counts but those of nodes.
  TraceClients(World& world, WorkloadSource& source, const Options& options, TraceResult& result)
      : world_(world),
        source_(source),
        options_(options),
        result_(result),
        ceiling_(options.block_tokens) {}

  // Sends the first request after `delay`, and every other one when it is due. `routers` are alive
  // and outlive the clients' last event.
  void Start(std::vector<SimRouter*> routers, absl::Duration delay);
  void OnEvent(const RequestId& id, const router::ClientEvent& event);

  // Whether no request is left to send or to be answered.
  bool done() const { return exhausted_ && running_.empty(); }
  // The latest arrival so far.
  absl::Time last_arrival() const { return last_arrival_; }
  bool exhausted() const { return exhausted_; }
  // Of the source; it ends the load.
  const absl::Status& status() const { return status_; }
  // Counts the requests that still run as unfinished.
  void GiveUp();

 private:
  struct Running {
    absl::Time arrived;
    std::optional<absl::Time> last_token;
    absl::Duration ttft;
    int64_t ceiling_tokens = 0;                       // PrefixCeiling's
    std::shared_ptr<const router::ServiceTier> tier;  // null: none is counted
    // Bound: the tokens of one answer.
    std::vector<int64_t> gaps_ns;
  };

  void ReadNext();
  void Send(const TraceRequest& request, int64_t ceiling_tokens);
  void OnTokens(Running& request, size_t count);
  void OnDone(const Running& request, const router::SequenceDone& done);
  // Counts the answer for its tier.
  void CountTier(const Running& request);
  // The request was not answered.
  void OnError(const std::shared_ptr<const router::ServiceTier>& tier, const absl::Status& status);

  World& world_;
  WorkloadSource& source_;
  const Options options_;
  TraceResult& result_;
  PrefixCeiling ceiling_;
  std::vector<SimRouter*> routers_;
  absl::Time start_, last_arrival_;
  // Bound: RouterOptions::requests_max of each router.
  absl::flat_hash_map<int64_t, Running> running_;  // by number
  bool exhausted_ = false;
  absl::Status status_;
};

}  // namespace tandem::sim
