// `tandem bench modes`: implements NewBenchModesCommand (cli/command_line/commands.h).
#include <cstdio>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench_modes/mode_run.h"
#include "cli/bench_modes/modes_report.h"
#include "cli/bench_modes/serving_mode.h"
#include "cli/bench_serve/progress_line.h"
#include "cli/bench_serve/run_size.h"
#include "cli/cluster_load/cluster_bench_command.h"
#include "cli/command_line/parse.h"
#include "cli/files/named_file.h"
#include "cli/flags/result_flags.h"
#include "common/base/status_macros.h"
#include "common/runtime/stop_signal.h"

namespace tandem::cli {
namespace {

// Without --rate: this share of what an interleaved cluster answers under full load, so that every
// way of serving has a chance.
constexpr double kShareOfFullLoad = 0.6;

class BenchModesCommand final : public ClusterBenchCommand {
 public:
  BenchModesCommand()
      : ClusterBenchCommand(
            "tandem bench modes",
            "Serves one load in three ways, one after another: batched, interleaved, "
            "disaggregated.") {
    RegisterUp({"grpc", "http", "batching"});  // ports are free ones
    Register();
  }

 private:
  using Stop = std::function<bool(absl::Duration)>;

  void Register() {
    const std::string load = "Load";
    schema_.Add("rate", &arrivals_.rate,
                "Requests that arrive, at random; 0 = 60 % of what an interleaved cluster answers "
                "under full load.",
                {.min = 0.0, .max = 1e6, .unit = "requests/s", .group = load});
    schema_.Add("duration", &duration_, "Of each run: no request starts later.",
                {.min = absl::Seconds(1), .group = load});
    schema_.Add("rounds", &rounds_,
                "Runs of each way, alternately; the results are of all of them.",
                {.min = 1, .max = 100, .group = load});
    schema_.Add("prompt-tokens", &prompt_tokens_, "Length of prompts: 512, or a range 128..1024.",
                {.group = load});
    schema_.Add("output-tokens", &output_tokens_, "Length of answers: 64, or a range.",
                {.group = load});
    schema_.Add("seed", &seed_, "Decides prompts, lengths and arrivals, equal in each way.",
                {.min = 0, .group = load});
    RegisterObjectives(schema_, objectives_);
    RegisterResultFiles(schema_, results_);
    RegisterProgress(schema_, results_);
  }

  absl::Status Plan() override {
    if (up_.prefill < 1) {
      return absl::InvalidArgumentError(
          "prefill: 0, expected at least 1: the disaggregated cluster needs both kinds of nodes");
    }
    ASSIGN_OR_RETURN(workload_.prompt_tokens, ParseLengthRange("prompt-tokens", prompt_tokens_));
    ASSIGN_OR_RETURN(workload_.output_tokens, ParseLengthRange("output-tokens", output_tokens_));
    workload_.seed = static_cast<uint64_t>(seed_);
    load_ = {.requests = 0, .duration = duration_, .concurrency = 0, .seed = workload_.seed};
    return CheckOutputs(results_.files());
  }

