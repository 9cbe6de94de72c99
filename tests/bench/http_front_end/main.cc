// What the router's HTTP front end costs: a real tandem-router (with the model's tokenizer), nodes
// that make tokens up (scripted_nodes.h) and a client (load.h) in this process.
// docs/TESTING.md has its command lines.
#include <sched.h>
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cli/client/client.h"
#include "cli/cluster/child_process.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "tests/bench/http_front_end/load.h"
#include "tests/bench/http_front_end/process_figures.h"
#include "tests/bench/http_front_end/scripted_nodes.h"

namespace tandem::bench {
namespace {

struct BenchConfig {
  std::string mode = "load";
  std::string model = "smollm2";
  std::string prompt = "text";
  int64_t requests = 20000;
  int32_t connections = 192;
  int32_t prompt_tokens = 1000;
  int32_t output_tokens = 20;
  int32_t streams = 5000;
  bool fresh = false;
  double rate = 0;
  absl::Duration step_time = absl::Milliseconds(2);
  int32_t turns = 1;
  int32_t http_threads = 2;
  int32_t router_core = -1;
  std::vector<std::string> router_flags;
  std::string api_key;
  std::string router_binary = TANDEM_BINARY_DIR "/bin/tandem-router";
};

void Register(config::Schema& schema, BenchConfig& config) {
  schema.Add("mode", &config.mode, "What is measured.", {.choices = {"load", "memory", "streams"}});
  schema.Add("model", &config.model, "Whose tokenizer the router has; hash: one of bytes.");
  schema.Add("prompt", &config.prompt, "What prompts are.", {.choices = {"text", "tokens"}});
  schema.Add("requests", &config.requests, "How many.", {.min = 1});
  schema.Add("connections", &config.connections, "Of the client.", {.min = 1, .max = 16384});
  schema.Add("prompt-tokens", &config.prompt_tokens, "Of each prompt, about.", {.min = 1});
  schema.Add("output-tokens", &config.output_tokens, "Of each answer.", {.min = 1});
  schema.Add("streams", &config.streams, "Open at once in mode streams.", {.min = 1, .max = 16384});
  schema.Add("fresh", &config.fresh, "A connection for each request.");
  schema.Add("rate", &config.rate, "Requests a second at random times; 0 = closed loop.");
  schema.Add("step-time", &config.step_time, "Between an answer's tokens.");
  schema.Add("turns", &config.turns, "A stream has a token in every so manieth step.", {.min = 1});
  schema.Add("http-threads", &config.http_threads, "The router's.", {.min = 1, .max = 64});
  schema.Add("router-core", &config.router_core, "Pin the router to this core; -1 = none.");
  schema.Add("router-flags", &config.router_flags,
             "Further flags of the router, such as --api-keys=FILE,--audit-log=FILE.");
  schema.Add("api-key", &config.api_key, "Of the client, in mode load; empty = none.");
  schema.Add("router-binary", &config.router_binary, "The tandem-router measured.");
}

// The router's process, and where it serves.
class RouterProcess {
 public:
  static absl::StatusOr<std::unique_ptr<RouterProcess>> Start(const BenchConfig& config) {
    auto router = std::make_unique<RouterProcess>();
    std::vector<std::string> flags = {"--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0", "--http=0",
                                      absl::StrCat("--http-threads=", config.http_threads)};
    // All streams are opened at once: a burst that is to be held, whatever it waits.
    if (config.mode == "streams") flags.emplace_back("--overload-delay=0");
    flags.insert(flags.end(), config.router_flags.begin(), config.router_flags.end());
    flags.push_back(config.model == "hash" ? "--engine=hash"
                                           : absl::StrCat("--model=", config.model));
    ASSIGN_OR_RETURN(router->child_,
                     cli::ChildProcess::Start(
                         "router", config.router_binary, flags,
                         [raw = router.get()](const std::string& line) { raw->OnLine(line); }));
    absl::MutexLock lock(&router->mutex_);
    router->mutex_.AwaitWithTimeout(
        absl::Condition(
            +[](std::string* http) { return !http->empty(); }, &router->http),
        absl::Seconds(60));
    if (router->http.empty()) return absl::UnavailableError("the router did not start");
    if (config.router_core >= 0) router->Pin(config.router_core);
    return router;
  }

  pid_t pid() const { return child_->pid(); }

  std::string grpc, fleet, http, model;

