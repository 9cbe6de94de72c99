// `tandem bench trace`: implements NewBenchTraceCommand (cli/command_line/commands.h).
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/bench_serve/load_run.h"
#include "cli/bench_serve/load_target.h"
#include "cli/bench_serve/progress_line.h"
#include "cli/bench_trace/trace_measurement.h"
#include "cli/bench_trace/trace_workload.h"
#include "cli/client/client.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/files/named_file.h"
#include "cli/flags/result_flags.h"
#include "cli/sim_trace/trace_flags.h"
#include "cli/sim_trace/trace_report.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "common/runtime/stop_signal.h"
#include "sim/trace/shrunk_source.h"
#include "sim/trace/trace_summary.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kTraceStatusTimeout = absl::Seconds(10);
// Nodes report what they did with each heartbeat.
constexpr absl::Duration kHeartbeatsSettle = absl::Seconds(2);

class BenchTraceCommand final : public Command {
 public:
  BenchTraceCommand()
      : schema_("tandem bench trace",
                "Sends a public trace to a running cluster, at the trace's times.") {
    RegisterTarget();
    RegisterLoad();
    RegisterTiers();
    RegisterObjectives(schema_, objectives_);
    RegisterResultFiles(schema_, results_);
    RegisterProgress(schema_, results_);
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    std::vector<std::string> positionals;
    if (auto code = ParseArguments(schema_, args, env, &positionals)) return *code;
    absl::Status status = Plan(positionals);
    if (!status.ok()) {
      ReportError(schema_, status);
      return config::kExitUsage;
    }
    status = Measure();
    return status.ok() ? config::kExitOk : ReportError(schema_, status);
  }

 private:
  void RegisterTarget() {
    const std::string group = "Target";
    schema_.Add("target", &target_, "The cluster's router: grpc://HOST:PORT.", {.group = group});
    schema_.Add("api-key", &target_options_.api_key, "Key for routers that require one.",
                {.group = group, .secret = true});
    schema_.Add("tls-ca", &target_options_.tls.authorities,
                "A file of trusted certificates (PEM), or system for the machine's; empty = no "
                "TLS.",
                {.group = group});
    schema_.Add("timeout", &load_.timeout,
                "A request fails when its answer is not complete by then.",
                {.min = absl::Milliseconds(1), .group = group});
  }

  void RegisterLoad() {
    const std::string group = "Load";
    RegisterTrace(schema_, arrivals_);
    schema_.Add("shrink", &workload_.shrink,
                "Prompts have this part of the trace's tokens: 16 = a sixteenth. Prompts that the "
                "trace lets begin alike then share blocks of 512/16 tokens. A power of two.",
                {.min = 1, .max = sim::kTraceShrinkMax, .group = group});
    schema_.Add("token-ids", &token_ids_, "Token ids that prompts are made of.", {.group = group});
    schema_.Add("seed", &seed_, "Decides the requests' own seeds.", {.min = 0, .group = group});
  }

  void RegisterTiers() {
    const std::string group = "Service tiers";
    schema_.Add("service-tiers", &service_tiers_,
                "The routers' --service-tiers, whose goals decide what is in time.",
                {.group = group});
    schema_.Add("service-mix", &service_mix_,
                "The service tiers that requests ask for, NAME:SHARE separated by commas. Empty = "
                "they name none, and none is counted by its tier.",
                {.group = group});
    schema_.Add("ttft-slo", &default_tier_.ttft_slo, "The routers' --ttft-slo; 0 = none.",
                {.min = absl::ZeroDuration(), .group = group});
    schema_.Add("gap-slo", &default_tier_.gap_slo, "The routers' --gap-slo; 0 = none.",
                {.min = absl::ZeroDuration(), .group = group});
  }

  absl::Status Plan(const std::vector<std::string>& positionals) {
    ASSIGN_OR_RETURN(path_, TraceNamed(positionals));
    ASSIGN_OR_RETURN(target_options_.address, ParseTarget(target_));
    if (!target_options_.address.grpc)
      return absl::InvalidArgumentError("--target: expected grpc://HOST:PORT");
    ASSIGN_OR_RETURN(workload_.token_ids, ParseLengthRange("token-ids", token_ids_));
    workload_.seed = static_cast<uint64_t>(seed_);
    ASSIGN_OR_RETURN(const router::ServiceTiers tiers,
                     router::ServiceTiers::Parse(service_tiers_, default_tier_));
    ASSIGN_OR_RETURN(load_.service_mix, sim::ServiceMix::Parse(service_mix_, tiers));
    return CheckOutputs(results_.files());
  }

