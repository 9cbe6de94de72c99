#include "router/process/router_process.h"

#include <google/protobuf/stubs/logging.h>
#include <malloc.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/config/process_main.h"
#include "common/config/secret_file.h"
#include "common/config/start_guard.h"
#include "common/model/mapped_file.h"
#include "common/model/model_path.h"
#include "common/runtime/control_groups.h"
#include "common/telemetry/log.h"
#include "router/front_end/http/http_server.h"
#include "router/front_end/http/request_host.h"

namespace tandem::router {
namespace {

// Distributions build Abseil with deadlock detection, which costs time at every lock and unlock:
// off. By default, each larger allocation first merges what small ones have freed: off, too.
void PrepareForSpeed() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  ::mallopt(M_MXFAST, 0);
}

// The name of the file or folder if `model` is a path, else `model`.
std::string ShownName(const std::string& model) {
  const std::filesystem::path path(model);
  const std::filesystem::path last = path.has_filename() ? path : path.parent_path();
  return last.extension() == ".gguf" ? last.stem().string() : last.filename().string();
}

// Takes --chat-template, and warns where the model's own templates cannot be used.
absl::Status ChooseTemplate(const std::string& path, ModelAssets& assets) {
  if (!path.empty()) {
    const auto bytes_max = static_cast<size_t>(model::TemplateLimits().source_bytes_max);
    absl::StatusOr<std::string> text = model::ReadTextFile(path, bytes_max);
    if (!text.ok())
      return absl::InvalidArgumentError(absl::StrCat("chat-template: ", text.status().message()));
    const absl::Status used = assets.UseChatTemplate(*std::move(text));
    if (used.ok()) return used;
    return absl::InvalidArgumentError(absl::StrCat("chat-template: ", path, ": ", used.message()));
  }
  for (const absl::Status* fault :
       {&assets.chat_template_fault, &assets.tool_chat_template_fault}) {
    if (fault->ok()) continue;
    Log(LogLevel::kWarning, "the model's chat template cannot be used: chats are refused",
        {{"with", fault == &assets.chat_template_fault ? "any messages" : "tools"},
         {"why", fault->message()},
         {"instead", "--chat-template"}});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ModelAssets>> LoadAssets(
    const RouterConfig& config, const std::map<std::string, std::string>& env) {
  std::unique_ptr<ModelAssets> assets;
  if (config.common.engine == "hash") {
    ASSIGN_OR_RETURN(assets, ModelAssets::ForHashEngine());
  } else {
    ASSIGN_OR_RETURN(const std::string path, model::ResolveModelPath(config.common.model, env));
    ASSIGN_OR_RETURN(assets, ModelAssets::Load(path));
    assets->identity.served_names = {ShownName(config.common.model)};
  }
  RETURN_IF_ERROR(ChooseTemplate(config.chat_template, *assets));
  return assets;
}

// Without a secret or TLS any process that reaches the port may join as a node: it is then sent
// prompts, and says what the answers are.
absl::Status CheckFleetPort(const RouterConfig& config, const std::string& secret) {
  if (!secret.empty() || !config.common.fleet_tls.empty() || config.open_fleet ||
      IsLoopback(config.fleet))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "fleet: ", config.fleet,
      " is reachable from other machines, and without a secret or TLS any ",
      "of them may join as a node; expected --fleet-secret-file, --fleet-tls, an address of this ",
      "machine alone, or --open-fleet"));
}

// Every node would be lost before it reports.
absl::Status CheckReports(const RouterOptions& core) {
  if (core.node_lost_after > core.heartbeat_interval) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("node-lost-after: ", absl::FormatDuration(core.node_lost_after),
                   ", expected more than --heartbeat-interval, ",
                   absl::FormatDuration(core.heartbeat_interval)));
}

// What is wrong with flags that are right one by one.
absl::Status CheckTogether(const RouterConfig& config, const std::string& secret) {
  RETURN_IF_ERROR(CheckReports(config.core));
  return CheckFleetPort(config, secret);
}

