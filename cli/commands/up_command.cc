// `tandem up`: implements NewUpCommand (cli/command_line/commands.h).
#include <cstdio>
#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "cli/client/client.h"
#include "cli/cluster/cluster_start.h"
#include "cli/cluster/fleet_secret.h"
#include "cli/command_line/commands.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "common/config/start_guard.h"
#include "common/runtime/clock.h"
#include "common/runtime/processors.h"
#include "common/telemetry/log.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kWatchInterval = absl::Milliseconds(50);

class UpCommand final : public Command {
 public:
  UpCommand() : schema_("tandem up", "Runs a whole cluster on this machine.") {
    RegisterUpConfig(schema_, up_);
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    return config::RunProcess(schema_, args, env,
                              [&](StopSignal& stop) { return Serve(stop, env); });
  }

 private:
  // Kept beside the blocks on disk, which are found under the same secret alone. Where nothing can
  // be kept, nodes warn that they store nothing, and the cluster serves from memory.
  static absl::StatusOr<std::unique_ptr<FleetSecret>> SecretOf(const std::string& disk) {
    if (disk.empty()) return FleetSecret::Create();
    auto kept = FleetSecret::KeepIn(disk);
    if (kept.ok()) return kept;
    Log(LogLevel::kWarning, "the fleet's secret is not kept on disk",
        {{"why", kept.status().ToString()}});
    return FleetSecret::Create();
  }

  absl::Status Serve(StopSignal& stop, const Environment& env) {
    RETURN_IF_ERROR(config::ConfigureLog(up_.common, env));
    std::unique_ptr<FleetSecret> secret;
    if (up_.common.fleet_secret_file.empty()) {
      ASSIGN_OR_RETURN(secret, SecretOf(up_.node.kv.disk));
      up_.common.fleet_secret_file = secret->path();
    }
    std::optional<config::StartGuard> starting;
    if (up_.single_process) starting.emplace(stop);
    ASSIGN_OR_RETURN(const std::unique_ptr<Cluster> cluster, StartCluster(up_, env));
    starting.reset();
    ReadyProbe probe(up_);
    const absl::Time deadline = RealClock().Now() + up_.ready_timeout;
    bool ready = false;
    while (stop.Wait(kWatchInterval) == 0) {
      const absl::Time now = RealClock().Now();
      RETURN_IF_ERROR(cluster->Watch(now));
      if (ready) continue;
      ready = probe.IsReady(*cluster);
      if (ready) {
        Announce(*cluster, /*others_may_join=*/secret == nullptr);
      } else if (now > deadline) {
        return absl::DeadlineExceededError(absl::StrCat("the cluster was not ready within ",
                                                        absl::FormatDuration(up_.ready_timeout)));
      }
    }
    std::fprintf(stderr, "tandem up: draining\n");
    stop.Restore();
    const bool clean = cluster->Drain();
    return clean ? absl::OkStatus() : absl::AbortedError("some work was cut off while draining");
  }

  void Announce(const Cluster& cluster, bool others_may_join) const {
    const auto place = [](const char* what, const std::string& addresses) {
      return addresses.empty() ? "" : absl::StrCat("; ", what, " on ", addresses);
    };
    const std::string places = absl::StrCat(
        place("HTTP", cluster.http_addresses()), place("operators", cluster.admin_addresses()),
        place("nodes join", others_may_join ? cluster.fleet_addresses() : ""));
    std::printf(
        "ready: %d router(s), %d prefill and %d decode node(s); gRPC on %s%s; Ctrl-C drains\n",
        up_.routers, up_.prefill, up_.decode, cluster.grpc_addresses().c_str(), places.c_str());
    std::fflush(stdout);
  }

  config::Schema schema_;
  UpConfig up_;
};

}  // namespace

std::unique_ptr<Command> NewUpCommand() { return std::make_unique<UpCommand>(); }

}  // namespace tandem::cli