  absl::Status Measure() {
    TraceReport report = {.objectives = {objectives_.ttft, objectives_.itl}, .simulated = false};
    ASSIGN_OR_RETURN(std::unique_ptr<sim::WorkloadSource> source, OpenTraceAs(path_, arrivals_));
    ASSIGN_OR_RETURN(const std::unique_ptr<TraceWorkload> workload,
                     TraceWorkload::Create(workload_, std::move(source)));
    ASSIGN_OR_RETURN(report.trace, Survey());
    ASSIGN_OR_RETURN(const std::unique_ptr<StopSignal> stop, StopSignal::Create());
    boost::asio::io_context context(1);
    ASSIGN_OR_RETURN(const std::unique_ptr<LoadTarget> target,
                     NewGrpcTarget(target_options_, context));
    ASSIGN_OR_RETURN(
        const std::unique_ptr<Client> client,
        Client::Connect(
            absl::StrCat(target_options_.address.host, ":", target_options_.address.port),
            {.api_key = target_options_.api_key, .tls = target_options_.tls}));
    ASSIGN_OR_RETURN(const v1::GetStatusResponse before, client->GetStatus(kTraceStatusTimeout));
    load_.next_gap = [&] { return workload->NextGap(); };
    ProgressLine progress(results_.progress);
    const LoadHooks hooks = {
        .should_stop = [&] { return stop->Wait(absl::ZeroDuration()) != 0; },
        .on_progress = [&](const LoadProgress& state) { progress.Show(state); }};
    ASSIGN_OR_RETURN(const LoadResult load, RunLoad(load_, context, *target, *workload, hooks));
    progress.Clear();
    RETURN_IF_ERROR(workload->status());
    report.interrupted = load.interrupted;
    report.result = MeasureTrace(load, report.objectives, load_.service_mix, workload->ceilings());
    report.wall_s = report.result.virtual_s;
    // What was measured is published also when the router has gone away.
    stop->Wait(kHeartbeatsSettle);
    const absl::StatusOr<v1::GetStatusResponse> after = client->GetStatus(kTraceStatusTimeout);
    report.settings = Settings(after.ok() ? *after : before);
    if (after.ok()) {
      AddNodes(before, *after, report.result);
    } else {
      report.nodes_error = after.status().ToString();
    }
    return Publish(report);
  }

  // What the trace holds, with prompts as they are sent.
  absl::StatusOr<sim::TraceSummary> Survey() const {
    ASSIGN_OR_RETURN(std::unique_ptr<sim::WorkloadSource> whole, OpenTraceAs(path_, arrivals_));
    const auto shrunk = sim::ShrinkPrompts(std::move(whole), workload_.shrink);
    return sim::Summarize(*shrunk, sim::kTraceBlockTokens / workload_.shrink);
  }

  std::vector<std::pair<std::string, std::string>> Settings(
      const v1::GetStatusResponse& status) const {
    int64_t prefill = 0, decode = 0;
    for (const v1::NodeStatus& node : status.nodes())
      if (node.state() != "lost") ++(node.role() == "prefill" ? prefill : decode);
    return {{"trace", path_},
            {"target", target_options_.address.text()},
            {"fleet", absl::StrFormat("%d prefill nodes, %d decode nodes", prefill, decode)},
            {"tokens", absl::StrFormat("1/%d of the trace's prompts", workload_.shrink)},
            {"speed", absl::StrFormat("%g", arrivals_.speed)},
            {"service mix", service_mix_.empty() ? "none" : absl::StrJoin(service_mix_, ", ")},
            {"seed", absl::StrCat(seed_)}};
  }

  absl::Status Publish(const TraceReport& report) const {
    RETURN_IF_ERROR(PublishResult(
        results_, FormatTraceTable(report), [&] { return FormatTraceJson(report); },
        [&] { return FormatTraceHtml(report); }));
    return report.result.answered > 0 || report.result.requests == 0
               ? absl::OkStatus()
               : absl::UnavailableError(
                     absl::StrCat("no request was answered: ", report.result.first_error));
  }

  config::Schema schema_;
  std::string path_;  // of the trace
  std::string target_ = "grpc://127.0.0.1:50051";
  TargetOptions target_options_;
  LoadOptions load_ = {.requests = 0, .concurrency = kInFlightMax};
  sim::ArrivalOptions arrivals_;
  TraceWorkload::Options workload_;
  std::string token_ids_ = "33..126";
  int64_t seed_ = 1;
  std::vector<std::string> service_tiers_, service_mix_;
  router::ServiceTier default_tier_;
  ObjectiveFlags objectives_;
  ResultFlags results_;
};

}  // namespace

std::unique_ptr<Command> NewBenchTraceCommand() { return std::make_unique<BenchTraceCommand>(); }

}  // namespace tandem::cli
