#include "common/node/node_process.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/config/process_main.h"
#include "common/config/secret_file.h"
#include "common/config/start_guard.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/device/device_engine.h"
#include "common/engine/hash/hash_engine.h"
#include "common/guided/constraint_cache.h"
#include "common/guided/vocabulary.h"
#include "common/model/byte_vocabulary.h"
#include "common/model/model_path.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/node/kv_disk_path.h"
#include "common/node/kv_sizing.h"
#include "common/node/loading_bar.h"
#include "common/node/opened_kv_transport.h"
#include "common/node/step_probe.h"
#include "common/request/queue_order.h"
#include "common/rpc/fleet_tls.h"
#include "common/rpc/server.h"
#include "common/runtime/clock.h"
#include "common/runtime/processors.h"
#include "common/storage/block_file.h"
#include "common/storage/block_tiers.h"
#include "common/telemetry/log.h"
#include "common/telemetry/start_log.h"
#include "common/transfer/device_payloads.h"

namespace tandem::node {
namespace {

// Requests to the health and reflection services are small.
constexpr int kHealthCallBytesMax = 64 << 10;

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

// What a node builds from its checkpoint, or without one for the hash engine.
struct LoadedModel {
  std::unique_ptr<engine::Engine> engine;
  // Shared by the core and the runtime's ConstraintGate.
  std::shared_ptr<guided::ConstraintCache> constraints;
};

absl::StatusOr<std::shared_ptr<guided::ConstraintCache>> NewConstraints(
    const model::TokenizerSource& source, const std::vector<TokenId>& eos_token_ids,
    const engine::EngineSpec& spec) {
  ASSIGN_OR_RETURN(const auto tokenizer, model::Tokenizer::Create(source));
  return std::make_shared<guided::ConstraintCache>(
      guided::Vocabulary::FromTokenizer(*tokenizer, spec.vocab_size, eos_token_ids));
}

absl::StatusOr<std::unique_ptr<engine::Engine>> NewModelEngine(
    const NodeConfig& config, const std::vector<int32_t>& processors,
    const model::Checkpoint& checkpoint, const std::map<std::string, std::string>& env,
    kv::ArenaMemory kv_memory) {
  const int32_t threads =
      processors.empty() ? config.threads : static_cast<int32_t>(processors.size());
  if (config.device == "cuda") {
    engine::DeviceEngineOptions options;
    options.threads = threads;
    options.block_tokens = config.kv.block_tokens;
    options.context_tokens = config.context_tokens;
    options.weights = config.weights;
    options.kv_type = config.kv.type;
    options.memory_fraction = config.gpu_memory_fraction;
    const transfer::DevicePayloadOptions payloads;
    options.payload_slots = payloads.slots();
    options.payload_slot_bytes = payloads.payload_bytes_max;
    options.lends = config.kv.lend_fraction > 0;
    options.max_sequences = static_cast<int32_t>(config.max_sequences);
    options.gemm_tiles.choice = config.gemm_tiles;
    options.gemm_tiles.user_folder = model::UserWeightsFolder(env);
    return engine::NewCudaEngine(checkpoint, options);
  }
  engine::CpuEngineOptions options;
  options.threads = threads;
  options.processors = processors;
  options.isa = config.isa;
  options.numerics = config.numerics;
  options.weights = config.weights;
  options.kv_type = config.kv.type;
  options.block_tokens = config.kv.block_tokens;
  options.context_tokens = config.context_tokens;
  options.weight_cache = {config.weight_cache, model::UserWeightsFolder(env)};
  options.kv_memory = kv_memory;
  LoadingBar bar(LoadingBar::FormOf(config.load_progress, config.common.log_format), config.id);
  options.on_load_progress = [&bar](const engine::LoadProgress& progress) { bar.Show(progress); };
  return engine::NewCpuEngine(checkpoint, options);
}

// Peers on this host read the blocks of a node that sends. A prefill node sends all that it
// computes; a decode node reads its own KV for every token and sends when it drains.
kv::ArenaMemory KvMemory(const NodeConfig& config, const NodeKind& kind) {
  const bool maps = config.kv.transport == "auto" || config.kv.transport == "shm";
  if (!maps || config.kv.encryption) {
    return kv::ArenaMemory::kPrivate;
  }
  return kind.role == "prefill" ? kv::ArenaMemory::kShareable : kv::ArenaMemory::kShareableIfHuge;
}

absl::StatusOr<LoadedModel> LoadModel(const NodeConfig& config,
                                      const std::vector<int32_t>& processors,
                                      const std::map<std::string, std::string>& env,
                                      kv::ArenaMemory kv_memory) {
  LoadedModel loaded;
  if (config.common.engine == "hash") {
    engine::HashEngineOptions options;
    options.block_tokens = config.kv.block_tokens;
    options.step_time = config.hash.step_time;
    options.row_time = config.hash.row_time;
    options.eos_every = config.hash.eos_every;
    options.kv_memory = kv_memory;
    ASSIGN_OR_RETURN(loaded.engine, engine::NewHashEngine(options));
    ASSIGN_OR_RETURN(
        loaded.constraints,
        NewConstraints(model::ByteVocabulary(), {model::kByteEndToken}, loaded.engine->spec()));
    return loaded;
  }
  ASSIGN_OR_RETURN(const std::string path, model::ResolveModelPath(config.common.model, env));
  LogStart("loading model", {{"path", path}});
  ASSIGN_OR_RETURN(const std::unique_ptr<model::Checkpoint> checkpoint,
                   model::Checkpoint::Open(path));
  ASSIGN_OR_RETURN(loaded.engine, NewModelEngine(config, processors, *checkpoint, env, kv_memory));
  auto constraints =
      NewConstraints(checkpoint->tokenizer(), checkpoint->stop_token_ids(), loaded.engine->spec());
  if (constraints.ok()) {
    loaded.constraints = *std::move(constraints);
  } else {
    Log(LogLevel::kWarning, "no guided decoding: the checkpoint's tokenizer cannot be used",
        {{"why", constraints.status().ToString()}});
  }
  return loaded;
}

// A tier of the node's storage. Null if it cannot be used: the node then runs without it.
std::unique_ptr<storage::BlockFile> OpenTier(const storage::BlockFileOptions& options) {
  const bool on_disk = !options.path.empty();
  auto file = storage::BlockFile::Open(options);
  if (!file.ok()) {
    Log(LogLevel::kWarning,
        on_disk ? "KV blocks are not stored on disk" : "KV blocks are not stored in swap space",
        {{"why", file.status().ToString()}});
    return nullptr;
  }
  if (on_disk) {
    LogStart(
        "KV blocks are stored on disk",
        {{"path", options.path}, {"blocks_max", (*file)->slots()}, {"blocks", (*file)->size()}});
  } else {
    LogStart("KV blocks are stored in swap space", {{"blocks_max", (*file)->slots()}});
  }
  return *std::move(file);
}

// The node's blocks in host memory and on disk, as configured. Null without either.
std::unique_ptr<storage::BlockTiers> OpenStorage(const NodeConfig& config, absl::string_view id,
                                                 const engine::EngineSpec& spec,
                                                 absl::string_view block_names) {
  storage::BlockFileOptions options;
  options.contents =
      absl::StrCat("model ", spec.model_fingerprint, "\nnumerics ", spec.numerics_id,
                   "\nblock tokens ", spec.layout.block_tokens, "\nlayers ", spec.layout.num_layers,
                   "\norder ", spec.format.order, "\nnames ", absl::CHexEscape(block_names));
  options.block_bytes = spec.layout.block_bytes();
  std::unique_ptr<storage::BlockFile> host, disk;
  if (config.kv.swap_bytes > 0) {
    options.bytes_max = config.kv.swap_bytes;
    host = OpenTier(options);
  }
  if (config.kv.uses_disk()) {
    // Makes the folder if it is missing. If that fails, Open reports why.
    mkdir(config.kv.disk.c_str(), S_IRWXU);
    options.path = KvDiskPath(config.kv.disk, id);
    options.bytes_max = config.kv.disk_bytes;
    disk = OpenTier(options);
  }
  if (host == nullptr && disk == nullptr) return nullptr;
  return std::make_unique<storage::BlockTiers>(std::move(host), std::move(disk), RealClock());
}

// Runs a few small steps on the engine, unless it simulates their times. REQUIRES: its KV is
// allocated and not in use.
absl::StatusOr<SchedulerOptions> SchedulerOptionsOf(const NodeConfig& config,
                                                    engine::Engine& engine, int64_t num_blocks) {
  SchedulerOptions options{.spec = engine.spec(),
                           .num_blocks = num_blocks,
                           .slots = engine.arena().slots(),
                           .max_batch_tokens = config.max_batch_tokens,
                           .max_sequences = config.max_sequences,
                           .itl_slo = config.itl_slo,
                           .static_batches = config.batching == "static"};
  ASSIGN_OR_RETURN(options.queue_order, request::ParseQueueOrder(config.queue_order));
  const HashOptions& hash = config.hash;
  if (config.common.engine == "hash" && hash.step_time + hash.row_time > absl::ZeroDuration()) {
    const double row_us = absl::ToDoubleMicroseconds(hash.row_time);
    options.step_cost = KnownStepCost({.step_us = absl::ToDoubleMicroseconds(hash.step_time),
                                       .prompt_row_us = row_us,
                                       .generated_row_us = row_us});
    return options;
  }
  ASSIGN_OR_RETURN(options.step_cost, ProbeStepCost(engine, config.max_batch_tokens, RealClock()));
  return options;
}

NodeParts NewCoreWithStorage(const NodeConfig& config, const NodeKind& kind, absl::string_view id,
                             SchedulerOptions options) {
  NodeParts parts;
  parts.storage = OpenStorage(config, id, options.spec, options.block_key.names());
  if (parts.storage != nullptr) {
    options.stored_blocks =
        std::make_shared<const storage::StorageContents>(parts.storage->Contents());
  }
  parts.resources = std::make_unique<NodeResources>(options);
  parts.core = kind.new_core(*parts.resources);
  return parts;
}

// What the node lends at most: whole units, because routers count on it when they take a sequence
// that no pool holds. A node that lends borrows, too.
void SetLending(const KvOptions& kv, int64_t num_blocks, NodeRuntimeOptions& options,
                SchedulerOptions& scheduler) {
  const auto share = static_cast<int64_t>(kv.lend_fraction * static_cast<double>(num_blocks));
  const engine::EngineSpec& spec = scheduler.spec;
  const int64_t unit = spec.unit_tokens / spec.layout.block_tokens;
  options.lend_blocks_max = unit > 0 ? share / unit * unit : 0;
  if (share > 0 && options.lend_blocks_max == 0) {
    Log(LogLevel::kWarning, "this node neither lends nor borrows KV blocks",
        {{"reason", unit > 0 ? absl::StrCat("its --lend-fraction is ", share,
                                            " blocks, and a unit has ", unit)
                             : "its engine computes no partial attention"}});
  }
  options.lend_compute_share = kv.lend_compute_share;
  options.lending_host = kv.lending_host;
  scheduler.lend_blocks_max = options.lend_blocks_max;
  scheduler.borrows = options.lend_blocks_max > 0;
}

class NodeProcessImpl final : public NodeProcess {
 public:
  NodeProcessImpl(std::string id, absl::Duration drain_timeout)
      : id_(std::move(id)), drain_timeout_(drain_timeout) {}
  ~NodeProcessImpl() override {
    if (server_ != nullptr) server_->Shutdown(absl::ZeroDuration());
  }

