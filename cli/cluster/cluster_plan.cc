#include "cli/cluster/cluster_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/cluster/processor_shares.h"

namespace tandem::cli {

namespace {

constexpr char kSame[] = "same";

const std::string& DeviceOf(const UpConfig& up, bool prefill) {
  return prefill && up.prefill_device != kSame ? up.prefill_device : up.node.device;
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
  if (up.common.engine == "hash" || DeviceOf(up, prefill) != "cpu") {
    return {std::max(1, DefaultComputeThreads(processors) / (up.prefill + up.decode)), ""};
  }
  const bool behind_prefill = !prefill && DeviceOf(up, true) == "cpu";
  return ShareOf(processors, index + (behind_prefill ? up.prefill : 0), NodesOn(up, "cpu"));
}

// Registers --prefill-`name`: what prefill nodes have in place of the node field `name`.
void AddPrefillField(config::Schema& schema, const config::Schema& node, absl::string_view name,
                     std::string* value, absl::string_view help) {
  for (const config::Schema::Field& field : node.fields()) {
    if (field.name != name) continue;
    std::vector<std::string> choices = field.choices;
    choices.insert(choices.begin(), kSame);
    schema.Add(absl::StrCat("prefill-", name), value, help,
               {.group = "Prefill nodes", .choices = std::move(choices)});
  }
}

void RegisterCluster(config::Schema& schema, UpConfig& config) {
  schema.Add("prefill", &config.prefill, "Prefill nodes; 0 = decode nodes prefill too.",
             {.min = 0, .max = 64, .group = "Cluster"});
  schema.Add("decode", &config.decode, "Decode nodes.", {.min = 1, .max = 64, .group = "Cluster"});
  schema.Add("routers", &config.routers, "Routers; all nodes join all of them.",
             {.min = 1, .max = 16, .group = "Cluster"});
  schema.Add("single-process", &config.single_process, "All roles as threads of this process.",
             {.group = "Cluster"});
  schema.Add("pin", &config.pin,
             "auto: compute threads stay on cores that are their node's alone, near its memory, "
             "where the machine has enough cores for that; off: wherever the kernel puts them.",
             {.group = "Cluster", .choices = {"auto", "off"}});
  schema.Add("ready-timeout", &config.ready_timeout, "How long starting may take.",
             {.min = absl::Milliseconds(1), .group = "Lifecycle"});
  schema.Add("logs", &config.logs,
             "Which lines of the processes' logs to print. all: every line; brief: one line for "
             "each process that is ready, then warnings, errors, throughput and access; auto: "
             "brief where standard error is a terminal and the log is text, else all.",
             {.group = "Lifecycle", .choices = {"auto", "all", "brief"}});
  schema.Add("quiet", &config.quiet, "Leave the processes' logs out.", {.group = "Lifecycle"});
}

// Fields of routers and nodes that mean something else for a whole cluster.
void RegisterSharedOut(config::Schema& schema, UpConfig& config) {
  schema.Add("grpc", &config.grpc,
             "Where routers serve clients: port or host:port of the first, and after commas of "
             "further ones, which pick ports where none is given.",
             {.group = "Network",
              .check = config::CheckAddresses,
              .normalise = config::CompleteAddresses});
  schema.Add("http", &config.http,
             "Where routers serve the OpenAI-compatible HTTP API, as --grpc; empty = nowhere.",
             {.group = "Network", .check = config::CheckAddresses});
  schema.Add("admin", &config.admin,
             "Where routers serve operators, as --grpc: /metrics, /load, /status, /traces and POST "
             "/drain. Clients' ports then serve none of these. Empty = no such ports.",
             {.group = "Network", .check = config::CheckAddresses});
  schema.Add("audit-log", &config.router.audit_log,
             "File to which the first router appends a line of JSON for each call, refused key and "
             "operator's action: who, what, from where, with which result; never text. Further "
             "routers write to files beside it: FILE.router-1 and so on. Empty = none.",
             {.group = "Lifecycle"});
  schema.Add(
      "fleet-secret-file", &config.common.fleet_secret_file,
      "File whose contents nodes started apart from this command must hold to join; empty = "
      "this command draws a secret for the run, and no other node can join. With --kv-disk it "
      "keeps the secret there, as fleet-secret, for the next run.",
      {.group = "Network"});
  schema.Add("fleet-tls", &config.common.fleet_tls,
             "TLS between routers and nodes: folder that `tandem certs make` has filled; each "
             "process takes the subfolder of its role, router, prefill or decode. Empty = no TLS.",
             {.group = "Network"});
  schema.Add("threads", &config.node.threads,
             "Compute threads of each node; 0 = this machine's cores shared among the nodes.",
             {.min = 0, .max = 1024, .group = "Model"});
  schema.Add("kv-memory-fraction", &config.node.kv.memory_fraction,
             "Share of the available memory that becomes KV cache, all nodes together.",
             {.min = 0.001, .max = 0.95, .group = "KV cache"});
  schema.Add("gpu-memory-fraction", &config.node.gpu_memory_fraction,
             "With device cuda: share of the GPU's memory for all nodes together.",
             {.min = 0.01, .max = 1.0, .group = "KV cache"});
}

}  // namespace

absl::Status CheckUpConfig(const UpConfig& config) {
  const std::pair<absl::string_view, const std::vector<std::string>*> lists[] = {
      {"grpc", &config.grpc}, {"http", &config.http}, {"admin", &config.admin}};
  for (const auto& [flag, addresses] : lists) {
    if (static_cast<int>(addresses->size()) <= config.routers) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", flag, " has ", addresses->size(),
                                                   " addresses, expected at most ", config.routers,
                                                   ", as --routers says"));
  }
  if (config.grpc.empty()) return absl::InvalidArgumentError("--grpc is empty, expected a port");
  return absl::OkStatus();
}

