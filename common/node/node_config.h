// Configuration of a node process, prefill or decode. Each field's flag, range and help text is
// described once, by RegisterNodeConfig; `tandem up` takes them over from there.
//
// Thread safety: a value. Owner: the process's main, or `tandem up` with --single-process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/config/common_options.h"
#include "common/config/schema.h"

namespace tandem::node {

// The KV cache, and how its blocks travel to other nodes.
struct KvOptions {
  std::string type = "bf16";
  int32_t block_tokens = 32;
  int64_t blocks = 0;  // 0 = as memory_fraction allows
  double memory_fraction = 0.5;
  std::string transport = "auto";
  std::string payload_memory = "auto";     // --kv-path: through device or host memory
  bool encryption = false;                 // --kv-encryption: of blocks on their way
  std::string disk;                        // folder of the node's BlockFile; empty = none
  int64_t disk_bytes = int64_t{16} << 30;  // of that file
  int64_t swap_bytes = 0;                  // of a BlockFile in host memory; 0 = none
  double lend_fraction = 0;                // of the pool; 0 = the node neither lends nor borrows
  double lend_compute_share = 0.5;         // of one processor, for answers to debtors
  std::string lending_host;                // for debtors of other hosts; empty = of this host only
  bool uses_disk() const { return !disk.empty() && disk_bytes > 0; }
  // Blocks may leave the pool and come back: for a BlockFile, which holds whole ones.
  bool stores_blocks() const { return swap_bytes > 0 || uses_disk(); }
};

// The engine that computes no model (tests).
struct HashOptions {
  absl::Duration step_time;
  absl::Duration row_time;
  int64_t eos_every = 0;  // 0 = never
};

struct NodeConfig {
  config::CommonOptions common;
  std::string id;
  std::vector<std::string> routers = {"127.0.0.1:50052"};
  std::string health = "127.0.0.1:0";
  std::string host;  // empty = this machine's name
  std::string device = "cpu";
  double gpu_memory_fraction = 0.9;
  std::string isa = "auto";
  std::string numerics = "auto";
  std::string weights = "auto";
  std::string weight_cache = "auto";
  std::string gemm_tiles = "auto";
  std::string load_progress = "auto";
  int32_t threads = 0;
  std::string cpus;
  int64_t context_tokens = 0;  // 0 = the model's
  KvOptions kv;
  int64_t max_batch_tokens = 512;
  int32_t max_sequences = 64;
  absl::Duration itl_slo;  // 0 = none
  std::string queue_order = "priority";
  std::string batching = "continuous";
  absl::Duration progress_deadline = absl::Seconds(120);
  HashOptions hash;
};

// `config` outlives `schema`.
void RegisterNodeConfig(config::Schema& schema, NodeConfig& config);

}  // namespace tandem::node