 private:
  void OnLine(const std::string& line) {
    if (!absl::StrContains(line, "router started")) return;
    absl::MutexLock lock(&mutex_);
    // The checkpoint's own name, in quotes if it has blanks.
    const std::pair<std::string, std::string> rest =
        absl::StrSplit(line, absl::MaxSplits(" model=", 1));
    model = rest.second[0] == '"' ? rest.second.substr(1, rest.second.find('"', 1) - 1)
                                  : rest.second.substr(0, rest.second.find(' '));
    for (const absl::string_view word : absl::StrSplit(line, ' ')) {
      const std::pair<std::string, std::string> field =
          absl::StrSplit(word, absl::MaxSplits('=', 1));
      if (field.first == "grpc") grpc = field.second;
      if (field.first == "fleet") fleet = field.second;
      if (field.first == "http") http = field.second;
    }
  }

  void Pin(int core) const {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    const std::string tasks = absl::StrCat("/proc/", pid(), "/task");
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
      ::sched_setaffinity(std::stoi(task.path().filename()), sizeof set, &set);
    }
  }

  absl::Mutex mutex_;
  std::unique_ptr<cli::ChildProcess> child_;
};

// Prose with some markup: this project's own documents.
std::string SomeText() {
  std::ostringstream text;
  for (const auto& entry : std::filesystem::directory_iterator(TANDEM_SOURCE_DIR "/docs")) {
    if (entry.path().extension() == ".md") text << std::ifstream(entry.path()).rdbuf();
  }
  return text.str();
}

// Request bodies, each with a prompt of its own.
class Bodies {
 public:
  Bodies(const BenchConfig& config, const v1::GetModelResponse& model, cli::Client& client)
      : config_(config), vocab_size_(model.vocab_size()), text_(SomeText()) {
    v1::TokenizeRequest request;
    request.set_text(text_);
    const auto tokens = client.Tokenize(request);
    const double count = tokens.ok() ? tokens->ids_size() : 1;
    prompt_bytes_ = static_cast<size_t>(config.prompt_tokens * static_cast<double>(text_.size()) /
                                        std::max(1.0, count));
  }

  // What request `number` calls itself.
  static std::string IdOf(int64_t number) {
    return absl::StrFormat("cmpl-%032x", static_cast<uint64_t>(number));
  }

  std::string Of(int64_t number, int32_t output_tokens) const {
    std::mt19937_64 random(static_cast<uint64_t>(number));
    nlohmann::json body = {{"max_tokens", output_tokens},
                           {"ignore_eos", true},
                           {"stream", true},
                           {"request_id", IdOf(number)},
                           {"temperature", 0.0}};
    if (config_.prompt == "text") {
      const size_t room = text_.size() - prompt_bytes_;
      size_t begin = random() % room;
      while (begin > 0 && (static_cast<unsigned char>(text_[begin]) & 0xc0) == 0x80) --begin;
      size_t end = begin + prompt_bytes_;
      while (end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xc0) == 0x80) ++end;
      body["prompt"] = absl::StrCat(number, " ", text_.substr(begin, end - begin));
    } else {
      std::vector<int32_t> ids(static_cast<size_t>(config_.prompt_tokens));
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % 256) % vocab_size_;
      ids[0] = static_cast<int32_t>(number % 256);
      body["prompt"] = ids;
    }
    return body.dump();
  }

 private:
  const BenchConfig& config_;
  const int32_t vocab_size_;
  const std::string text_;
  size_t prompt_bytes_ = 1;
};

// Open streams are measured, not tokens.
constexpr absl::Duration kStreamStep = absl::Seconds(1);

class Bench {
 public:
  explicit Bench(const BenchConfig& config) : config_(config) {}

  absl::Status Run() {
    ASSIGN_OR_RETURN(router_, RouterProcess::Start(config_));
    client_ = cli::Client::Create(router_->grpc, config_.api_key);
    ASSIGN_OR_RETURN(v1::GetModelResponse model, client_->GetModel());
    model.set_name(router_->model);
    nodes_ = ScriptedNodes::Start(
        router_->fleet, {.model = model,
                         .step_time = config_.mode == "streams" ? kStreamStep : config_.step_time,
                         .turns = static_cast<uint64_t>(config_.turns)});
    bodies_ = std::make_unique<Bodies>(config_, model, *client_);
    if (config_.mode != "streams") RETURN_IF_ERROR(Warm());
    if (config_.mode == "streams") return MeasureStreams();
    return config_.mode == "memory" ? MeasureMemory() : MeasureLoad();
  }

