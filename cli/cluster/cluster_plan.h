// What `tandem up` starts: the configuration of every process, derived from a few flags.
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/config/schema.h"
#include "common/node/node_config.h"
#include "common/rpc/tls.h"
#include "common/runtime/processors.h"
#include "router/process/router_config.h"

namespace tandem::cli {

struct UpConfig {
  std::string model = "smollm2";
  std::vector<std::string> served_model_name;
  std::string engine = "cpu";
  std::string device = "cpu";
  double gpu_memory_fraction = 0.9;
  int32_t prefill = 1;
  int32_t decode = 1;
  int32_t routers = 1;
  std::string grpc = "127.0.0.1:50051";
  std::string http = "8000";
  std::string api_keys;
  rpc::TlsFiles tls;
  int64_t responses_kept = 1024;
  std::vector<std::string> allowed_origins;
  std::string fleet_secret_file;  // empty = the fleet has no secret; `up` and `chaos` then draw one
  bool single_process = false;
  int32_t threads = 0;
  std::string pin = "auto";
  std::string transport = "auto";
  std::string kv_transport_choice = "auto";  // of nodes on a GPU
  std::string isa = "auto";
  std::string numerics = "auto";
  std::string weights = "auto";
  std::string weight_cache = "auto";
  std::string kv_type = "bf16";
  // What prefill nodes have in place of `device`, `isa` and `weights`; "same": nothing else.
  std::string prefill_device = "same";
  std::string prefill_isa = "same";
  std::string prefill_weights = "same";
  bool allow_mixed_numerics = false;
  int32_t block_tokens = 32;
  int64_t kv_blocks = 0;
  double kv_memory_fraction = 0.5;
  int64_t max_batch_tokens = 512;
  int32_t max_sequences = 64;
  int32_t local_prefill_tokens = 32;
  absl::Duration hash_step_time;
  absl::Duration hash_row_time;
  int64_t hash_eos_every = 0;
  absl::Duration ready_timeout = absl::Seconds(120);
  absl::Duration drain_timeout = absl::Seconds(30);
  std::string log_level = "info";
  bool quiet = false;
};

void RegisterUpConfig(config::Schema& schema, UpConfig& config);

// Router `index` of the cluster: the first listens where `grpc` says, the others on ports of their
// own.
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
