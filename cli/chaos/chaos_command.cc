// `tandem chaos`: implements NewChaosCommand (cli/command_line/commands.h).
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/chaos/baseline.h"
#include "cli/chaos/chaos_cluster.h"
#include "cli/chaos/chaos_load.h"
#include "cli/chaos/chaos_report.h"
#include "cli/chaos/fault_plan.h"
#include "cli/chaos/fault_runner.h"
#include "cli/chaos/namespaces.h"
#include "cli/chaos/workload.h"
#include "cli/cluster/fleet_secret.h"
#include "cli/command_line/commands.h"
#include "cli/files/named_file.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "common/runtime/clock.h"
#include "common/runtime/random.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kChaosTick = absl::Milliseconds(10);
constexpr int64_t kSharedMemoryBytes = 256 << 20;

struct ChaosOptions {
  double minutes = 1;
  int64_t seed = 0;
  absl::Duration period = absl::Seconds(2);
  std::vector<std::string> faults = {"kill", "pause", "partition", "slow-link",
                                     "loss", "disk",  "memory",    "drain"};
  std::vector<std::string> victims = {"router", "prefill", "decode"};
  std::string network = "auto";
  int32_t clients = 8;
  int32_t requests = 128;
  int32_t prompt_tokens = 500;
  int32_t output_tokens = 120;
  double beyond_pool = 0.3;
  std::string logs;
  std::string json;
};

class ChaosRun {
 public:
  ChaosRun(const ChaosOptions& options, const UpConfig& up, StopSignal& stop)
      : options_(options), up_(up), stop_(stop), topology_{up.routers, up.prefill, up.decode} {}

  absl::Status Run() {
    findings_.seed =
        options_.seed != 0 ? static_cast<uint64_t>(options_.seed) : NewSystemRandom()->Next() >> 20;
    findings_.topology = topology_;
    RETURN_IF_ERROR(PrepareNetwork());
    RETURN_IF_ERROR(Plan());
    RETURN_IF_ERROR(StartCluster());
    RETURN_IF_ERROR(RecordAnswers());
    RETURN_IF_ERROR(Strike());
    return Report();
  }

 private:
  bool StoppedWithin(absl::Duration time) {
    interrupted_ = interrupted_ || stop_.Wait(time) != 0;
    return interrupted_;
  }
  bool stopped() { return StoppedWithin(absl::ZeroDuration()); }
  StopCheck stop_check() {
    return [this](absl::Duration time) { return StoppedWithin(time); };
  }
  static absl::Status Interrupted() { return absl::CancelledError("interrupted"); }

  // First of all, because no other thread may run.
  absl::Status PrepareNetwork() {
    if (options_.network == "loopback") return absl::OkStatus();
    auto made = Namespaces::Create(topology_.processes(), kSharedMemoryBytes, findings_.seed);
    if (made.ok()) {
      namespaces_ = *std::move(made);
      findings_.namespaces = true;
      return absl::OkStatus();
    }
    const std::string why = absl::StrCat("no network namespaces (", made.status().message(), ")");
    if (options_.network == "namespaces" || !absl::IsUnavailable(made.status()))
      return absl::Status(made.status().code(), why);
    std::printf("%s: faults of network and disk are left out\n", why.c_str());
    return absl::OkStatus();
  }

  absl::Status Plan() {
    FaultPlanOptions plan;
    plan.seed = findings_.seed;
    plan.topology = topology_;
    plan.period = options_.period;
    plan.length = length();
    plan.roles = options_.victims;
    RETURN_IF_ERROR(CheckVictims());
    for (const std::string& name : options_.faults) {
      ASSIGN_OR_RETURN(const ChaosFaultKind kind, ParseChaosFault(name));
      if (namespaces_ == nullptr && (IsNetworkFault(kind) || kind == ChaosFaultKind::kDisk)) {
        std::printf("left out on loopback: %s\n", name.c_str());
        continue;
      }
      plan.kinds.push_back(kind);
    }
    if (plan.kinds.empty())
      return absl::InvalidArgumentError("faults: this cluster allows none of them");
    faults_ = PlanFaults(plan);
    std::printf("seed %llu: %zu faults\n", static_cast<unsigned long long>(findings_.seed),
                faults_.size());
    for (const ChaosFault& fault : faults_) std::printf("%s\n", ToText(fault, topology_).c_str());
    std::fflush(stdout);
    return absl::OkStatus();
  }

  absl::Status CheckVictims() const {
    bool any = false;
    for (const std::string& role : options_.victims) {
      if (role != "router" && role != "prefill" && role != "decode")
        return absl::InvalidArgumentError(
            absl::StrCat("victims: \"", role, "\", expected some of router, prefill, decode"));
      for (int i = 0; i < topology_.processes(); ++i) any = any || topology_.RoleOf(i) == role;
    }
    return any ? absl::OkStatus()
               : absl::InvalidArgumentError("victims: the cluster has no such process");
  }

