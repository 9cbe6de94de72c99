#include "common/node/node_config.h"

#include "common/base/node_id.h"

namespace tandem::node {
namespace {

void RegisterIdentityAndNetwork(config::Schema& schema, NodeConfig& config) {
  schema.Add("id", &config.id,
             "Name of this node, unique in the fleet; default: role and process id.",
             {.group = "Identity", .check = [](const std::string& id) {
                return id.empty() ? absl::OkStatus() : CheckNodeId(id);
              }});
  schema.Add("routers", &config.routers,
             "Fleet addresses of all routers to join, port or host:port.",
             {.group = "Network",
              .check = config::CheckAddresses,
              .normalise = config::CompleteAddresses});
  schema.Add(
      "health", &config.health,
      "Address of the gRPC health service, port or host:port (\"\" is liveness, \"ready\" "
      "readiness); port 0 picks one.",
      {.group = "Network", .check = config::CheckAddress, .normalise = config::CompleteAddress});
  schema.Add("transport", &config.kv.transport,
             "How KV blocks travel. auto: over shared memory on one host, else over TCP; shm or "
             "tcp: only that way; nccl: from GPU to GPU (needs device cuda), and as auto where no "
             "NCCL channel opens.",
             {.group = "Network", .choices = {"auto", "shm", "tcp", "nccl"}});
  schema.Add("kv-path", &config.kv.payload_memory,
             "With device cuda, where KV blocks are sent from and received: device (GPU memory) or "
             "host (host memory); auto: device, but host where blocks are stored.",
             {.group = "Network", .choices = {"auto", "host", "device"}});
  schema.Add("kv-encryption", &config.kv.encryption,
             "KV blocks and their headers travel between nodes under AES-256-GCM, also within one "
             "host; no process then maps another's arena. Needs --fleet-secret-file, and the same "
             "on all nodes of a fleet. Without it headers are authenticated, and blocks have a "
             "checksum.",
             {.group = "Network"});
  schema.Add(
      "host", &config.host,
      "Name of the machine: nodes with equal names expect to share memory; default: the host name.",
      {.group = "Network"});
}

void RegisterModel(config::Schema& schema, NodeConfig& config) {
  schema.Add(
      "device", &config.device,
      "Where the cpu engine runs the model: on this host's processor, or on its first CUDA device.",
      {.group = "Model", .choices = {"cpu", "cuda"}});
  schema.Add("isa", &config.isa, "Instruction-set class of the CPU kernels.",
             {.group = "Model", .choices = {"auto", "amx", "avx512bf16", "avx512", "avx2", "ref"}});
  schema.Add("numerics", &config.numerics,
             "portable: the same bits on AVX2 and AVX-512 machines, for mixed fleets; auto: those "
             "of the fastest instruction-set class.",
             {.group = "Model", .choices = {"auto", "portable"}});
  schema.Add("weights", &config.weights,
             "Type of the weights in memory. auto: bf16 where it is fast or the file has it, else "
             "f32; fp8: devices only, with fp8 activations where the device multiplies fp8; "
             "fp8a16: devices only, with bf16 activations; as-stored: the file's four-bit blocks "
             "(on devices its fp8, too) exactly, the rest int8.",
             {.group = "Model",
              .choices = {"auto", "bf16", "int8", "int4", "as-stored", "fp8", "fp8a16", "f32"}});
  schema.Add("weight-cache", &config.weight_cache,
             "Folder for packed weights, which the next start and other nodes of this host read; "
             "auto = beside the model, else in the user's cache folder; off = none.",
             {.group = "Model"});
  schema.Add("load-progress", &config.load_progress,
             "How the node shows how far it is with its weights. auto: a bar on a terminal, "
             "nothing elsewhere; lines: lines of the log; off: not at all.",
             {.group = "Model", .choices = {"auto", "lines", "off"}});
  schema.Add("gemm-tiles", &config.gemm_tiles,
             "With device cuda: how matrix products choose their tile; results do not depend on "
             "it. auto: the node times tiles at its first start and stores the fastest in the "
             "user's cache folder; a folder: it stores them there; search: it times them at each "
             "start; by-shape: it times none.",
             {.group = "Model"});
  schema.Add("threads", &config.threads,
             "Compute threads; 0 = one for each core that this process (or --cpus) may use, but no "
             "more than its control group grants time for.",
             {.min = 0, .max = 1024, .group = "Model"});
  schema.Add("cpus", &config.cpus,
             "Processors for this node alone, such as 0-7,16, or all: each compute thread stays on "
             "one core, the other threads share the rest. Best within one memory node. Empty: the "
             "kernel places all threads.",
             {.group = "Model"});
  schema.Add("context-tokens", &config.context_tokens,
             "Longest sequence, at most the model's context; 0 = all of that.",
             {.min = 0, .unit = "tokens", .group = "Model"});
}

void RegisterKvCache(config::Schema& schema, NodeConfig& config) {
  schema.Add("kv-type", &config.kv.type,
             "Type of cached keys and values; fp8 needs device cuda, f32 needs device cpu.",
             {.group = "KV cache", .choices = {"bf16", "int8", "fp8", "f32"}});
  schema.Add(
      "block-tokens", &config.kv.block_tokens, "Tokens in one KV block; only engine hash takes 8.",
      {.unit = "tokens", .group = "KV cache", .choices = {"8", "16", "32", "64", "128", "256"}});
  schema.Add(
      "kv-blocks", &config.kv.blocks,
      "KV blocks of a node; 0 = as many as fit, by a profiling run and --kv-memory-fraction.",
      {.min = 0, .unit = "blocks", .group = "KV cache"});
  schema.Add("kv-memory-fraction", &config.kv.memory_fraction,
             "Share of the memory left after loading the model that the KV cache takes.",
             {.min = 0.001, .max = 0.95, .group = "KV cache"});
  schema.Add(
      "kv-disk", &config.kv.disk,
      "Folder where the node keeps KV blocks that memory has no room for, in a file named "
      "after it; the next start finds them again. A node that is started alone needs --id for it. "
      "A prompt whose beginning lies there is read and not computed. Empty: memory only.",
      {.group = "KV cache"});
  schema.Add("kv-disk-bytes", &config.kv.disk_bytes,
             "Most bytes of that file; 0 = memory only. When it is full, the block unused for "
             "longest that no stored block follows makes room.",
             {.min = 0, .unit = "bytes", .group = "KV cache"});
  schema.Add(
      "swap-space", &config.kv.swap_bytes,
      "Bytes of host memory where the node keeps KV blocks that its pool has no room for: "
      "the tier of the prefix cache between its pool and --kv-disk. A prompt that begins "
      "alike, or a preempted sequence, gets them back by a copy where that is predicted to "
      "take less time than computing. What it reads from disk is kept here, too. Where the KV "
      "cache is sized by host memory, this comes off that first. 0 = none.",
      {.min = 0, .unit = "bytes", .group = "KV cache"});
  schema.Add("gpu-memory-fraction", &config.gpu_memory_fraction,
             "With device cuda: share of the GPU's memory for weights, buffers and KV cache.",
             {.min = 0.01, .max = 1.0, .group = "KV cache"});
}

void RegisterLending(config::Schema& schema, NodeConfig& config) {
  schema.Add(
      "lend-fraction", &config.kv.lend_fraction,
      "Share of the node's KV blocks that may hold the KV of other nodes' sequences. A node that "
      "lends also borrows: when its blocks run short, other nodes keep the oldest KV of its "
      "sequences and compute attention over it; a prefill node borrows for prompts that the "
      "decode node cannot hold. 0 = it does neither.",
      {.min = 0, .max = 0.9, .group = "KV cache"});
  schema.Add("lend-compute-share", &config.kv.lend_compute_share,
             "Share of one processor that computing for other nodes' sequences may take.",
             {.min = 0.01, .max = 1.0, .group = "KV cache"});
  schema.Add("lending-host", &config.kv.lending_host,
             "IP address at which nodes of other hosts ask about blocks that this node keeps for "
             "them; the system chooses the port. Empty: only nodes of this host borrow from it.",
             {.group = "KV cache"});
}

void RegisterHashEngine(config::Schema& schema, NodeConfig& config) {
  schema.Add("hash-step-time", &config.hash.step_time, "Hash engine: simulated time of a step.",
             {.min = absl::ZeroDuration(), .group = "Hash engine"});
  schema.Add("hash-row-time", &config.hash.row_time, "Hash engine: simulated time of a row.",
             {.min = absl::ZeroDuration(), .group = "Hash engine"});
  schema.Add("hash-eos-every", &config.hash.eos_every,
             "Hash engine: one token in this many ends the answer; 0 = none.",
             {.min = 0, .group = "Hash engine"});
}

}  // namespace

void RegisterNodeConfig(config::Schema& schema, NodeConfig& config) {
  config::RegisterCommonOptions(schema, config.common);
  RegisterIdentityAndNetwork(schema, config);
  RegisterModel(schema, config);
  RegisterKvCache(schema, config);
  RegisterLending(schema, config);
  schema.Add("max-batch-tokens", &config.max_batch_tokens,
             "Most rows of one engine step. Generated tokens take theirs first; chunks of prompts "
             "fill the rest.",
             {.min = 1, .max = 65536, .unit = "tokens", .group = "Scheduling"});
  schema.Add("max-sequences", &config.max_sequences, "Most sequences that run at the same time.",
             {.min = 1, .max = 65536, .unit = "sequences", .group = "Scheduling"});
  schema.Add("itl-slo", &config.itl_slo,
             "On decode nodes, the longest step that a generated token should wait for: while "
             "sequences generate, a step takes only as many prompt tokens as its predicted time "
             "allows; at least one KV block's once a prompt has waited for half of the time until "
             "its first token is due (2 s where no goal for it is set). 0 = as many as "
             "--max-batch-tokens allows.",
             {.min = absl::ZeroDuration(), .group = "Scheduling"});
  schema.Add(
      "queue-order", &config.queue_order,
      "Which sequences are computed first. fcfs: by arrival; priority: the one whose first token "
      "is due first, where each level of priority counts as a second; without a due time as if "
      "it were 20 s. Both move a sequence by at most 30 s. shortest-prompt: as priority, and a "
      "prompt counts as arriving later by the time that computing it takes.",
      {.group = "Scheduling", .choices = {"fcfs", "priority", "shortest-prompt"}});
  schema.Add(
      "batching", &config.batching,
      "When a sequence may join a decode node's batch. continuous: at any step; static: when "
      "all sequences of the last batch have ended, as servers did before, for comparison.",
      {.group = "Scheduling", .choices = {"continuous", "static"}});
  schema.Add(
      "progress-deadline", &config.progress_deadline,
      "A node with work that finishes no engine step for this long reports itself as not live. A "
      "step that fails does not count.",
      {.min = absl::Milliseconds(1), .group = "Lifecycle"});
  RegisterHashEngine(schema, config);
}

}  // namespace tandem::node
