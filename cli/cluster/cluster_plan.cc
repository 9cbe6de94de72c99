#include "cli/cluster/cluster_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/cluster/processor_shares.h"

namespace tandem::cli {

namespace {

constexpr char kSame[] = "same";

// What prefill nodes have for themselves: a fleet of two numerics, if it differs.
void RegisterPrefillNodes(config::Schema& schema, UpConfig& config) {
  schema.Add("prefill-device", &config.prefill_device,
             "Where prefill nodes run the model; same: where device says.",
             {.group = "Prefill nodes", .choices = {kSame, "cpu", "cuda"}});
  schema.Add("prefill-isa", &config.prefill_isa,
             "Instruction-set class of prefill nodes; same: as isa says.",
             {.group = "Prefill nodes",
              .choices = {kSame, "auto", "amx", "avx512bf16", "avx512", "avx2", "ref"}});
  schema.Add(
      "prefill-weights", &config.prefill_weights,
      "Type that prefill nodes keep weights in; same: as weights says.",
      {.group = "Prefill nodes",
       .choices = {kSame, "auto", "bf16", "int8", "int4", "as-stored", "fp8", "fp8a16", "f32"}});
}

const std::string& DeviceOf(const UpConfig& up, bool prefill) {
  return prefill && up.prefill_device != kSame ? up.prefill_device : up.device;
}

// Nodes that run on `device`.
int NodesOn(const UpConfig& up, const std::string& device) {
  return (DeviceOf(up, true) == device ? up.prefill : 0) +
         (DeviceOf(up, false) == device ? up.decode : 0);
}

// What a node has of this machine's processors. Nodes that compute on a GPU, or nothing, need them
// to load a model and to move messages.
ProcessorShare PlanShare(const UpConfig& up, bool prefill, int index,
                         const Processors& processors) {
  if (up.engine == "hash" || DeviceOf(up, prefill) != "cpu") {
    return {std::max(1, DefaultComputeThreads(processors) / (up.prefill + up.decode)), ""};
  }
  const bool behind_prefill = !prefill && DeviceOf(up, true) == "cpu";
  return ShareOf(processors, index + (behind_prefill ? up.prefill : 0), NodesOn(up, "cpu"));
}

void RegisterNodes(config::Schema& schema, UpConfig& config) {
  schema.Add("threads", &config.threads,
             "Compute threads of each node; 0 = this machine's cores shared among the nodes.",
             {.min = 0, .max = 1024, .group = "Nodes"});
  schema.Add("pin", &config.pin,
             "auto: compute threads stay on cores that are their node's alone, near its memory, "
             "where the machine has enough cores for that; off: wherever the kernel puts them.",
             {.group = "Nodes", .choices = {"auto", "off"}});
  schema.Add("transport", &config.transport, "How KV blocks travel between processes.",
             {.group = "Nodes", .choices = {"auto", "shm", "tcp", "nccl"}});
  schema.Add("kv-path", &config.kv_transport_choice,
             "Nodes on a GPU: KV blocks leave from and land in its memory (device), or pass the "
             "host's (host); auto: device where UCX or NCCL reaches it, and on decode nodes.",
             {.group = "Nodes", .choices = {"auto", "host", "device"}});
  schema.Add("device", &config.device, "Where nodes run the model: cpu, or the first CUDA device.",
             {.group = "Nodes", .choices = {"cpu", "cuda"}});
  schema.Add("gpu-memory-fraction", &config.gpu_memory_fraction,
             "With device cuda: share of the GPU's memory for all nodes together.",
             {.min = 0.01, .max = 1.0, .group = "Nodes"});
  schema.Add("isa", &config.isa, "Instruction-set class of the CPU kernels.",
             {.group = "Nodes", .choices = {"auto", "amx", "avx512bf16", "avx512", "avx2", "ref"}});
  schema.Add("numerics", &config.numerics,
             "portable: the same bits on AVX2 and AVX-512 machines; auto: the fastest class's.",
             {.group = "Nodes", .choices = {"auto", "portable"}});
  schema.Add("weights", &config.weights, "Type that weights are kept in.",
             {.group = "Nodes",
              .choices = {"auto", "bf16", "int8", "int4", "as-stored", "fp8", "fp8a16", "f32"}});
  schema.Add(
      "weight-cache", &config.weight_cache,
      "Where packed weights are kept for all nodes and the next start: a folder, auto or off.",
      {.group = "Nodes"});
  schema.Add("kv-type", &config.kv_type,
             "Type of cached keys and values; fp8 with device cuda only, f32 with device cpu only.",
             {.group = "Nodes", .choices = {"bf16", "int8", "fp8", "f32"}});
  schema.Add(
      "block-tokens", &config.block_tokens, "Tokens of a KV block.",
      {.unit = "tokens", .group = "Nodes", .choices = {"8", "16", "32", "64", "128", "256"}});
  schema.Add("kv-blocks", &config.kv_blocks,
             "KV blocks of each node; 0 = from the memory fraction.",
             {.min = 0, .unit = "blocks", .group = "Nodes"});
  schema.Add("kv-memory-fraction", &config.kv_memory_fraction,
             "Share of the available memory that becomes KV cache, all nodes together.",
             {.min = 0.001, .max = 0.95, .group = "Nodes"});
  schema.Add("max-batch-tokens", &config.max_batch_tokens, "Rows of one engine step.",
             {.min = 1, .max = 65536, .unit = "tokens", .group = "Nodes"});
  schema.Add("max-sequences", &config.max_sequences, "Sequences of one node that may run together.",
             {.min = 1, .max = 65536, .unit = "sequences", .group = "Nodes"});
  schema.Add("local-prefill-tokens", &config.local_prefill_tokens,
             "Decode nodes compute prompts themselves whose uncached part is at most this long.",
             {.min = 0, .unit = "tokens", .group = "Nodes"});
}

// Where and how clients ask.
void RegisterClients(config::Schema& schema, UpConfig& config) {
  schema.Add("grpc", &config.grpc, "Where the first router serves clients, host:port.",
             {.group = "Cluster"});
  schema.Add("http", &config.http,
             "Where the first router serves the OpenAI-compatible HTTP API, port or host:port; "
             "empty = nowhere.",
             {.group = "Cluster"});
  schema.Add("api-keys", &config.api_keys,
             "File of hashed keys that clients must have one of; empty = none needed.",
             {.group = "Cluster"});
  schema.Add("responses-kept", &config.responses_kept,
             "Answers of /v1/responses that a router keeps for later requests; 0 = none.",
             {.min = 0, .max = 1000000, .unit = "responses", .group = "Cluster"});
  schema.Add(
      "tls-cert", &config.tls.certificate,
      "For TLS where clients ask (gRPC and HTTP): file of the certificate and what leads from "
      "it to its authority's, PEM; empty = no TLS. Read again when it changes.",
      {.group = "Cluster"});
  schema.Add("tls-key", &config.tls.key, "File of the key of --tls-cert, PEM.",
             {.group = "Cluster"});
  schema.Add("allowed-origins", &config.allowed_origins,
             "Origins whose pages may call the HTTP API from a browser, such as "
             "https://chat.example; * = any, empty = none.",
             {.group = "Cluster"});
}

}  // namespace

void RegisterUpConfig(config::Schema& schema, UpConfig& config) {
  schema.Add("model", &config.model, "A known model's name, a .gguf file or a checkpoint folder.",
             {.group = "Cluster"});
  schema.Add("served-model-name", &config.served_model_name,
             "Names that clients may call the model by; the first is what they are told. Default: "
             "`model`, without folder and ending.",
             {.group = "Cluster"});
  schema.Add("engine", &config.engine, "cpu computes the model; hash needs none (for tests).",
             {.group = "Cluster", .choices = {"cpu", "hash"}});
  schema.Add("prefill", &config.prefill, "Prefill nodes; 0 = decode nodes prefill too.",
             {.min = 0, .max = 64, .group = "Cluster"});
  schema.Add("decode", &config.decode, "Decode nodes.", {.min = 1, .max = 64, .group = "Cluster"});
  schema.Add("routers", &config.routers, "Routers; all nodes join all of them.",
             {.min = 1, .max = 16, .group = "Cluster"});
  RegisterClients(schema, config);
  schema.Add("fleet-secret-file", &config.fleet_secret_file,
             "File whose contents nodes started apart from this command must hold to join; empty = "
             "a secret is drawn for the run, and nobody else may.",
             {.group = "Cluster"});
  schema.Add("single-process", &config.single_process, "All roles as threads of this process.",
             {.group = "Cluster"});
  schema.Add(
      "allow-mixed-numerics", &config.allow_mixed_numerics,
      "Let nodes of different numerics exchange KV where their blocks hold the same; answers "
      "are then not reproducible, and marked.",
      {.group = "Cluster"});
  RegisterNodes(schema, config);
  RegisterPrefillNodes(schema, config);
  schema.Add("hash-step-time", &config.hash_step_time, "Hash engine: simulated time of a step.",
             {.group = "Hash engine"});
  schema.Add("hash-row-time", &config.hash_row_time, "Hash engine: simulated time of a row.",
             {.group = "Hash engine"});
  schema.Add("hash-eos-every", &config.hash_eos_every,
             "Hash engine: one token in this many ends the answer; 0 = none does.",
             {.min = 0, .group = "Hash engine"});
  schema.Add("ready-timeout", &config.ready_timeout, "How long starting may take.",
             {.group = "Lifecycle"});
  schema.Add("drain-timeout", &config.drain_timeout,
             "How long running requests may go on at the end.", {.group = "Lifecycle"});
  schema.Add("log-level", &config.log_level, "Least important lines to log.",
             {.group = "Lifecycle", .choices = {"debug", "info", "warning", "error"}});
  schema.Add("quiet", &config.quiet, "Leave the processes' logs out.", {.group = "Lifecycle"});
}

router::RouterConfig PlanRouter(const UpConfig& up, int index) {
  router::RouterConfig config;
  config.id = absl::StrCat("router-", index);
  const std::string host = up.grpc.substr(0, up.grpc.rfind(':'));
  config.grpc = index == 0 ? up.grpc : absl::StrCat(host, ":0");
  config.fleet = "127.0.0.1:0";
  config.http = index == 0 || up.http.empty() ? up.http : "0";
  config.api_keys = up.api_keys;
  config.tls = up.tls;
  config.allowed_origins = up.allowed_origins;
  config.responses_kept = up.responses_kept;
  config.fleet_secret_file = up.fleet_secret_file;
  config.model = up.model;
  config.served_model_name = up.served_model_name;
  config.engine = up.engine;
  config.core.local_prefill_tokens_max = up.local_prefill_tokens;
  config.core.allow_mixed_numerics = up.allow_mixed_numerics;
  config.drain_timeout = up.drain_timeout;
  config.log_level = up.log_level;
  return config;
}

node::NodeConfig PlanNode(const UpConfig& up, const std::string& role, int index,
                          const Processors& processors,
                          const std::vector<std::string>& fleet_addresses) {
  const bool prefill = role == "prefill";
  node::NodeConfig config;
  config.id = absl::StrCat(role, "-", index);
  config.routers = fleet_addresses;
  config.fleet_secret_file = up.fleet_secret_file;
  config.model = up.model;
  config.engine = up.engine;
  config.device = DeviceOf(up, prefill);
  const int sharing = NodesOn(up, config.device);
  config.gpu_memory_fraction = std::max(0.01, up.gpu_memory_fraction / sharing);
  config.isa = prefill && up.prefill_isa != kSame ? up.prefill_isa : up.isa;
  config.numerics = up.numerics;
  config.weights = prefill && up.prefill_weights != kSame ? up.prefill_weights : up.weights;
  config.weight_cache = up.weight_cache;
  const ProcessorShare share = PlanShare(up, prefill, index, processors);
  config.threads = up.threads > 0 ? up.threads : share.threads;
  if (up.pin == "auto" && config.threads <= share.threads) config.cpus = share.cpus;
  config.kv_type = up.kv_type;
  config.block_tokens = up.block_tokens;
  config.kv_blocks = up.kv_blocks;
  config.kv_memory_fraction = std::max(0.001, up.kv_memory_fraction / sharing);
  config.max_batch_tokens = up.max_batch_tokens;
  config.max_sequences = up.max_sequences;
  config.transport = up.transport;
  // Of a fleet on both, the nodes on processors have no choice; of one without a GPU each says so.
  const bool chooses = config.device == "cuda" || NodesOn(up, "cuda") == 0;
  config.kv_transport_choice = chooses ? up.kv_transport_choice : "auto";
  config.drain_timeout = up.drain_timeout;
  config.hash_step_time = up.hash_step_time;
  config.hash_row_time = up.hash_row_time;
  config.hash_eos_every = up.hash_eos_every;
  config.log_level = up.log_level;
  return config;
}

namespace {

std::vector<std::string> FieldsAsFlags(const config::Schema& schema) {
  std::vector<std::string> flags;
  for (const config::Schema::Field& field : schema.fields()) {
    flags.push_back(absl::StrCat("--", field.name, "=", field.get()));
  }
  return flags;
}

}  // namespace

std::vector<std::string> ToFlags(const router::RouterConfig& config) {
  router::RouterConfig copy = config;
  config::Schema schema("tandem-router", "");
  router::RegisterRouterConfig(schema, copy);
  return FieldsAsFlags(schema);
}

std::vector<std::string> ToFlags(const node::NodeConfig& config) {
  node::NodeConfig copy = config;
  config::Schema schema("tandem-node", "");
  node::RegisterNodeConfig(schema, copy);
  return FieldsAsFlags(schema);
}

}  // namespace tandem::cli
