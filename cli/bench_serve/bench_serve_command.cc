// `tandem bench serve`: implements NewBenchServeCommand (cli/command_line/commands.h).

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/bench_serve/load_run.h"
#include "cli/bench_serve/load_target.h"
#include "cli/bench_serve/progress_line.h"
#include "cli/bench_serve/report.h"
#include "cli/bench_serve/run_size.h"
#include "cli/bench_serve/workload.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/files/named_file.h"
#include "cli/flags/result_flags.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "common/runtime/descriptors.h"
#include "common/runtime/stop_signal.h"

namespace tandem::cli {
namespace {

// How many words the server is asked to tokenize, to learn how many tokens a word has.
constexpr int64_t kSampleWords = 256;

class BenchServeCommand final : public Command {
 public:
  BenchServeCommand()
      : schema_("tandem bench serve", "Sends a load to a server and measures its answers.") {
    RegisterTarget();
    RegisterLoad();
    RegisterWorkload();
    RegisterResults();
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    if (auto code = ParseArguments(schema_, args, env, nullptr)) return *code;
    if (absl::Status status = Plan(); !status.ok()) {
      ReportError(schema_, status);
      return config::kExitUsage;
    }
    const absl::Status status = Measure();
    return status.ok() ? config::kExitOk : ReportError(schema_, status);
  }

 private:
  void RegisterTarget() {
    const std::string group = "Target";
    schema_.Add("target", &target_,
                "Server: http://HOST:PORT or https://HOST:PORT (OpenAI's API, streamed) or "
                "grpc://HOST:PORT (tandem.v1).",
                {.group = group});
    schema_.Add("endpoint", &endpoint_,
                "For an HTTP server: completions or chat (/v1/completions or /v1/chat/completions; "
                "chat prompts are messages of words).",
                {.group = group, .choices = {"completions", "chat"}});
    schema_.Add("model", &target_options_.model, "Model to request; empty = the server's.",
                {.group = group});
    schema_.Add("api-key", &target_options_.api_key, "Key for servers that require one.",
                {.group = group, .secret = true});
    schema_.Add("tls-ca", &target_options_.tls.authorities,
                "For a server with TLS: a file of trusted certificates (PEM), or system for the "
                "machine's; empty = system for https://, no TLS otherwise.",
                {.group = group});
    schema_.Add("tls-cert", &target_options_.tls.certificate,
                "For servers that ask for certificates: a file with this client's (PEM).",
                {.group = group});
    schema_.Add("tls-key", &target_options_.tls.key, "The private key of --tls-cert (PEM).",
                {.group = group});
    schema_.Add("timeout", &load_.timeout,
                "A request fails when its answer is not complete by then.",
                {.min = absl::Milliseconds(1), .group = group});
  }

  void RegisterLoad() {
    const std::string group = "Load";
    schema_.Add("requests", &load_.requests,
                "Requests to send; 0 = as many as fit into --duration or, without one, as a short "
                "probe says that the server answers in about 20 s.",
                {.min = 0, .group = group});
    schema_.Add("duration", &duration_, "Starts no request after this time; 0 = no limit.",
                {.min = absl::ZeroDuration(), .group = group});
    schema_.Add("concurrency", &load_.concurrency,
                "Closed loop: number of clients, each with one request at a time. Open loop "
                "(--rate): the most requests in flight. 0 = 8 and 60000.",
                {.min = 0, .max = kInFlightMax, .unit = "requests", .group = group});
    schema_.Add("rate", &arrivals_.rate, "Open loop: requests that arrive; 0 = closed loop.",
                {.min = 0.0, .max = 1e6, .unit = "requests/s", .group = group});
    schema_.AddEnum("arrivals", &arrivals_.kind, "Gaps between arrivals in the open loop.",
                    {{"poisson", ArrivalKind::kPoisson},
                     {"bursty", ArrivalKind::kBursty},
                     {"even", ArrivalKind::kEven}},
                    group);
    schema_.Add("burstiness", &arrivals_.burstiness,
                "Shape of the gamma gaps of bursty arrivals: below 1 clustered, 1 = poisson.",
                {.min = 0.01, .max = 100.0, .group = group});
    schema_.Add("warmup", &load_.warmup, "Requests before the measurement, not counted.",
                {.min = 0, .group = group});
  }