  absl::Status Init(const NodeConfig& config, const NodeKind& kind,
                    const std::map<std::string, std::string>& env,
                    std::unique_ptr<transfer::KvTransport> transport) {
    // The port first, so that a port in use is reported before a model is loaded.
    ASSIGN_OR_RETURN(
        server_, rpc::Server::Start(config.health, {}, {.message_bytes_max = kHealthCallBytesMax}));
    NodeRuntimeOptions options;
    ASSIGN_OR_RETURN(options.router_credentials, RouterCredentials(config, kind));
    ASSIGN_OR_RETURN(options.transfer.kv_transfer.fleet_secret,
                     config::ReadSecretFile("fleet-secret-file", config.common.fleet_secret_file));
    ComputePlaces places;
    if (!config.cpus.empty()) {
      ASSIGN_OR_RETURN(places, PlaceComputeThreads(ReadProcessors(), config.cpus, config.threads));
      options.engine_processor = places.compute.front();
    }
    ASSIGN_OR_RETURN(LoadedModel loaded,
                     LoadModel(config, places.compute, env, KvMemory(config, kind)));
    std::unique_ptr<engine::Engine> engine = std::move(loaded.engine);
    ASSIGN_OR_RETURN(const KvSize kv, ChooseKvSize(config, *engine));
    engine->SetWindowSlots(kv.window_slots);
    RETURN_IF_ERROR(engine->AllocateKv(kv.blocks));
    Identify(config, options);
    options.transfer.kv_transfer.incarnation = options.incarnation;
    options.transfer.kv_transfer.format = engine->spec().format;
    // Destroyed before the engine, whose device may hold its payloads.
    std::unique_ptr<transfer::KvTransport> kv_transport = std::move(transport);
    std::string kv_transport_choice = "given";
    if (kv_transport == nullptr) {
      ASSIGN_OR_RETURN(
          OpenedKvTransport path,
          OpenKvTransport(config, options.host, options.transfer.kv_transfer, *engine));
      kv_transport = std::move(path.transport);
      kv_transport_choice = absl::StrCat(path.on_device ? "device" : "host", " (", path.why, ")");
    }
    options.constraints = loaded.constraints;
    ASSIGN_OR_RETURN(SchedulerOptions scheduler, SchedulerOptionsOf(config, *engine, kv.blocks));
    scheduler.self = options.node_id;
    scheduler.block_key = kv::BlockKey::FromSecret(options.transfer.kv_transfer.fleet_secret);
    scheduler.constraints = std::move(loaded.constraints);
    options.block_names = scheduler.block_key.names();
    SetLending(config.kv, kv.blocks, options, scheduler);
    const engine::EngineSpec spec = engine->spec();
    NodeParts parts = NewCoreWithStorage(config, kind, id_, std::move(scheduler));
    parts.engine = std::move(engine);
    parts.transport = std::move(kv_transport);
    ASSIGN_OR_RETURN(runtime_, NodeRuntime::Start(options, std::move(parts)));
    Log(LogLevel::kInfo, "node started",
        {{"node_id", id_},
         {"model", spec.model_name},
         {"numerics_id", spec.numerics_id},
         {"kv_blocks", kv.blocks},
         {"kv_transport_choice", kv_transport_choice},
         {"cpus", config.cpus.empty() ? "any" : config.cpus},
         {"health", server_->address()}});
    return absl::OkStatus();
  }

