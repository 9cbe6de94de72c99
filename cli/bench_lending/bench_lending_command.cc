// `tandem bench lending`: implements NewBenchLendingCommand (cli/command_line/commands.h).
#include <algorithm>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/bench_lending/lending_bench.h"
#include "cli/bench_lending/lending_report.h"
#include "cli/cluster_load/cluster_bench_command.h"
#include "cli/command_line/parse.h"
#include "cli/files/named_file.h"
#include "cli/flags/result_flags.h"
#include "common/base/status_macros.h"
#include "common/runtime/stop_signal.h"
#include "kernels/api/attention.h"
#include "router/core/request_report.h"
#include "router/fleet/node.h"

namespace tandem::cli {
namespace {

class BenchLendingCommand final : public ClusterBenchCommand {
 public:
  BenchLendingCommand()
      : ClusterBenchCommand(
            "tandem bench lending",
            "Measures what lending KV memory is worth: context, slowdown, mixed loads.") {
    up_.decode = 3;
    up_.node.kv.blocks = 32;
    up_.node.kv.lend_fraction = 0.8;
    // Ports are free ones, and decode nodes compute their own prompts.
    RegisterUp({"prefill", "grpc", "http"});
    Register();
  }

 private:
  void Register() {
    const std::string load = "Load";
    schema_.Add("parts", &parts_,
                "What to measure, of contexts (the longest prompt of 1, 2, 4 and so on nodes), "
                "slowdown (one answer whose KV is partly lent, beside one node with all of it: a "
                "gap for each token; tokens that came together share the gap before them), "
                "mix (loads with some long requests, on nodes that lend and on nodes that do not), "
                "skew (long requests fill all nodes but some, and short ones come at once: tokens "
                "a second until these are answered).",
                {.group = load});
    schema_.Add("rounds", &options_.rounds, "Runs of each, alternately; not for contexts.",
                {.min = 1, .max = 1000, .group = load});
    schema_.Add("context-pools", &options_.context_pools,
                "Slowdown: where the answer's context ends, in pools of one node.",
                {.min = 1.0, .max = 64.0, .group = load});
    schema_.Add("slowdown-tokens", &options_.slowdown_tokens, "Slowdown: tokens of the answer.",
                {.min = 2, .max = router::kTimingGapsMax + 1, .unit = "tokens", .group = load});
    schema_.Add("creditor-blocks", &options_.creditor_blocks,
                "Slowdown: KV blocks of a prefill node that is then the only creditor of a single "
                "decode node; 0 = the nodes of --decode lend to each other.",
                {.min = 0, .max = 1 << 30, .unit = "blocks", .group = "Load"});
    schema_.Add("mix-requests", &options_.mix_requests, "Mix: requests of a run.",
                {.min = 1, .max = 1'000'000, .unit = "requests", .group = load});
    schema_.Add("mix-concurrency", &options_.mix_concurrency, "Mix: clients.",
                {.min = 1, .max = 10'000, .unit = "requests", .group = load});
    schema_.Add("long-shares", &long_shares_,
                "Mix: shares of long requests. A long one takes 0.5 to 0.9 pools of one node, a "
                "short one up to an eighth.",
                {.group = load});
    schema_.Add("skew-requests", &options_.skew_requests,
                "Skew: short requests (6 tokens, then 10 of answer) for each node without a long "
                "one, which fills a pool, a twenty-fifth part of it with its answer.",
                {.min = 1, .max = 10'000, .unit = "requests", .group = load});
    schema_.Add("seed", &seed_, "Decides prompts and lengths, equal on both kinds of nodes.",
                {.min = 0, .group = load});
    RegisterResultFiles(schema_, results_);
    RegisterProgress(schema_, results_);
  }

  bool Measures(const char* part) const {
    return std::find(parts_.begin(), parts_.end(), part) != parts_.end();
  }

  // What all nodes hold for one sequence, in pools of one: nodes lend whole partitions of
  // attention, and routers count on a part of that.
  double PoolsForOne() const {
    const int64_t block_tokens = up_.node.kv.block_tokens;
    const auto pool = static_cast<double>(up_.node.kv.blocks * block_tokens);
    const bool one = options_.creditor_blocks > 0;
    const auto of = one ? static_cast<double>(options_.creditor_blocks * block_tokens) : pool;
    const auto units =
        static_cast<int64_t>(up_.node.kv.lend_fraction * of / kernels::kPartitionTokens);
    const int64_t lent = (one ? 1 : up_.decode - 1) * units * kernels::kPartitionTokens;
    return 1 + static_cast<double>(lent * router::kBorrowedShareMax / 100) / pool;
  }

  absl::Status Plan() override {
    for (const std::string& part : parts_) {
      if (part != "contexts" && part != "slowdown" && part != "mix" && part != "skew") {
        return absl::InvalidArgumentError(
            absl::StrCat("parts: \"", part, "\", expected contexts, slowdown, mix or skew"));
      }
    }
    if (up_.node.kv.blocks == 0) {
      return absl::InvalidArgumentError(
          "kv-blocks: 0, expected the size of one node's pool: pools must be small enough to be "
          "outgrown");
    }
    if (up_.decode < 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("decode: ", up_.decode,
                       ", expected at least 2: a single node has no other node to borrow from"));
    }
    const double pools = PoolsForOne();
    if (Measures("slowdown") && options_.context_pools > pools) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "context-pools: %g, expected at most %.2f: what %d nodes hold for one sequence with "
          "lend-fraction %g",
          options_.context_pools, pools, options_.creditor_blocks > 0 ? 2 : up_.decode,
          up_.node.kv.lend_fraction));
    }
    options_.long_shares.clear();
    for (const std::string& text : long_shares_) {
      double share = 0;
      if (!absl::SimpleAtod(text, &share) || !(share >= 0 && share <= 1)) {
        return absl::InvalidArgumentError(
            absl::StrCat("long-shares: \"", text, "\", expected numbers from 0 to 1"));
      }
      options_.long_shares.push_back(share);
    }
    options_.up = up_;
    options_.seed = static_cast<uint64_t>(seed_);
    if (Measures("skew") && options_.pool_tokens() < 100) {
      return absl::InvalidArgumentError(
          absl::StrCat("parts: skew needs pools of at least 100 "
                       "tokens, these have ",
                       options_.pool_tokens()));
    }
    if (Measures("slowdown") && options_.slowdown_tokens >= options_.pool_tokens()) {
      return absl::InvalidArgumentError(absl::StrCat("slowdown-tokens: ", options_.slowdown_tokens,
                                                     ", expected fewer than the ",
                                                     options_.pool_tokens(), " of one pool"));
    }
    return CheckOutputs(results_.files());
  }