  void RegisterWorkload() {
    const std::string group = "Requests";
    schema_.Add("prompt-tokens", &prompt_tokens_, "Length of prompts: 512, or a range 128..1024.",
                {.group = group});
    schema_.Add("output-tokens", &output_tokens_, "Length of answers: 64, or a range.",
                {.group = group});
    schema_.Add("lengths", &lengths_,
                "given: --prompt-tokens and --output-tokens. sharegpt: lognormal lengths with the "
                "mean lengths of the ShareGPT conversations, 161 and 338 tokens.",
                {.group = group, .choices = {"given", "sharegpt"}});
    schema_.Add("prompts", &prompts_,
                "A JSON Lines file of prompts to use instead, repeated: {\"prompt\": text or token "
                "ids, \"max_tokens\": N}, or \"messages\" for --endpoint=chat.",
                {.group = group});
    schema_.Add("turns", &workload_.turns,
                "User messages of a conversation with --endpoint=chat: each request repeats the "
                "turns before it.",
                {.min = 1, .max = 1000, .group = group});
    schema_.Add("prompt-form", &prompt_form_,
                "tokens: prompts are token ids. text: prompts are words; the server's /tokenize "
                "decides how many (without it: one word for each token).",
                {.group = group, .choices = {"tokens", "text"}});
    schema_.Add("token-ids", &token_ids_, "Token ids that prompts are drawn from.",
                {.group = group});
    schema_.Add("shared-prefix-tokens", &workload_.shared_prefix_tokens,
                "Tokens at the start of a prompt that other prompts share.",
                {.min = 0, .max = 1 << 21, .unit = "tokens", .group = group});
    schema_.Add("prefixes", &workload_.prefixes, "Number of different shared prefixes.",
                {.min = 1, .max = 100000, .group = group});
    schema_.Add("seed", &seed_, "Decides prompts, lengths, arrivals and the requests' own seeds.",
                {.min = 0, .group = group});
    schema_.Add("service-mix", &service_mix_,
                "The service tiers that requests name, NAME:SHARE separated by commas. Empty = "
                "they name none, and none is counted by its tier.",
                {.group = group});
    schema_.Add("temperature", &target_options_.temperature, "0 = greedy.",
                {.min = 0.0, .group = group});
    schema_.Add("ignore-eos", &target_options_.ignore_eos,
                "Request answers of the full length: ignore the end-of-sequence token.",
                {.group = group});
  }

  void RegisterResults() {
    RegisterObjectives(schema_, objectives_);
    schema_.Add("slo-e2e", &slo_e2e_,
                "Goodput: limit for the time to the complete answer; 0 = none.",
                {.min = absl::ZeroDuration(), .group = kResultsGroup});
    RegisterResultFiles(schema_, results_);
    schema_.Add("csv", &results_.csv, "A file for one line for each request; - as for json.",
                {.group = kResultsGroup});
    RegisterProgress(schema_, results_);
  }

  absl::Status Plan() {
    ASSIGN_OR_RETURN(target_options_.address, ParseTarget(target_));
    ASSIGN_OR_RETURN(workload_.prompt_tokens, ParseLengthRange("prompt-tokens", prompt_tokens_));
    ASSIGN_OR_RETURN(workload_.output_tokens, ParseLengthRange("output-tokens", output_tokens_));
    ASSIGN_OR_RETURN(workload_.token_ids, ParseLengthRange("token-ids", token_ids_));
    sized_by_probe_ = load_.requests == 0 && duration_ == absl::ZeroDuration();
    if (duration_ > absl::ZeroDuration()) load_.duration = duration_;
    if (arrivals_.rate > 0) {
      load_.arrivals = arrivals_;
    } else if (load_.concurrency == 0) {
      load_.concurrency = 8;
    }
    workload_.sharegpt_like = lengths_ == "sharegpt";
    target_options_.chat = endpoint_ == "chat";
    if (target_options_.chat && target_options_.address.grpc) {
      return absl::InvalidArgumentError("--endpoint=chat needs an http:// --target");
    }
    if (!target_options_.tls.authorities.empty() && !target_options_.address.grpc &&
        !target_options_.address.tls) {
      return absl::InvalidArgumentError("--tls-ca needs an https:// or grpc:// --target");
    }
    if (!target_options_.chat && workload_.turns > 1) {
      return absl::InvalidArgumentError("--turns needs --endpoint=chat");
    }
    RETURN_IF_ERROR(CheckPrefix());
    if (target_options_.chat) prompt_form_ = "text";
    RETURN_IF_ERROR(CheckOutputs(results_.files()));
    workload_.as_text = prompt_form_ == "text";
    workload_.seed = load_.seed = static_cast<uint64_t>(seed_);
    ASSIGN_OR_RETURN(load_.service_mix, sim::ServiceMix::ParseNames(service_mix_, load_.seed));
    return absl::OkStatus();
  }