  absl::Status Watch() override {
    server_->SetHealth("", runtime_->live());
    server_->SetHealth("ready", runtime_->ready());
    if (certificate_.has_value()) certificate_->OnTick(RealClock().Now());
    return runtime_->ready() ? absl::OkStatus() : runtime_->refused();
  }

  bool Drain() override {
    server_->SetHealth("ready", false);
    Log(LogLevel::kInfo, "the node is draining",
        {{"timeout", absl::FormatDuration(drain_timeout_)}});
    const bool idle = runtime_->Drain(drain_timeout_);
    if (idle) {
      Log(LogLevel::kInfo, "drained");
    } else {
      Log(LogLevel::kWarning, "drain timed out, running work is cut off");
    }
    return idle;
  }

  const std::string& id() const override { return id_; }

 private:
  // What routers hear of the node that is not the model's.
  void Identify(const NodeConfig& config, NodeRuntimeOptions& options) const {
    options.node_id = NodeId(id_);
    // Increases from start to start, so that routers tell a restarted node from a late stream.
    options.incarnation = Incarnation(static_cast<uint64_t>(absl::ToUnixMicros(RealClock().Now())));
    options.host = config.host.empty() ? HostName() : config.host;
    options.version = std::string(kVersion);
    options.routers = config.routers;
    options.progress_deadline = config.progress_deadline;
  }
  // Null: routers are dialled without TLS.
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> RouterCredentials(
      const NodeConfig& config, const NodeKind& kind) {
    const std::string& folder = config.common.fleet_tls;
    if (folder.empty()) return nullptr;
    const auto own = kind.role == "prefill" ? rpc::PeerRole::kPrefill : rpc::PeerRole::kDecode;
    ASSIGN_OR_RETURN(const rpc::FleetTls tls, rpc::FleetTls::Load(folder, own));
    certificate_.emplace(tls.files().certificate);
    return tls.RouterCredentials();
  }

