// `tandem bench kv`: implements NewBenchKvCommand (cli/command_line/commands.h).
#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/bench/kv_bench.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
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
                "UCX over TCP.");
    schema_.Add("bytes", &options_.bytes, "Moved in each round; more than the caches hold.",
                {.min = 4096, .max = int64_t{64} << 30, .unit = "bytes"});
    schema_.Add("streams", &options_.streams, "Transfers at a time.", {.min = 1, .max = 1024});
    schema_.Add("rounds", &options_.rounds, "Rounds of which the median is printed.",
                {.min = 1, .max = 1000});
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
    const auto results = BenchKv(options_);
    if (!results.ok()) return ReportError(schema_, results.status());
    std::fputs((json_ ? FormatJson(*results) : FormatTable(*results)).c_str(), stdout);
    return config::kExitOk;
  }

 private:
  absl::Status Check() {
    for (const std::string& text : blocks_) {
      int64_t& bytes = options_.block_bytes.emplace_back();
      if (!absl::SimpleAtoi(text, &bytes) || bytes < 64 || bytes > options_.bytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("--blocks: \"", text, "\", expected a number from 64 to --bytes"));
      }
    }
    for (const std::string& transport : options_.transports) {
      if (transport != "mapped" && transport != "shm" && transport != "tcp") {
        return absl::InvalidArgumentError(
            absl::StrCat("--transports: \"", transport, "\", expected mapped, shm or tcp"));
      }
    }
    return absl::OkStatus();
  }

  KvBenchOptions Defaults() const {
    KvBenchOptions options;
    options.transports = {"mapped", "shm", "tcp"};
    return options;
  }

  config::Schema schema_;
  KvBenchOptions options_ = Defaults();
  std::vector<std::string> blocks_ = {"4096", "16384", "65536", "262144", "1048576", "4194304"};
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> NewBenchKvCommand() { return std::make_unique<BenchKvCommand>(); }

}  // namespace tandem::cli
