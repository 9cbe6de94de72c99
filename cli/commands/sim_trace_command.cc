// `tandem sim trace`: implements NewSimTraceCommand (cli/command_line/commands.h).
#include <malloc.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/files/named_file.h"
#include "cli/flags/result_flags.h"
#include "cli/sim_trace/model_cost.h"
#include "cli/sim_trace/trace_flags.h"
#include "cli/sim_trace/trace_report.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"
#include "sim/trace/shrunk_source.h"
#include "sim/trace/trace_simulation.h"

namespace tandem::cli {
namespace {

class SimTraceCommand final : public Command {
 public:
  SimTraceCommand()
      : schema_("tandem sim trace",
                "Replays a public trace through the router and the schedulers in virtual time.") {
    RegisterFleet();
    RegisterCosts();
    RegisterLoad();
    RegisterObjectives(schema_, objectives_);
    RegisterResultFiles(schema_, results_);
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    std::vector<std::string> positionals;
    if (auto code = ParseArguments(schema_, args, env, &positionals)) return *code;
    absl::StatusOr<std::string> path = TraceNamed(positionals);
    if (!sim::CanShrink(shrink_))
      path = absl::InvalidArgumentError(
          absl::StrCat("--shrink is ", shrink_, ", expected a power of two"));
    if (!path.ok()) {
      ReportError(schema_, path.status());
      return config::kExitUsage;
    }
    SetLogLevel(LogLevel::kError);
    // Prompts are large and short-lived: their memory stays in the process and is not faulted in
    // again for each.
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    absl::Status status = CheckOutputs(results_.files());
    if (status.ok()) status = Simulate(*path);
    return status.ok() ? config::kExitOk : ReportError(schema_, status);
  }

 private:
  void RegisterFleet() {
    const std::string group = "Fleet";
    schema_.Add("prefill", &options_.prefill_nodes, "Prefill nodes.",
                {.min = 0, .max = sim::kSimulatedNodesMax, .group = group});
    schema_.Add("decode", &options_.decode_nodes, "Decode nodes.",
                {.min = 1, .max = sim::kSimulatedNodesMax, .group = group});
    schema_.Add("routers", &options_.routers, "Routers; requests go to them in rotation.",
                {.min = 1, .max = 64, .group = group});
    schema_.Add("blocks", &options_.blocks_per_node,
                "KV blocks of 512 tokens (divided by --shrink) on each node; 0 = as many as the "
                "trace can fill.",
                {.min = 0, .max = sim::kSimulatedBlocksMax, .group = group});
    schema_.Add("host-blocks", &options_.host_memory.blocks,
                "Such blocks that each node keeps in host memory, as --swap-space makes it do.",
                {.min = 0, .max = sim::kSimulatedBlocksMax, .group = group});
    schema_.Add("disk-blocks", &options_.disk.blocks,
                "Such blocks that each node keeps on its disk, as --kv-disk makes it do.",
                {.min = 0, .max = sim::kSimulatedBlocksMax, .group = group});
    schema_.AddEnum("placement", &options_.placement, "How routers place requests.",
                    {router::kPlacementPolicies.begin(), router::kPlacementPolicies.end()}, group);
    schema_.Add("max-batch-tokens", &options_.max_batch_tokens, "Most rows of one engine step.",
                {.min = 1, .max = 65536, .unit = "tokens", .group = group});
    schema_.Add("max-sequences", &options_.max_sequences,
                "Most sequences that run on a node at the same time.",
                {.min = 1, .max = 65536, .unit = "sequences", .group = group});
    schema_.Add("prefill-wait", &options_.prefill_wait_max,
                "The routers' --prefill-wait; 0 = none.",
                {.min = absl::ZeroDuration(), .group = group});
    schema_.Add("queue-deadline", &options_.queue_deadline, "The routers' --queue-deadline.",
                {.min = absl::Milliseconds(1), .group = group});
    schema_.Add("ttft-slo", &options_.default_tier.ttft_slo, "The routers' --ttft-slo; 0 = none.",
                {.min = absl::ZeroDuration(), .group = group});
    schema_.AddEnum("late", &options_.default_tier.late, "The routers' --late.",
                    {router::kLatePolicies.begin(), router::kLatePolicies.end()}, group);
    schema_.Add("gap-slo", &options_.default_tier.gap_slo, "The routers' --gap-slo; 0 = none.",
                {.min = absl::ZeroDuration(), .group = group});
    schema_.Add("service-tiers", &service_tiers_, "The routers' --service-tiers.",
                {.group = group});
    schema_.Add("itl-slo", &options_.itl_slo, "The nodes' --itl-slo; 0 = none.",
                {.min = absl::ZeroDuration(), .group = group});
  }