  const std::string id_;
  const absl::Duration drain_timeout_;
  std::optional<rpc::CertificateWatch> certificate_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<NodeRuntime> runtime_;
};

std::string NameOf(const NodeConfig& config, const NodeKind& kind) {
  return config.id.empty() ? absl::StrCat(kind.role, "-", getpid()) : config.id;
}

// What is wrong with flags that are right one by one.
absl::Status CheckTogether(const NodeConfig& config) {
  if (!config.kv.uses_disk() || !config.id.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--kv-disk is set without --id: the file of blocks is named after the node, and the next "
      "start would not find it; expected --id with a name that stays");
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeProcess>> NodeProcess::Start(
    const NodeConfig& config, const NodeKind& kind, const std::map<std::string, std::string>& env,
    std::unique_ptr<transfer::KvTransport> transport) {
  if (transport != nullptr && config.kv.encryption) {
    return absl::InvalidArgumentError(
        "kv-encryption is on, but KV does not leave this process, which has all roles");
  }
  auto process =
      std::make_unique<NodeProcessImpl>(NameOf(config, kind), config.common.drain_timeout);
  RETURN_IF_ERROR(process->Init(config, kind, env, std::move(transport)));
  return process;
}

int NodeMain(int argc, char** argv, const NodeKind& kind) {
  NodeConfig config;
  config::Schema schema(kind.program, kind.purpose);
  RegisterNodeConfig(schema, config);
  const auto env = config::Environment();
  bool wrong_usage = false;
  const int code = config::RunProcess(
      schema, {argv + 1, argv + argc}, env, [&](StopSignal& stop) -> absl::Status {
        const absl::Status usage = CheckTogether(config);
        wrong_usage = !usage.ok();
        RETURN_IF_ERROR(usage);
        SetLogProcessName(NameOf(config, kind));
        RETURN_IF_ERROR(config::ConfigureLog(config.common, env));
        config::LogConfiguration(schema);
        // Before threads and memory are created, so that all of them are placed there.
        if (!config.cpus.empty()) {
          ASSIGN_OR_RETURN(const ComputePlaces places,
                           PlaceComputeThreads(ReadProcessors(), config.cpus, config.threads));
          RETURN_IF_ERROR(PinCallingThread(places.all));
        }
        std::optional<config::StartGuard> starting(stop);
        ASSIGN_OR_RETURN(const auto process, NodeProcess::Start(config, kind, env, nullptr));
        starting.reset();
        while (stop.Wait(absl::Milliseconds(500)) == 0) {
          RETURN_IF_ERROR(process->Watch());
        }
        stop.Restore();
        process->Drain();
        return absl::OkStatus();
      });
  return wrong_usage ? config::kExitUsage : code;
}

}  // namespace tandem::node