  absl::Status Measure(const Environment& env) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<StopSignal> stop, StopSignal::Create());
    LendingBench bench(
        options_, env, [&](absl::Duration wait) { return stop->Wait(wait) != 0; },
        [this](const std::string& text) {
          if (results_.progress) absl::FPrintF(stderr, "measuring %s\n", text);
        });
    LendingReport report{.settings = MakeSettings(), .pool_tokens = options_.pool_tokens()};
    if (Measures("contexts")) {
      ASSIGN_OR_RETURN(report.contexts, bench.Contexts());
    }
    if (Measures("slowdown")) {
      ASSIGN_OR_RETURN(report.slowdown, bench.Slowdown());
    }
    if (Measures("mix")) {
      ASSIGN_OR_RETURN(report.mixes, bench.Mixes());
    }
    if (Measures("skew")) {
      ASSIGN_OR_RETURN(report.skews, bench.Skews());
    }
    return PublishResult(
        results_, FormatLendingTable(report), [&] { return FormatLendingJson(report); },
        [&] { return FormatLendingHtml(report); });
  }

  Settings MakeSettings() const {
    Settings settings = {
        {"model", ModelName()},
        {"nodes",
         absl::StrFormat("%d, with pools of %d tokens, of which they lend %g %%", up_.decode,
                         options_.pool_tokens(), 100 * up_.node.kv.lend_fraction)},
        {"rounds", absl::StrCat(options_.rounds)},
        {"seed", absl::StrCat(seed_)}};
    if (options_.creditor_blocks > 0)
      settings.push_back(
          {"creditor",
           absl::StrCat("of slowdown: one, with a pool of ",
                        options_.creditor_blocks * up_.node.kv.block_tokens, " tokens")});
    return settings;
  }

  LendingBenchOptions options_;
  std::vector<std::string> parts_ = {"contexts", "slowdown", "mix", "skew"};
  std::vector<std::string> long_shares_ = {"0.02", "0.1", "0.3"};
  int64_t seed_ = 1;
};

}  // namespace

std::unique_ptr<Command> NewBenchLendingCommand() {
  return std::make_unique<BenchLendingCommand>();
}

}  // namespace tandem::cli