  void RegisterCosts() {
    const std::string group = "Costs";
    schema_.Add("model-cost", &model_cost_,
                "What a step takes, in microseconds: a sum of terms, name=figure.",
                {.group = group});
    schema_.Add("step-noise", &step_noise_,
                "How unevenly steps take their time: the file that `tandem bench trace --json` "
                "wrote of real processes. Empty = exactly what --model-cost says.",
                {.group = group});
    schema_.Add("step-gap", &options_.step_gap,
                "What a node itself does between two steps: messages, the next plan.",
                {.min = absl::ZeroDuration(), .max = absl::Seconds(1), .group = group});
    schema_.Add("kv-bytes-per-token", &options_.kv_bytes_per_token,
                "Bytes of one token's KV, for transfers.",
                {.min = 1, .max = 1 << 30, .unit = "bytes", .group = group});
    schema_.Add("kv-rate", &kv_gb_per_second_,
                "The rate at which each node sends KV, and receives it.",
                {.min = 0.001, .max = 1e6, .unit = "GB/s", .group = group});
    schema_.Add("host-rate", &host_gb_per_second_,
                "The rate at which a node copies blocks to its host memory, and back.",
                {.min = 0.001, .max = 1e6, .unit = "GB/s", .group = group});
    schema_.Add("disk-rate", &disk_gb_per_second_,
                "The rate at which a node writes blocks to its disk, and reads them.",
                {.min = 0.001, .max = 1e6, .unit = "GB/s", .group = group});
    schema_.Add("kv-latency", &options_.link.latency, "One way, between two nodes.",
                {.min = absl::ZeroDuration(), .max = absl::Seconds(10), .group = group});
  }

  void RegisterLoad() {
    RegisterTrace(schema_, arrivals_);
    schema_.Add("shrink", &shrink_,
                "Prompts have this part of the trace's tokens, and blocks as well, as with "
                "`tandem bench trace --shrink`. A power of two.",
                {.min = 1, .max = sim::kTraceShrinkMax, .group = "Load"});
    schema_.Add("service-mix", &service_mix_,
                "The service tiers that requests ask for, NAME:SHARE separated by commas. Empty = "
                "all are of the tier `default`, and none is counted by its tier.",
                {.group = "Load"});
    schema_.Add("seed", &seed_, "Decides what is random in the network and the router.",
                {.min = 0, .group = "Load"});
  }

  int64_t block_tokens() const { return sim::kTraceBlockTokens / shrink_; }
  absl::StatusOr<std::unique_ptr<sim::WorkloadSource>> Open(const std::string& path) const {
    ASSIGN_OR_RETURN(std::unique_ptr<sim::WorkloadSource> trace, OpenTraceAs(path, arrivals_));
    if (shrink_ == 1) return trace;
    return sim::ShrinkPrompts(std::move(trace), shrink_);
  }

