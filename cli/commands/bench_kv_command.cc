// `tandem bench kv`: implements NewBenchKvCommand (cli/command_line/commands.h).
#include <cstdio>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/bench/kv_bench.h"
#include "cli/bench/kv_bench_transport.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "common/telemetry/log.h"

namespace tandem::cli {
namespace {

class BenchKvCommand final : public Command {
 public:
  BenchKvCommand()
      : schema_("tandem bench kv",
                "Measures KV transfers between two processes of this host, beside memcpy.") {
    schema_.Add("blocks", &blocks_, "Sizes of one layer's block to measure.", {.unit = "bytes"});
    schema_.Add("transports", &options_.transports,
                "mapped: copied from the sender's mapped arena; shm: UCX's shared memory; tcp: "
                "UCX over TCP; socket: one plain TCP connection, for comparison; shm+encrypted, "
                "tcp+encrypted: with --kv-encryption; shm+unsealed, tcp+unsealed: without keys and "
                "tags, as no node has it.");
    schema_.Add("bytes", &options_.bytes,
                "Moved in each round and direction; more than the caches hold.",
                {.min = 4096, .max = int64_t{64} << 30, .unit = "bytes"});
    schema_.Add("streams", &streams_, "Numbers of transfers at a time to measure.");
    schema_.Add("directions", &directions_,
                "one: one process sends to the other; both: each sends to the other at once.");
    schema_.Add("rounds", &options_.rounds, "Rounds of which the median is printed.",
                {.min = 1, .max = 1000});
    schema_.Add("paced", &options_.paced,
                "Transfers beside a stand-in for a prefill, over each transport; 0 = none.",
                {.min = 0, .max = 10000});
    schema_.Add("ucx-perftest", &options_.ucx_perftest,
                "Also run UCX's own benchmark over TCP, where it is installed.");
    schema_.Add("json", &json_, "The figures as JSON.");
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    std::vector<std::string> positionals;
    if (auto code = ParseArguments(schema_, args, env, &positionals)) return *code;
    if (const absl::Status status = Check(); !status.ok()) {
      ReportError(schema_, status);
      return config::kExitUsage;
    }
    SetLogLevel(LogLevel::kWarning);  // connections come and go with every row
    options_.environment = env;
    const auto report = BenchKv(options_);
    if (!report.ok()) return ReportError(schema_, report.status());
    std::fputs((json_ ? FormatJson(*report) : FormatTable(*report)).c_str(), stdout);
    return config::kExitOk;
  }

 private:
  // Without one of these there is nothing to measure.
  absl::Status CheckListed() const {
    for (const auto& [flag, list, expected] :
         {std::tuple("--blocks", &blocks_, "numbers from 64 to --bytes"),
          std::tuple("--transports", &options_.transports, "one or more transports"),
          std::tuple("--streams", &streams_, "numbers from 1 to 1024"),
          std::tuple("--directions", &directions_, "one, both or one,both")}) {
      if (list->empty()) {
        return absl::InvalidArgumentError(absl::StrCat(flag, ": no value, expected ", expected));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Check() {
    RETURN_IF_ERROR(CheckListed());
    for (const std::string& text : blocks_) {
      int64_t& bytes = options_.block_bytes.emplace_back();
      if (!absl::SimpleAtoi(text, &bytes) || bytes < 64 || bytes > options_.bytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("--blocks: \"", text, "\", expected a number from 64 to --bytes"));
      }
    }
    for (const std::string& transport : options_.transports) {
      if (transport != "socket" && !IsKvBenchTransport(transport)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--transports: \"", transport, "\", expected socket, ", kKvBenchTransports));
      }
    }
    for (const std::string& text : streams_) {
      int32_t& streams = options_.streams.emplace_back();
      if (!absl::SimpleAtoi(text, &streams) || streams < 1 || streams > 1024) {
        return absl::InvalidArgumentError(
            absl::StrCat("--streams: \"", text, "\", expected a number from 1 to 1024"));
      }
    }
    for (const std::string& direction : directions_) {
      if (direction != "one" && direction != "both") {
        return absl::InvalidArgumentError(
            absl::StrCat("--directions: \"", direction, "\", expected one or both"));
      }
      options_.both_directions.push_back(direction == "both");
    }
    return absl::OkStatus();
  }

  KvBenchOptions Defaults() const {
    KvBenchOptions options;
    options.transports = {"mapped", "shm", "tcp", "socket"};
    return options;
  }

  config::Schema schema_;
  KvBenchOptions options_ = Defaults();
  std::vector<std::string> blocks_ = {"4096", "16384", "65536", "262144", "1048576", "4194304"};
  std::vector<std::string> streams_ = {"1"}, directions_ = {"one"};
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> NewBenchKvCommand() { return std::make_unique<BenchKvCommand>(); }

}  // namespace tandem::cli
