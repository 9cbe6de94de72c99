#include "common/node/node_config.h"

namespace tandem::node {
namespace {

void RegisterIdentityAndNetwork(config::Schema& schema, NodeConfig& config) {
  schema.Add("id", &config.id,
             "Name of this node, unique in the fleet; default: role and process id.",
             {.group = "Identity"});
  schema.Add("routers", &config.routers,
             "Fleet addresses of all routers to join, port or host:port.",
             {.group = "Network", .normalise = config::CompleteAddresses});
  schema.Add("health", &config.health,
             "Address of the gRPC health service, port or host:port (\"\" is liveness, \"ready\" "
             "readiness); port 0 picks one.",
             {.group = "Network", .normalise = config::CompleteAddress});
  schema.Add(
      "transport", &config.kv.transport,
      "How KV blocks travel: shared memory on one host and TCP otherwise (auto), one of them, or "
      "from GPU to GPU (nccl; needs device cuda, and takes auto where a link cannot be opened).",
      {.group = "Network", .choices = {"auto", "shm", "tcp", "nccl"}});
  schema.Add(
      "kv-path", &config.kv.transport_choice,
      "With device cuda: KV blocks leave from and land in the GPU's memory (device), or pass the "
      "host's (host); auto: device where UCX or NCCL reaches it, and on decode nodes.",
      {.group = "Network", .choices = {"auto", "host", "device"}});
  schema.Add(
      "host", &config.host,
      "Names the machine: nodes with equal names expect shared memory; default: the host name.",
      {.group = "Network"});
}

void RegisterModel(config::Schema& schema, NodeConfig& config) {
  schema.Add("device", &config.device,
             "Where the cpu engine's model runs: this host's processor, or its first CUDA device.",
             {.group = "Model", .choices = {"cpu", "cuda"}});
  schema.Add("isa", &config.isa, "Instruction-set class of the CPU kernels.",
             {.group = "Model", .choices = {"auto", "amx", "avx512bf16", "avx512", "avx2", "ref"}});
  schema.Add(
      "numerics", &config.numerics,
      "portable: the same bits on AVX2 and AVX-512 machines, for mixed fleets; auto: the fastest "
      "class's.",
      {.group = "Model", .choices = {"auto", "portable"}});
  schema.Add(
      "weights", &config.weights,
      "Type that weights are kept in; auto: bf16 where it is fast or stored so, else f32; fp8: "
      "devices only, with activations in fp8 where a device multiplies it; fp8a16: with "
      "activations in bf16 everywhere; as-stored: the file's four-bit blocks, on devices its fp8 "
      "too, exactly, the rest int8.",
      {.group = "Model",
       .choices = {"auto", "bf16", "int8", "int4", "as-stored", "fp8", "fp8a16", "f32"}});
  schema.Add("weight-cache", &config.weight_cache,
             "Where packed weights are kept for the next start and for other nodes of this host: a "
             "folder; auto = beside the model, else in the user's cache folder; off.",
             {.group = "Model"});
  schema.Add(
      "gemm-tiles", &config.gemm_tiles,
      "With device cuda: how matrix products choose their tile, which changes no result. auto: "
      "the fastest, timed at the first start and kept in the user's cache folder; a folder: "
      "kept there; search: timed anew; by-shape: not timed.",
      {.group = "Model"});
  schema.Add("threads", &config.threads,
             "Compute threads; 0 = one per core this process may use, or of cpus, no more than its "
             "control group grants time for.",
             {.min = 0, .max = 1024, .group = "Model"});
  schema.Add("cpus", &config.cpus,
             "Processors that are this node's alone, such as 0-7,16, or all it may use (all): each "
             "compute thread stays on a core of them, other threads among them. Best of one "
             "memory node. Empty: wherever the kernel puts them.",
             {.group = "Model"});
  schema.Add("context-tokens", &config.context_tokens, "Longest sequence; 0 = the model's.",
             {.min = 0, .unit = "tokens", .group = "Model"});
}

void RegisterHashEngine(config::Schema& schema, NodeConfig& config) {
  schema.Add("hash-step-time", &config.hash.step_time, "Hash engine: simulated time of a step.",
             {.group = "Hash engine"});
  schema.Add("hash-row-time", &config.hash.row_time, "Hash engine: simulated time of a row.",
             {.group = "Hash engine"});
  schema.Add("hash-eos-every", &config.hash.eos_every,
             "Hash engine: one token in this many ends the answer; 0 = none does.",
             {.min = 0, .group = "Hash engine"});
}

}  // namespace

void RegisterNodeConfig(config::Schema& schema, NodeConfig& config) {
  config::RegisterCommonOptions(schema, config.common);
  RegisterIdentityAndNetwork(schema, config);
  RegisterModel(schema, config);
  schema.Add("kv-type", &config.kv.type,
             "Type of cached keys and values; fp8 with device cuda only, f32 with device cpu only.",
             {.group = "KV cache", .choices = {"bf16", "int8", "fp8", "f32"}});
  schema.Add(
      "block-tokens", &config.kv.block_tokens, "Tokens of a KV block.",
      {.unit = "tokens", .group = "KV cache", .choices = {"8", "16", "32", "64", "128", "256"}});
  schema.Add("kv-blocks", &config.kv.blocks,
             "KV blocks of a node; 0 = from a profiling run and kv-memory-fraction.",
             {.min = 0, .unit = "blocks", .group = "KV cache"});
  schema.Add("kv-memory-fraction", &config.kv.memory_fraction,
             "Share of the memory available after loading the model that becomes KV cache.",
             {.min = 0.001, .max = 0.95, .group = "KV cache"});
  schema.Add("gpu-memory-fraction", &config.gpu_memory_fraction,
             "With device cuda: share of the GPU's memory that weights, buffers and KV may fill.",
             {.min = 0.01, .max = 1.0, .group = "KV cache"});
  schema.Add(
      "max-batch-tokens", &config.max_batch_tokens,
      "Rows of one engine step: prompts are cut into chunks of what decode rows leave of it.",
      {.min = 1, .max = 65536, .unit = "tokens", .group = "Scheduling"});
  schema.Add("max-sequences", &config.max_sequences, "Sequences that may run together.",
             {.min = 1, .max = 65536, .unit = "sequences", .group = "Scheduling"});
  schema.Add("progress-deadline", &config.progress_deadline,
             "With work at hand and no engine step for this long the node reports not live.",
             {.group = "Lifecycle"});
  RegisterHashEngine(schema, config);
}

}  // namespace tandem::node