  absl::Status Measure(const Environment& env) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<StopSignal> stop, StopSignal::Create());
    const Stop should_stop = [&](absl::Duration wait) { return stop->Wait(wait) != 0; };
    if (arrivals_.rate == 0) RETURN_IF_ERROR(FindRate(env, should_stop));
    load_.arrivals = arrivals_;
    std::map<ServingMode, ModeResult> results;
    std::map<ServingMode, absl::Duration> elapsed;
    for (int64_t round = 0; round < rounds_; ++round) {
      for (size_t i = 0; i < kServingModes.size(); ++i) {
        // Another one begins each round: none always has the machine after the same other one.
        const ServingMode mode = kServingModes[(i + static_cast<size_t>(round)) % 3];
        Announce(absl::StrCat("round ", round + 1, " of ", rounds_, ": ", NameOf(mode)));
        ProgressLine progress(results_.progress);
        ModeRun run = NewRun(mode, should_stop);
        run.on_progress = [&](const LoadProgress& state) { progress.Show(state); };
        ASSIGN_OR_RETURN(LoadResult result, RunMode(run, env));
        progress.Clear();
        ModeResult& all = results[mode];
        all.name = NameOf(mode);
        all.prefill = run.up.prefill;
        all.decode = run.up.decode;
        elapsed[mode] += result.elapsed;
        for (RequestRecord& record : result.records) all.records.push_back(std::move(record));
      }
    }
    ModesReport report{.settings = MakeSettings(), .modes = {}};
    const Objectives objectives = {.ttft_ms = absl::ToDoubleMilliseconds(objectives_.ttft),
                                   .itl_ms = absl::ToDoubleMilliseconds(objectives_.itl)};
    for (auto& [mode, result] : results) {
      result.summary = Summarize(result.records, elapsed[mode], objectives);
      report.modes.push_back(std::move(result));
    }
    return Publish(report);
  }

  ModeRun NewRun(ServingMode mode, const Stop& should_stop) const {
    return {.up = ConfigureFor(mode, up_),
            .load = load_,
            .workload = workload_,
            .should_stop = should_stop,
            .on_progress = [](const LoadProgress&) {}};
  }

  // Sets the rate from what an interleaved cluster answers.
  absl::Status FindRate(const Environment& env, const Stop& should_stop) {
    Announce("measuring what an interleaved cluster answers");
    ModeRun run = NewRun(ServingMode::kInterleaved, should_stop);
    LoadOptions closed = load_;
    closed.concurrency = 16;
    run.load = ProbeOptions(closed);
    run.load.duration = absl::Seconds(8);
    run.workload.seed = ~workload_.seed;
    ASSIGN_OR_RETURN(const LoadResult probe, RunMode(run, env));
    const std::optional<double> answered = AnswersPerSecond(probe);
    if (!answered.has_value()) return absl::UnavailableError("no request was answered");
    arrivals_.rate = kShareOfFullLoad * *answered;
    Announce(absl::StrFormat("it answers %.3g such requests/s: sending %.3g", *answered,
                             arrivals_.rate));
    return absl::OkStatus();
  }

  void Announce(const std::string& text) const {
    if (results_.progress) absl::FPrintF(stderr, "%s\n", text);
  }

  Settings MakeSettings() const {
    std::string goodput;
    if (objectives_.ttft > absl::ZeroDuration()) {
      absl::StrAppend(&goodput, "first token within ", absl::FormatDuration(objectives_.ttft));
    }
    if (objectives_.itl > absl::ZeroDuration()) {
      absl::StrAppend(&goodput, goodput.empty() ? "" : ", ", "p99 of a request's gaps within ",
                      absl::FormatDuration(objectives_.itl));
    }
    if (goodput.empty()) goodput = "every answered request is good";
    return {{"model", ModelName()},
            {"load", absl::StrFormat("%.3g requests/s at random for %s, %d rounds", arrivals_.rate,
                                     absl::FormatDuration(duration_), rounds_)},
            {"tokens", absl::StrCat(prompt_tokens_, " prompt, ", output_tokens_, " output")},
            {"goodput", goodput},
            {"seed", absl::StrCat(seed_)}};
  }

  absl::Status Publish(const ModesReport& report) {
    return PublishResult(
        results_, FormatModesTable(report), [&] { return FormatModesJson(report); },
        [&] { return FormatModesHtml(report); });
  }

  ArrivalOptions arrivals_ = {.rate = 0};
  absl::Duration duration_ = absl::Seconds(30);
  int64_t rounds_ = 1;
  WorkloadOptions workload_;
  LoadOptions load_;
  std::string prompt_tokens_ = "32..1024", output_tokens_ = "16..96";
  int64_t seed_ = 1;
  ObjectiveFlags objectives_;
};

}  // namespace

std::unique_ptr<Command> NewBenchModesCommand() { return std::make_unique<BenchModesCommand>(); }

}  // namespace tandem::cli