void WarnOfMemory(const RouterConfig& config) {
  const std::string warning = MemoryWarning(config, MemoryLimitBytes());
  if (!warning.empty()) Log(LogLevel::kWarning, warning, {{"router_id", config.id}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<RouterServer>> StartRouter(
    const RouterConfig& config, const std::map<std::string, std::string>& env) {
  ASSIGN_OR_RETURN(std::unique_ptr<ModelAssets> assets, LoadAssets(config, env));
  if (!config.served_model_name.empty()) assets->identity.served_names = config.served_model_name;
  RouterServerOptions options;
  options.grpc_address = config.grpc;
  options.fleet_address = config.fleet;
  if (!config.http.empty()) {
    ASSIGN_OR_RETURN(options.http_address, ParseHttpAddress(config.http));
  }
  if (!config.admin.empty()) {
    if (config.http.empty())
      return absl::InvalidArgumentError("admin: given without http, expected both or only http");
    ASSIGN_OR_RETURN(options.admin_address, ParseHttpAddress(config.admin));
  }
  options.http_threads = config.http_threads;
  options.http_buffer_bytes = config.http_buffer_bytes;
  options.api_keys = config.api_keys;
  options.wrong_keys = config.wrong_keys;
  options.tls = config.tls;
  options.reflection = config.reflection;
  options.allowed_origins = config.allowed_origins;
  options.stored_responses_max = config.stored_responses_max;
  options.traces_max = config.traces;
  options.access_log = config.access_log;
  options.audit_log = config.audit_log;
  options.throughput_every = config.throughput_every;
  ASSIGN_OR_RETURN(options.fleet_secret,
                   config::ReadSecretFile("fleet-secret-file", config.common.fleet_secret_file));
  RETURN_IF_ERROR(CheckTogether(config, options.fleet_secret));
  if (!config.common.fleet_tls.empty()) {
    ASSIGN_OR_RETURN(options.fleet_tls,
                     rpc::FleetTls::Load(config.common.fleet_tls, rpc::PeerRole::kRouter));
  }
  ASSIGN_OR_RETURN(options.service_tiers,
                   ServiceTiers::Parse(config.service_tiers, config.core.default_tier));
  options.core = config.core;
  options.core.explains_placements = config.traces > 0;
  options.overload = config.overload;
  options.core.router_id = config.id;
  options.core.block_key = kv::BlockKey::FromSecret(options.fleet_secret);
  options.core.version = std::string(kVersion);
  if (config.core.allow_mixed_numerics) {
    assets->identity.mixed_numerics = true;
    Log(LogLevel::kWarning,
        "mixed numerics are allowed: this router's answers are not reproducible",
        {{"router_id", config.id}});
  }
  const ModelIdentity identity = assets->identity;
  ASSIGN_OR_RETURN(auto server, RouterServer::Start(options, std::move(assets)));
  Log(LogLevel::kInfo, "router started",
      {{"router_id", config.id},
       {"model", identity.name},
       {"fingerprint", identity.fingerprint},
       {"grpc", server->grpc_address()},
       {"fleet", server->fleet_address()},
       {"http", server->http_address().empty() ? "off" : server->http_address()},
       {"admin", server->admin_address().empty() ? "off" : server->admin_address()}});
  return server;
}

int RouterMain(int argc, char** argv) {
  // Answers requests that do not parse with the reason, and logs none of them: a client must not be
  // able to fill the log.
  google::protobuf::SetLogHandler(nullptr);
  PrepareForSpeed();
  RouterConfig config;
  config::Schema schema("tandem-router",
                        "Places requests on prefill and decode nodes and streams their answers.");
  RegisterRouterConfig(schema, config);
  const auto env = config::Environment();
  return config::RunProcess(schema, {argv + 1, argv + argc}, env,
                            [&](StopSignal& stop) -> absl::Status {
                              SetLogProcessName(config.id);
                              RETURN_IF_ERROR(config::ConfigureLog(config.common, env));
                              config::LogConfiguration(schema);
                              WarnOfMemory(config);
                              std::optional<config::StartGuard> starting(stop);
                              ASSIGN_OR_RETURN(const auto server, StartRouter(config, env));
                              starting.reset();
                              while (stop.Wait(absl::Milliseconds(500)) == 0) server->Watch();
                              stop.Restore();
                              if (server->Drain(config.common.drain_timeout))
                                return absl::OkStatus();
                              return absl::AbortedError("some answers were cut off while draining");
                            });
}

}  // namespace tandem::router