  absl::Status StartCluster() {
    ASSIGN_OR_RETURN(secret_, FleetSecret::Create());
    ChaosCluster::Options options;
    options.up = up_;
    options.up.common.fleet_secret_file = secret_->path();
    options.logs = options_.logs;
    options.processors = ReadProcessors();
    options.namespaces = namespaces_.get();
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) return absl::InternalError("cannot find this program's folder");
    options.binaries = self.parent_path().string();
    ASSIGN_OR_RETURN(cluster_, ChaosCluster::Start(options));
    return AwaitReady(*cluster_, stop_check());
  }

  absl::Status RecordAnswers() {
    load_.routers = cluster_->router_addresses();
    load_.pool_tokens = up_.node.kv.blocks * up_.node.kv.block_tokens;
    load_.requests =
        DrawWorkload({.seed = findings_.seed,
                      .requests = options_.requests,
                      .hash_engine = up_.common.engine == "hash",
                      .prompt_tokens_max = options_.prompt_tokens,
                      .output_tokens_max = options_.output_tokens,
                      .beyond_pool_share = up_.node.kv.lend_fraction > 0 ? options_.beyond_pool : 0,
                      .pool_tokens = load_.pool_tokens});
    load_.clients = options_.clients;
    load_.seed = findings_.seed;
    std::printf("recording the answers to %d requests, without faults\n", options_.requests);
    std::fflush(stdout);
    ChaosLoad::Recording recording = ChaosLoad::Record(load_, [this] { return stopped(); });
    if (interrupted_) return Interrupted();
    for (const ChaosRequest& record : recording.records)
      if (const std::string why = WhyNotCalm(record); !why.empty())
        return absl::InternalError(
            absl::StrCat("without faults, request ", record.id, " failed: ", why));
    for (size_t i = 0; up_.common.engine == "hash" && i < load_.requests.size(); ++i) {
      const std::string difference =
          DifferenceFromHashEngine(load_.requests[i], recording.answers[i]);
      if (!difference.empty())
        return absl::InternalError(
            absl::StrCat("without faults, the answer to request ", i, " is wrong: ", difference));
    }
    load_.expected = std::move(recording.answers);
    findings_.calm = std::move(recording.records);
    files_before_ = cluster_->OpenFiles();
    return absl::OkStatus();
  }

  absl::Status Strike() {
    const absl::Time begin = RealClock().Now();
    const auto load = ChaosLoad::Start(load_, begin);
    FaultRunner runner(faults_, topology_, *cluster_, namespaces_.get());
    while (RealClock().Now() - begin < length() && !interrupted_) {
      runner.Tick(RealClock().Now() - begin);
      StoppedWithin(kChaosTick);
    }
    runner.EndAll(RealClock().Now() - begin);
    const bool finished = !interrupted_ && load->Finish(load_.give_up_after + absl::Seconds(10),
                                                        [this] { return stopped(); });
    if (!interrupted_ && !finished) findings_.leaks.push_back("clients wait beyond their time");
    findings_.ran = RealClock().Now() - begin;
    findings_.requests = load->Records();
    findings_.faults = runner.carried_out();
    if (!interrupted_) {
      ASSIGN_OR_RETURN(const std::vector<std::string> leaks,
                       FindLeaks(*cluster_, topology_, files_before_, stop_check()));
      findings_.leaks.insert(findings_.leaks.end(), leaks.begin(), leaks.end());
    }
    runner.Tick(RealClock().Now() - begin);
    findings_.crashes = runner.crashes();
    return interrupted_ ? Interrupted() : absl::OkStatus();
  }

  absl::Status Report() {
    const ChaosReport report = Summarize(findings_);
    std::fputs(ToTable(report).c_str(), stdout);
    RETURN_IF_ERROR(WriteOutput({"--json", options_.json}, ToJson(report)));
    std::fflush(stdout);
    if (report.violations() == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(report.violations(), " promises broken"));
  }

  absl::Duration length() const { return absl::Minutes(1) * options_.minutes; }

  const ChaosOptions& options_;
  const UpConfig& up_;
  StopSignal& stop_;
  const ChaosTopology topology_;
  bool interrupted_ = false;
  ChaosFindings findings_;
  std::vector<ChaosFault> faults_;
  std::unique_ptr<Namespaces> namespaces_;  // the cluster's processes are in them
  std::unique_ptr<FleetSecret> secret_;
  std::unique_ptr<ChaosCluster> cluster_;
  ChaosLoad::Options load_;
  std::vector<int64_t> files_before_;
};