 private:
  LoadOptions NewLoad(int64_t first, int64_t requests) const {
    LoadOptions load;
    load.address = router_->http;
    load.api_key = config_.api_key;
    load.requests = requests;
    load.connections = config_.connections;
    load.fresh = config_.fresh;
    load.rate = config_.rate;
    load.body = [this, first](int64_t i) { return bodies_->Of(first + i, config_.output_tokens); };
    load.held = [this, first](int64_t i) { return nodes_->TakeHeld(Bodies::IdOf(first + i)); };
    return load;
  }

  // Both nodes have joined, and memory has been touched.
  absl::Status Warm() {
    LoadOptions load = NewLoad(1'000'000'000, 2000);
    load.connections = 192;
    if (config_.turns > 1)
      load.body = [this](int64_t i) { return bodies_->Of(1'000'000'000 + i, 2); };
    load.fresh = false;
    load.rate = 0;
    return RunLoad(load).status();
  }

  absl::Status MeasureLoad() {
    const auto threads_before = CpuMsByThread(router_->pid());
    const double before = CpuMs(router_->pid());
    ASSIGN_OR_RETURN(const LoadReport report, RunLoad(NewLoad(0, config_.requests)));
    const double cpu_ms = CpuMs(router_->pid()) - before;
    const auto requests = static_cast<double>(report.requests);
    std::printf("requests          %ld over %d connections%s, %.0f a second\n",
                static_cast<long>(report.requests), config_.connections,
                config_.fresh ? ", each request a fresh one" : "",
                requests / absl::ToDoubleSeconds(report.took));
    const auto answered =
        static_cast<double>(std::max<int64_t>(1, report.requests - report.refused));
    std::printf("events            %.1f an answer, %.0f answers a second\n",
                static_cast<double>(report.events) / answered,
                answered / absl::ToDoubleSeconds(report.took));
    std::printf("refused           %ld requests, %ld of these by 503\n",
                static_cast<long>(report.refused), static_cast<long>(report.shed));
    std::printf("router's CPU      %.3f ms a request (%.0f requests a second and core)\n",
                cpu_ms / requests, 1000 * requests / cpu_ms);
    for (const auto& [name, ms] : CpuMsByThread(router_->pid())) {
      const auto found = threads_before.find(name);
      const double used = ms - (found == threads_before.end() ? 0 : found->second);
      if (used > 0) std::printf("  %-15s %.3f ms a request\n", name.c_str(), used / requests);
    }
    PrintQuantiles("first token", report.first_token_ms);
    PrintQuantiles("without nodes", report.added_ms);
    return absl::OkStatus();
  }

  static void PrintQuantiles(const char* what, const std::vector<double>& ms) {
    std::printf("%-17s p50 %.2f ms, p90 %.2f ms, p99 %.2f ms\n", what, Quantile(ms, 0.5),
                Quantile(ms, 0.9), Quantile(ms, 0.99));
  }

  absl::Status MeasureMemory() {
    constexpr int kParts = 10;
    int64_t first = 0;
    for (int part = 0; part <= kParts; ++part) {
      std::printf("after %7ld distinct prompts  %.2f MB resident\n", static_cast<long>(first),
                  static_cast<double>(ResidentBytes(router_->pid())) / 1e6);
      if (part == kParts) break;
      const int64_t count = config_.requests / kParts;
      RETURN_IF_ERROR(RunLoad(NewLoad(first, count)).status());
      first += count;
    }
    return absl::OkStatus();
  }

  absl::Status MeasureStreams() {
    const int64_t before = ResidentBytes(router_->pid());
    constexpr int32_t kEndless = 1000;
    ASSIGN_OR_RETURN(const std::vector<int> sockets,
                     OpenStreams(
                         router_->http, [this](int64_t i) { return bodies_->Of(i, kEndless); },
                         config_.streams));
    const int64_t bytes = ResidentBytes(router_->pid()) - before;
    std::printf("%zu open streams: %.1f KB each\n", sockets.size(),
                static_cast<double>(bytes) / 1024 / static_cast<double>(sockets.size()));
    return absl::OkStatus();
  }

  const BenchConfig& config_;
  std::unique_ptr<RouterProcess> router_;
  std::unique_ptr<cli::Client> client_;
  std::unique_ptr<ScriptedNodes> nodes_;
  std::unique_ptr<Bodies> bodies_;
};

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  tandem::bench::BenchConfig config;
  tandem::config::Schema schema("bench_http_front_end",
                                "Measures what the router's HTTP front end costs.");
  tandem::bench::Register(schema, config);
  return tandem::config::RunProcess(
      schema, {argv + 1, argv + argc}, tandem::config::Environment(),
      [&config](tandem::StopSignal&) { return tandem::bench::Bench(config).Run(); });
}