void RegisterUpConfig(config::Schema& schema, UpConfig& config) {
  config::Schema common("fleet", ""), router("router", ""), node("node", "");
  config::RegisterCommonOptions(common, config.common);
  router::RegisterRouterConfig(router, config.router);
  node::RegisterNodeConfig(node, config.node);
  RegisterCluster(schema, config);
  RegisterSharedOut(schema, config);
  schema.Embed(common, {});
  schema.Embed(router, {.except = {"id", "fleet", "open-fleet"}});
  schema.Embed(node, {.except = {"id", "routers", "health", "host", "cpus", "load-progress"}});
  AddPrefillField(schema, node, "device", &config.prefill_device,
                  "Where prefill nodes run the model; same: where device says.");
  AddPrefillField(schema, node, "isa", &config.prefill_isa,
                  "Instruction-set class of prefill nodes; same: as isa says.");
  AddPrefillField(schema, node, "weights", &config.prefill_weights,
                  "Type that prefill nodes keep weights in; same: as weights says.");
}

namespace {

// The address of router `index`: its own, or a free port of the last one's host.
std::string AddressOf(const std::vector<std::string>& given, int index) {
  if (given.empty()) return "";
  if (index < static_cast<int>(given.size())) return given[static_cast<size_t>(index)];
  const size_t colon = given.back().rfind(':');
  return colon == std::string::npos ? "0" : absl::StrCat(given.back().substr(0, colon), ":0");
}

}  // namespace

router::RouterConfig PlanRouter(const UpConfig& up, int index) {
  router::RouterConfig config = up.router;
  config.common = up.common;
  if (!up.common.fleet_tls.empty()) absl::StrAppend(&config.common.fleet_tls, "/router");
  config.id = absl::StrCat("router-", index);
  config.fleet = "127.0.0.1:0";
  config.grpc = AddressOf(up.grpc, index);
  config.http = AddressOf(up.http, index);
  config.admin = AddressOf(up.admin, index);
  // Two processes must not write to one audit log.
  if (index > 0 && !config.audit_log.empty()) absl::StrAppend(&config.audit_log, ".", config.id);
  return config;
}

node::NodeConfig PlanNode(const UpConfig& up, const std::string& role, int index,
                          const Processors& processors,
                          const std::vector<std::string>& fleet_addresses) {
  const bool prefill = role == "prefill";
  node::NodeConfig config = up.node;
  config.common = up.common;
  if (!up.common.fleet_tls.empty()) absl::StrAppend(&config.common.fleet_tls, "/", role);
  config.id = absl::StrCat(role, "-", index);
  config.routers = fleet_addresses;
  config.device = DeviceOf(up, prefill);
  if (prefill && up.prefill_isa != kSame) config.isa = up.prefill_isa;
  if (prefill && up.prefill_weights != kSame) config.weights = up.prefill_weights;
  if (prefill && up.prefill_kv_blocks > 0) config.kv.blocks = up.prefill_kv_blocks;
  const int sharing = NodesOn(up, config.device);
  config.gpu_memory_fraction = std::max(0.01, up.node.gpu_memory_fraction / sharing);
  config.kv.memory_fraction = std::max(0.001, up.node.kv.memory_fraction / sharing);
  const ProcessorShare share = PlanShare(up, prefill, index, processors);
  if (config.threads == 0) config.threads = share.threads;
  if (up.pin == "auto" && config.threads <= share.threads) config.cpus = share.cpus;
  // In a fleet with nodes on both, only those on a GPU choose. In a fleet without a GPU every node
  // keeps the choice, and reports that it has no GPU.
  if (config.device != "cuda" && NodesOn(up, "cuda") > 0) config.kv.payload_memory = "auto";
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