  // A shared prefix is a part of each prompt, except in conversations and of prompts of a file.
  absl::Status CheckPrefix() const {
    const int32_t shared = workload_.shared_prefix_tokens;
    const bool apart = target_options_.chat || workload_.sharegpt_like || !prompts_.empty();
    if (apart || shared == 0 || shared < workload_.prompt_tokens.min) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "--shared-prefix-tokens ", shared, ": expected fewer than the ",
        workload_.prompt_tokens.min, " of the shortest prompt, --prompt-tokens ", prompt_tokens_));
  }

  absl::Status Measure() {
    RaiseDescriptorLimit();
    ASSIGN_OR_RETURN(const std::unique_ptr<StopSignal> stop, StopSignal::Create());
    boost::asio::io_context context(1);
    ASSIGN_OR_RETURN(const std::unique_ptr<LoadTarget> target,
                     target_options_.address.grpc ? NewGrpcTarget(target_options_, context)
                                                  : NewHttpTarget(target_options_, context));
    ProgressLine progress(results_.progress);
    const LoadHooks hooks = {
        .should_stop = [&] { return stop->Wait(absl::ZeroDuration()) != 0; },
        .on_progress = [&](const LoadProgress& state) { progress.Show(state); }};
    if (sized_by_probe_) RETURN_IF_ERROR(SizeRun(context, *target, hooks.should_stop));
    workload_.requests = load_.requests > 0 ? load_.requests + load_.warmup : 0;
    ASSIGN_OR_RETURN(const std::unique_ptr<Workload> workload, NewWorkload(*target, workload_));
    ASSIGN_OR_RETURN(LoadResult result, RunLoad(load_, context, *target, *workload, hooks));
    progress.Clear();
    LoadReport report;
    report.settings = Settings(target->model());
    report.open_loop = load_.arrivals.has_value();
    report.interrupted = result.interrupted;
    report.summary = Summarize(result.records, result.elapsed,
                               {.ttft_ms = absl::ToDoubleMilliseconds(objectives_.ttft),
                                .itl_ms = absl::ToDoubleMilliseconds(objectives_.itl),
                                .e2e_ms = absl::ToDoubleMilliseconds(slo_e2e_)});
    report.records = std::move(result.records);
    return Publish(report);
  }

  absl::StatusOr<std::unique_ptr<Workload>> NewWorkload(LoadTarget& target,
                                                        const WorkloadOptions& options) {
    if (!prompts_.empty()) {
      if (!prompts_text_.has_value()) {
        ASSIGN_OR_RETURN(prompts_text_, ReadInput({"--prompts", prompts_}));
      }
      absl::StatusOr<std::unique_ptr<Workload>> workload =
          NewFileWorkload(*prompts_text_, options, target_options_.chat);
      if (workload.ok()) return workload;
      return absl::InvalidArgumentError(
          absl::StrCat("--prompts ", prompts_, ": ", workload.status().message()));
    }
    WorkloadOptions measured = options;
    if (options.as_text) {
      const std::unique_ptr<Random> random = NewSeededRandom(options.seed);
      const absl::StatusOr<int64_t> tokens = target.CountTokens(DrawWords(kSampleWords, *random));
      if (tokens.ok() && *tokens > 0) {
        measured.tokens_per_word = static_cast<double>(*tokens) / kSampleWords;
      }
    }
    return target_options_.chat ? NewChatWorkload(measured) : NewSyntheticWorkload(measured);
  }

