// What `tandem up` starts: the configuration of every process, derived from one configuration.
//
// `tandem up` takes the flags of routers and nodes over from RegisterRouterConfig and
// RegisterNodeConfig, and writes their values into the `router` and `node` members of UpConfig.
// PlanRouter and PlanNode copy these members and set only what differs between the processes. A new
// flag of a node or router is thus a flag of `tandem up` without a change here.
//
// Thread safety: values and pure functions. Owner: the command that starts a cluster.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/config/common_options.h"
#include "common/config/schema.h"
#include "common/node/node_config.h"
#include "common/runtime/processors.h"
#include "router/process/router_config.h"

namespace tandem::cli {

struct UpConfig {
  // For every process. No fleet_secret_file: the fleet has none; `up` and `chaos` then draw one.
  // Counts in place of node.common and router.common.
  config::CommonOptions common;
  // For every router. PlanRouter sets id, fleet, grpc, http and admin.
  router::RouterConfig router;
  // Where the routers serve, the first's first. A router beyond a list's end serves on a free port
  // of the host that the list names last; none serves what an empty list is for.
  std::vector<std::string> grpc = {"127.0.0.1:50051"};
  std::vector<std::string> http = {"8000"};
  std::vector<std::string> admin;
  // For every node. PlanNode sets id, routers and cpus; it shares threads (0) and memory fractions
  // out among the nodes.
  node::NodeConfig node;
  int32_t prefill = 1;
  int32_t decode = 1;
  int32_t routers = 1;
  bool single_process = false;
  std::string pin = "auto";
  // What prefill nodes have in place of `device`, `isa` and `weights`; "same": nothing else.
  std::string prefill_device = "same";
  std::string prefill_isa = "same";
  std::string prefill_weights = "same";
  int64_t prefill_kv_blocks = 0;  // what they have in place of kv.blocks; 0: nothing else
  absl::Duration ready_timeout = absl::Seconds(120);
  bool quiet = false;
  std::string logs = "auto";
};

// What single fields cannot say: as many addresses as routers at most.
// Errors: kInvalidArgument, with the flag.
absl::Status CheckUpConfig(const UpConfig& config);

// `config` outlives `schema`.
void RegisterUpConfig(config::Schema& schema, UpConfig& config);

// Router `index` of the cluster.
router::RouterConfig PlanRouter(const UpConfig& up, int index);
// Node `index` of its kind. This machine's processors are shared between the nodes that compute on
// them; the KV memory and a GPU's memory between those on the same device.
node::NodeConfig PlanNode(const UpConfig& up, const std::string& role, int index,
                          const Processors& processors,
                          const std::vector<std::string>& fleet_addresses);

// The configuration as flags for a process of its own.
std::vector<std::string> ToFlags(const router::RouterConfig& config);
std::vector<std::string> ToFlags(const node::NodeConfig& config);

}  // namespace tandem::cli