  absl::Status Simulate(const std::string& path) {
    ASSIGN_OR_RETURN(options_.step_cost, ParseModelCost(model_cost_));
    if (!step_noise_.empty()) {
      ASSIGN_OR_RETURN(options_.step_noise, ReadStepNoise({"step-noise", step_noise_}));
    }
    options_.link.bytes_per_second = kv_gb_per_second_ * 1e9;
    options_.host_memory.bytes_per_second = host_gb_per_second_ * 1e9;
    options_.disk.bytes_per_second = disk_gb_per_second_ * 1e9;
    options_.objectives = {objectives_.ttft, objectives_.itl};
    options_.seed = static_cast<uint64_t>(seed_);
    ASSIGN_OR_RETURN(const router::ServiceTiers tiers,
                     router::ServiceTiers::Parse(service_tiers_, options_.default_tier));
    ASSIGN_OR_RETURN(options_.service_mix, sim::ServiceMix::Parse(service_mix_, tiers));
    ASSIGN_OR_RETURN(const std::unique_ptr<sim::WorkloadSource> survey, Open(path));
    TraceReport report = {.objectives = options_.objectives};
    ASSIGN_OR_RETURN(report.trace, sim::Summarize(*survey, block_tokens()));
    ASSIGN_OR_RETURN(const int64_t blocks, sim::BlocksPerNode(options_, report.trace));
    report.settings = Settings(path, blocks);
    if (options_.blocks_per_node > 0) RETURN_IF_ERROR(ComparePolicies(path, report));
    ASSIGN_OR_RETURN(const std::unique_ptr<sim::WorkloadSource> load, Open(path));
    const absl::Time start = RealClock().Now();
    ASSIGN_OR_RETURN(report.result, sim::RunTrace(options_, report.trace, *load));
    report.wall_s = absl::ToDoubleSeconds(RealClock().Now() - start);
    return Publish(report);
  }

  absl::Status ComparePolicies(const std::string& path, TraceReport& report) const {
    const int64_t nodes =
        options_.prefill_nodes > 0 ? options_.prefill_nodes : options_.decode_nodes;
    report.policy_blocks = nodes * options_.blocks_per_node;
    ASSIGN_OR_RETURN(const std::unique_ptr<sim::WorkloadSource> blocks, Open(path));
    ASSIGN_OR_RETURN(report.policies,
                     sim::CompareCachePolicies(*blocks, report.policy_blocks, options_.step_cost,
                                               block_tokens()));
    return absl::OkStatus();
  }

  std::vector<std::pair<std::string, std::string>> Settings(const std::string& path,
                                                            int64_t blocks) const {
    return {{"trace", path},
            {"fleet", absl::StrFormat("%d routers, %d prefill nodes, %d decode nodes, %d blocks "
                                      "of %d tokens each",
                                      options_.routers, options_.prefill_nodes,
                                      options_.decode_nodes, blocks, block_tokens())},
            {"placement", std::string(router::NameOf(options_.placement))},
            {"model cost", model_cost_},
            {"step noise", step_noise_.empty() ? "none" : step_noise_},
            {"KV", absl::StrFormat("%d bytes a token, %g GB/s", options_.kv_bytes_per_token,
                                   kv_gb_per_second_)},
            {"storage", absl::StrFormat("%d blocks in host memory at %g GB/s, %d on disk at %g",
                                        options_.host_memory.blocks, host_gb_per_second_,
                                        options_.disk.blocks, disk_gb_per_second_)},
            {"speed", absl::StrFormat("%g", arrivals_.speed)},
            {"seed", absl::StrCat(seed_)}};
  }

  absl::Status Publish(const TraceReport& report) const {
    return PublishResult(
        results_, FormatTraceTable(report), [&] { return FormatTraceJson(report); },
        [&] { return FormatTraceHtml(report); });
  }

  config::Schema schema_;
  sim::TraceOptions options_ = {.kv_bytes_per_token = 327'680,
                                .link = {.latency = absl::Microseconds(50)},
                                .disk = {.latency = absl::Microseconds(100)}};
  std::string model_cost_ = std::string(kDefaultModelCost);
  std::string step_noise_;
  std::vector<std::string> service_tiers_, service_mix_;
  double kv_gb_per_second_ = 25;                             // 200 Gbit/s
  double host_gb_per_second_ = 50, disk_gb_per_second_ = 5;  // PCIe 5 with 16 lanes; an NVMe disk
  sim::ArrivalOptions arrivals_;
  int32_t shrink_ = 1;
  ObjectiveFlags objectives_;
  int64_t seed_ = 1;
  ResultFlags results_;
};

}  // namespace

std::unique_ptr<Command> NewSimTraceCommand() { return std::make_unique<SimTraceCommand>(); }

}  // namespace tandem::cli