  // Measures the server with requests like the run's, and sets load_.requests from it. An error
  // if the server answers none of them.
  absl::Status SizeRun(boost::asio::io_context& context, LoadTarget& target,
                       const std::function<bool()>& should_stop) {
    // Other prompts than the run's, so that the run does not meet them in a cache.
    WorkloadOptions options = workload_;
    options.seed = ~workload_.seed;
    ASSIGN_OR_RETURN(const std::unique_ptr<Workload> workload, NewWorkload(target, options));
    const LoadHooks hooks = {.should_stop = should_stop, .on_progress = [](const LoadProgress&) {}};
    ASSIGN_OR_RETURN(const LoadResult probe,
                     RunLoad(ProbeOptions(load_), context, target, *workload, hooks));
    if (probe.interrupted) return absl::CancelledError("interrupted before the measurement began");
    const std::optional<double> answered = AnswersPerSecond(probe);
    if (!answered.has_value()) {
      const RequestRecord& first = probe.records.front();
      return absl::UnavailableError(
          absl::StrCat("no request was answered: ", first.error, ": ", first.message));
    }
    std::optional<double> arriving;
    if (load_.arrivals.has_value()) arriving = arrivals_.rate;
    load_.requests = RequestsForRun(*answered, arriving);
    if (results_.progress) {
      absl::FPrintF(stderr, "the server answers about %.3g such requests/s: sending %d\n",
                    *answered, load_.requests);
    }
    return absl::OkStatus();
  }

  std::vector<std::pair<std::string, std::string>> Settings(const std::string& model) const {
    std::string load;
    if (load_.arrivals.has_value()) {
      static constexpr const char* kNames[] = {"even", "poisson", "bursty"};
      load = absl::StrCat("open loop, ", arrivals_.rate, " requests/s, ",
                          kNames[static_cast<int>(arrivals_.kind)]);
      if (arrivals_.kind == ArrivalKind::kBursty) {
        absl::StrAppend(&load, " (gamma of shape ", arrivals_.burstiness, ")");
      }
      if (load_.concurrency > 0) absl::StrAppend(&load, ", at most ", load_.concurrency);
    } else {
      load = absl::StrCat("closed loop, ", load_.concurrency, " clients");
    }
    std::string lengths = absl::StrCat(prompt_tokens_, " prompt, ", output_tokens_, " output");
    if (workload_.sharegpt_like) lengths = "ShareGPT-like (lognormal, means 161 and 338)";
    if (!prompts_.empty()) lengths = absl::StrCat("from ", prompts_);
    if (workload_.turns > 1)
      absl::StrAppend(&lengths, "; conversations of ", workload_.turns, " turns");
    if (workload_.shared_prefix_tokens > 0) {
      absl::StrAppend(&lengths, "; ", workload_.shared_prefix_tokens, " shared by one of ",
                      workload_.prefixes, " prefixes");
    }
    std::vector<std::pair<std::string, std::string>> settings = {
        {"target", target_options_.address.text()},
        {"model", model},
        {"load", load},
        {"tokens", lengths},
        {"endpoint", target_options_.address.grpc ? "tandem.v1" : endpoint_},
        {"prompts as", prompts_.empty() ? prompt_form_ : "they are"},
        {"seed", absl::StrCat(seed_)},
        {"warm-up", absl::StrCat(load_.warmup, " requests")}};
    if (!service_mix_.empty())
      settings.emplace_back("service mix", absl::StrJoin(service_mix_, ", "));
    return settings;
  }

  absl::Status Publish(const LoadReport& report) {
    RETURN_IF_ERROR(PublishResult(
        results_, FormatLoadTable(report), [&] { return FormatLoadJson(report); },
        [&] { return FormatLoadHtml(report); }));
    if (!results_.csv.empty()) {
      RETURN_IF_ERROR(WriteOutput({"--csv", results_.csv}, FormatLoadCsv(report.records)));
    }
    if (report.summary.answered == 0 && !report.summary.errors.empty()) {
      return absl::UnavailableError("no request was answered");
    }
    return absl::OkStatus();
  }

  config::Schema schema_;
  std::string target_ = "http://127.0.0.1:8000";
  TargetOptions target_options_;
  LoadOptions load_ = {.requests = 0, .concurrency = 0};
  bool sized_by_probe_ = false;
  absl::Duration duration_;
  ArrivalOptions arrivals_ = {.rate = 0};
  WorkloadOptions workload_;
  std::string prompt_tokens_ = "512", output_tokens_ = "64", token_ids_ = "33..126";
  std::string lengths_ = "given", prompt_form_ = "tokens", prompts_, endpoint_ = "completions";
  std::vector<std::string> service_mix_;
  int64_t seed_ = 1;
  ObjectiveFlags objectives_;
  absl::Duration slo_e2e_;
  std::optional<std::string> prompts_text_;  // what --prompts names; a probe reads it before
  ResultFlags results_;
};

}  // namespace

std::unique_ptr<Command> NewBenchServeCommand() { return std::make_unique<BenchServeCommand>(); }

}  // namespace tandem::cli
