#include "sim/trace/trace_simulation.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/hash_model.h"
#include "sim/control_stream.h"
#include "sim/sim_node.h"
#include "sim/sim_router.h"
#include "sim/trace/token_engine.h"
#include "sim/trace/trace_clients.h"
#include "sim/trace/trace_prompt.h"
#include "sim/world/virtual_network.h"

namespace tandem::sim {
namespace {

// All nodes have joined all routers by then.
constexpr absl::Duration kWarmUp = absl::Seconds(1);
// Names of blocks that are not computed again; 40 bytes each.
constexpr size_t kNamesRemembered = 1 << 21;
constexpr absl::Duration kTick = absl::Milliseconds(50);  // of routers
// Nodes look at deadlines of seconds with it.
constexpr absl::Duration kNodeTick = absl::Milliseconds(100);

class TraceSimulation {
 public:
  TraceSimulation(const TraceOptions& options, const TraceSummary& summary, int64_t blocks,
                  WorkloadSource& source);
  absl::StatusOr<TraceResult> Run();

 private:
  NodeSeams MakeSeams();
  void AddRouters();
  void AddNodes(v1::NodeRole role, int count, const char* name);
  void AddStreams();
  void ReportNodes();

  const TraceOptions& options_;
  Topology topology_;
  // Routers and nodes name the same prompts.
  const kv::BlockKey block_key_ =
      kv::BlockKey().Remembering(std::make_shared<kv::BlockNameMemo>(kNamesRemembered));
  const int32_t context_tokens_;
  // Of its own, so that noise changes nothing else that is random.
  const std::unique_ptr<Random> step_random_;
  World world_;
  RunLog log_;
  TimedNetwork planes_;
  VirtualNetwork network_;  // of control streams; nothing blocks it
  TraceResult result_;
  TraceClients clients_;
  std::vector<std::unique_ptr<SimRouter>> routers_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  std::vector<std::unique_ptr<ControlStream>> streams_;
};

Topology TopologyOf(const TraceOptions& options, int64_t blocks, int64_t block_tokens) {
  Topology topology;
  topology.routers = options.routers;
  topology.prefill_nodes = options.prefill_nodes;
  topology.decode_nodes = options.decode_nodes;
  topology.blocks_per_node = blocks;
  topology.block_tokens = block_tokens;
  topology.max_batch_tokens = options.max_batch_tokens;
  topology.max_sequences = options.max_sequences;
  topology.itl_slo_us = absl::ToInt64Microseconds(options.itl_slo);
  topology.hop_us = 0;
  return topology;
}

TraceSimulation::TraceSimulation(const TraceOptions& options, const TraceSummary& summary,
                                 int64_t blocks, WorkloadSource& source)
    : options_(options),
      topology_(TopologyOf(options, blocks, summary.block_tokens)),
      context_tokens_(static_cast<int32_t>(summary.sequence_tokens_max + 1)),
      step_random_(NewSeededRandom(~options.seed)),
      world_(options.seed),
      log_(world_, /*timeline=*/false),
      planes_(options.link),
      network_(world_, {.processes = static_cast<int>(topology_.processes())}),
      clients_(world_, source,
               {.block_tokens = summary.block_tokens,
                .objectives = options.objectives,
                .service_mix = options.service_mix,
                .seed = options.seed},
               result_) {
  AddRouters();
  AddNodes(v1::NODE_ROLE_PREFILL, options.prefill_nodes, "prefill-");
  AddNodes(v1::NODE_ROLE_DECODE, options.decode_nodes, "decode-");
  AddStreams();
}

void TraceSimulation::AddRouters() {
  SimRouterOptions options;
  options.core.router_id = "simulated";
  options.core.placement = options_.placement;
  options.core.prefill_wait_max = options_.prefill_wait_max;
  options.core.queue_deadline = options_.queue_deadline;
  options.core.default_tier = options_.default_tier;
  options.core.block_key = block_key_;
  options.model = {.name = std::string(model::kHashModelName),
                   .fingerprint = std::string(model::kHashModelFingerprint),
                   .vocab_size = kTraceVocabSize,
                   .context_tokens = context_tokens_};
  options.tick_interval = kTick;
  options.checked = false;
  for (int i = 0; i < options_.routers; ++i)
    routers_.push_back(std::make_unique<SimRouter>(
        world_, i, absl::StrCat("router-", i), absl::ZeroDuration(), options, log_,
        [this](SimRouter&, const RequestId& id, const router::ClientEvent& event) {
          clients_.OnEvent(id, event);
        }));
}

NodeSeams TraceSimulation::MakeSeams() {
  NodeSeams seams;
  seams.engine = [this] {
    return NewTokenEngine({.block_tokens = static_cast<int32_t>(topology_.block_tokens),
                           .kv_bytes_per_token = options_.kv_bytes_per_token,
                           .vocab_size = kTraceVocabSize,
                           .context_tokens = context_tokens_});
  };
  seams.kv_plane = [this](KvPlaneSite site) {
    return std::make_unique<TimedPlane>(planes_, std::move(site));
  };
  seams.storage = [this](StorageSite site) {
    return TimedStorage::Create(
        {.host = options_.host_memory,
         .disk = options_.disk,
         .block_bytes = topology_.block_tokens * options_.kv_bytes_per_token},
        topology_.blocks_per_node, std::move(site));
  };
  seams.step_time = [this](const cost::StepShape& shape) {
    // The factor was learned from gaps between tokens, so it counts for all between two steps.
    const double us = options_.step_cost.Predict(shape).us;
    const double gap_us = absl::ToDoubleMicroseconds(options_.step_gap);
    const double factor = options_.step_noise.Factor(*step_random_);
    const double noisy_us = std::max(0.0, us * factor + gap_us * (factor - 1));
    return absl::Nanoseconds(static_cast<int64_t>(noisy_us * 1e3));
  };
  seams.probed = options_.step_cost;
  seams.block_key = block_key_;
  seams.inbox_waits = true;
  seams.between_steps = options_.step_gap;
  seams.tick_interval = kNodeTick;
  seams.heartbeat_interval = absl::Seconds(1);
  seams.one_host = false;
  seams.checked = false;
  return seams;
}

void TraceSimulation::AddNodes(v1::NodeRole role, int count, const char* name) {
  for (int i = 0; i < count; ++i) {
    const int id = static_cast<int>(routers_.size() + nodes_.size());
    SimNodeOptions node{.role = role, .topology = topology_, .seams = MakeSeams()};
    nodes_.push_back(std::make_unique<SimNode>(world_, id, absl::StrCat(name, i),
                                               absl::ZeroDuration(), std::move(node), log_));
  }
}

void TraceSimulation::AddStreams() {
  const ControlStream::Options options{.delay_max = absl::Microseconds(topology_.control_us)};
  for (const auto& router : routers_) {
    for (const auto& node : nodes_) {
      streams_.push_back(
          std::make_unique<ControlStream>(world_, network_, options, *router, *node));
      router->AddStream(*streams_.back());
      node->AddStream(*streams_.back());
    }
  }
}

void TraceSimulation::ReportNodes() {
  for (const auto& node : nodes_) {
    const NodeWork& work = node->work();
    result_.nodes.push_back({.name = node->name(),
                             .prefill = node->core().role() == v1::NODE_ROLE_PREFILL,
                             .busy_s = absl::ToDoubleSeconds(work.busy),
                             .steps = work.steps,
                             .prompt_tokens = work.prompt_rows,
                             .generated_tokens = work.generated_rows});
  }
}

absl::StatusOr<TraceResult> TraceSimulation::Run() {
  std::vector<SimRouter*> routers;
  for (const auto& router : routers_) {
    router->Start();
    routers.push_back(router.get());
  }
  for (const auto& node : nodes_) node->Start();
  clients_.Start(std::move(routers), kWarmUp);
  while (!clients_.done() && (!clients_.exhausted() ||
                              world_.now() < clients_.last_arrival() + kPatienceAfterLastArrival))
    world_.RunUntil(world_.now() + absl::Milliseconds(100));
  RETURN_IF_ERROR(clients_.status());
  clients_.GiveUp();
  ReportNodes();
  result_.events = world_.events_run();
  return std::move(result_);
}

}  // namespace

absl::StatusOr<int64_t> BlocksPerNode(const TraceOptions& options, const TraceSummary& summary) {
  const int64_t longest = summary.sequence_tokens_max / summary.block_tokens + 2;
  const int64_t nodes = options.prefill_nodes + options.decode_nodes;
  const int64_t blocks =
      options.blocks_per_node > 0 ? options.blocks_per_node : summary.distinct_blocks + longest;
  if (blocks < longest)
    return absl::InvalidArgumentError(
        absl::StrCat("nodes have ", blocks, " blocks, and the trace's longest sequence takes ",
                     longest, " of ", summary.block_tokens, " tokens"));
  const int64_t stored = options.host_memory.blocks + options.disk.blocks;
  if (blocks + stored > kSimulatedBlocksMax / std::max<int64_t>(1, nodes))
    return absl::InvalidArgumentError(absl::StrCat(nodes, " nodes of ", blocks, " blocks and ",
                                                   stored, " stored ones each, expected at most ",
                                                   kSimulatedBlocksMax, " blocks in all"));
  return blocks;
}

absl::StatusOr<TraceResult> RunTrace(const TraceOptions& options, const TraceSummary& summary,
                                     WorkloadSource& source) {
  if (options.routers < 1 || options.decode_nodes < 1 || options.prefill_nodes < 0)
    return absl::InvalidArgumentError("expected at least one router and one decode node");
  if (options.prefill_nodes + options.decode_nodes > kSimulatedNodesMax)
    return absl::InvalidArgumentError(absl::StrCat(options.prefill_nodes + options.decode_nodes,
                                                   " nodes, expected at most ",
                                                   kSimulatedNodesMax));
  ASSIGN_OR_RETURN(const int64_t blocks, BlocksPerNode(options, summary));
  return TraceSimulation(options, summary, blocks, source).Run();
}

}  // namespace tandem::sim