class ChaosCommand final : public Command {
 public:
  ChaosCommand()
      : schema_(
            "tandem chaos",
            "Injects faults into a cluster of real processes under load, and checks its answers.") {
    up_.common.engine = "hash";
    up_.routers = up_.prefill = 2;
    up_.decode = 3;
    up_.node.kv.blocks = 1024;
    up_.node.hash.step_time = absl::Milliseconds(2);
    up_.common.log_level = "info";
    up_.node.threads = 1;
    AddRun();
    AddCluster();
    AddLending();
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    bool usable = true;
    const int code = config::RunProcess(schema_, args, env, [&](StopSignal& stop) -> absl::Status {
      const absl::Status output = CheckOutputs({{"--json", options_.json}});
      usable = output.ok();
      if (!usable) return output;
      ChaosRun run(options_, up_, stop);
      return run.Run();
    });
    return usable ? code : config::kExitUsage;
  }

 private:
  void AddRun() {
    schema_.Add("minutes", &options_.minutes, "How long the load and its faults last.",
                {.min = 0.01, .max = 10000, .unit = "minutes", .group = "Run"});
    schema_.Add("seed", &options_.seed, "Decides faults and requests; 0 draws one.",
                {.min = 0, .group = "Run"});
    schema_.Add("period", &options_.period, "Time from one fault to the next.",
                {.min = absl::Milliseconds(100), .group = "Run"});
    schema_.Add("faults", &options_.faults,
                "Kinds to draw from: kill, pause, partition, slow-link, loss, disk, memory, drain.",
                {.group = "Run"});
    schema_.Add("victims", &options_.victims, "Roles to draw from: router, prefill, decode.",
                {.group = "Run"});
    schema_.Add("network", &options_.network,
                "namespaces: each process in its own network namespace, which needs privileges; "
                "loopback: without network and disk faults; auto: namespaces if possible.",
                {.group = "Run", .choices = {"auto", "namespaces", "loopback"}});
    schema_.Add("json", &options_.json, "A file to write the report to.", {.group = "Run"});
    schema_.Add("logs", &options_.logs, "A folder to write the processes' logs to.",
                {.group = "Run"});
    schema_.Add("clients", &options_.clients, "Clients, each with one request at a time.",
                {.min = 1, .max = 1024, .group = "Load"});
    schema_.Add("requests", &options_.requests, "Different requests.",
                {.min = 1, .max = 100000, .group = "Load"});
    schema_.Add("prompt-tokens", &options_.prompt_tokens, "Longest prompt.",
                {.min = 64, .max = 8192, .unit = "tokens", .group = "Load"});
    schema_.Add("output-tokens", &options_.output_tokens, "Longest answer.",
                {.min = 1, .max = 8192, .unit = "tokens", .group = "Load"});
  }

  void AddLending() {
    schema_.Add(
        "beyond-pool", &options_.beyond_pool,
        "With --lend-fraction: share of the requests that no node can hold, half of them by "
        "their prompts and half by their answers; they need 1.1 to 1.5 times --kv-blocks.",
        {.min = 0, .max = 1, .group = "Load"});
    schema_.Add("lend-fraction", &up_.node.kv.lend_fraction,
                "Share of each node's KV blocks that may hold the KV of other nodes' sequences; "
                "0 = nodes do not lend.",
                {.min = 0, .max = 0.9, .group = "Cluster"});
  }

  void AddCluster() {
    schema_.Add("routers", &up_.routers, "Routers.", {.min = 1, .max = 16, .group = "Cluster"});
    schema_.Add("prefill", &up_.prefill, "Prefill nodes.",
                {.min = 0, .max = 64, .group = "Cluster"});
    schema_.Add("decode", &up_.decode, "Decode nodes.", {.min = 1, .max = 64, .group = "Cluster"});
    schema_.Add("engine", &up_.common.engine, "hash needs no model; cpu computes one.",
                {.group = "Cluster", .choices = {"hash", "cpu"}});
    schema_.Add("model", &up_.common.model, "With engine cpu: the model, as for tandem up.",
                {.group = "Cluster"});
    schema_.Add("threads", &up_.node.threads, "Compute threads of each node.",
                {.min = 1, .max = 1024, .group = "Cluster"});
    schema_.Add("kv-blocks", &up_.node.kv.blocks, "KV blocks of each node.",
                {.min = 2, .unit = "blocks", .group = "Cluster"});
    schema_.Add("hash-step-time", &up_.node.hash.step_time,
                "Hash engine: simulated time of a step.", {.group = "Cluster"});
  }

  config::Schema schema_;
  ChaosOptions options_;
  UpConfig up_;
};

}  // namespace

std::unique_ptr<Command> NewChaosCommand() { return std::make_unique<ChaosCommand>(); }

}  // namespace tandem::cli
