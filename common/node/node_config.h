// Configuration of a node process, prefill or decode. Fields, ranges and help texts:
// RegisterNodeConfig.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/config/schema.h"

namespace tandem::node {

struct NodeConfig {
  std::string id;
  std::vector<std::string> routers = {"127.0.0.1:50052"};
  std::string health = "127.0.0.1:0";
  std::string model = "smollm2";
  std::string engine = "cpu";
  std::string device = "cpu";
  double gpu_memory_fraction = 0.9;
  std::string isa = "auto";
  std::string numerics = "auto";
  std::string weights = "auto";
  std::string weight_cache = "auto";
  std::string gemm_tiles = "auto";
  int32_t threads = 0;
  std::string cpus;
  std::string kv_type = "bf16";
  int32_t block_tokens = 32;
  int64_t kv_blocks = 0;
  double kv_memory_fraction = 0.5;
  int64_t max_batch_tokens = 512;
  int32_t max_sequences = 64;
  int64_t context_tokens = 0;
  std::string transport = "auto";
  std::string kv_transport_choice = "auto";
  std::string host;
  std::string fleet_secret_file;
  absl::Duration drain_timeout = absl::Seconds(30);
  absl::Duration progress_deadline = absl::Seconds(120);
  absl::Duration hash_step_time;
  absl::Duration hash_row_time;
  int64_t hash_eos_every = 0;
  std::string log_level = "info";
};

// `config` outlives `schema`.
void RegisterNodeConfig(config::Schema& schema, NodeConfig& config);

}  // namespace tandem::node
