// `tandem eval`: implements NewEvalCommand (cli/command_line/commands.h).
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/evaluation.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/files/named_file.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "common/model/model_path.h"
#include "common/model/tokenizer/tokenizer.h"

namespace tandem::cli {
namespace {

using engine::EvaluationReport;
using engine::EvaluationResult;

std::string FormatTable(const EvaluationReport& report) {
  std::string text = absl::StrFormat(
      "%d positions, %d greedy continuations, against fp32 weights and cache\n\n%-8s %-6s %10s "
      "%11s %10s %9s %9s %7s\n",
      report.positions, report.greedy_prompts, "WEIGHTS", "KV", "MBYTES", "PERPLEXITY", "MEAN KL",
      "TOP-1", "GREEDY", "EQUAL");
  const auto add = [&](const EvaluationResult& result) {
    absl::StrAppendFormat(&text, "%-8s %-6s %10.1f %11.4f %10.3g %8.2f%% %8.2f%% %7d\n",
                          result.weights, result.kv_type, result.weight_bytes / 1e6,
                          result.perplexity, result.kl_mean, 100 * result.top_share,
                          100 * result.greedy_share, result.greedy_equal);
  };
  add(report.baseline);
  for (const EvaluationResult& result : report.results) add(result);
  return text;
}

std::string FormatJson(const EvaluationReport& report) {
  std::string text = absl::StrFormat("{\"positions\": %d, \"greedy_prompts\": %d, \"results\": [",
                                     report.positions, report.greedy_prompts);
  const auto add = [&](const EvaluationResult& result, const char* separator) {
    absl::StrAppendFormat(&text,
                          "%s\n  {\"weights\": \"%s\", \"kv_type\": \"%s\", \"weight_bytes\": %d, "
                          "\"perplexity\": %.8g, \"kl_mean\": %.6g, \"top_share\": %.6g, "
                          "\"greedy_share\": %.6g, \"greedy_equal\": %d}",
                          separator, result.weights, result.kv_type, result.weight_bytes,
                          result.perplexity, result.kl_mean, result.top_share, result.greedy_share,
                          result.greedy_equal);
  };
  add(report.baseline, "");
  for (const EvaluationResult& result : report.results) add(result, ",");
  return text + "\n]}\n";
}

class EvalCommand final : public Command {
 public:
  EvalCommand()
      : schema_("tandem eval", "Measures on a text how much accuracy weight and KV types cost.") {
    schema_.Add("model", &model_,
                "smollm2, gemma3, hf:ORG/NAME, a .gguf file or a checkpoint folder.");
    schema_.Add("text", &text_, "A file of UTF-8 text to measure on; - = standard input.");
    schema_.Add("weights", &options_.weights,
                "Types of weights to measure: bf16, int8, int4, as-stored, f32.");
    schema_.Add("kv-type", &options_.kv_types, "Types of cached keys and values: bf16, int8, f32.");
    schema_.Add("positions", &options_.positions, "Positions to score at most.",
                {.min = 1, .max = 10000000, .unit = "tokens"});
    schema_.Add("window", &options_.window_tokens, "Tokens of text in one window.",
                {.min = 2, .max = 2048, .unit = "tokens"});
    schema_.Add("greedy", &options_.greedy_prompts, "Window beginnings to continue greedily.",
                {.min = 0, .max = 10000});
    schema_.Add("greedy-tokens", &options_.greedy_tokens, "Length of each continuation.",
                {.min = 0, .max = 1024, .unit = "tokens"});
    schema_.Add("threads", &options_.engine.threads, "Compute threads; 0 = one per core.",
                {.min = 0, .max = 1024});
    schema_.Add("isa", &options_.engine.isa, "Instruction-set class of the CPU kernels.",
                {.choices = {"auto", "amx", "avx512bf16", "avx512", "avx2", "ref"}});
    schema_.Add("numerics", &options_.engine.numerics, "See tandem-decode-node.",
                {.choices = {"auto", "portable"}});
    schema_.Add("json", &json_, "The figures as JSON.");
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    std::vector<std::string> positionals;
    if (auto code = ParseArguments(schema_, args, env, &positionals)) return *code;
    if (text_.empty()) {
      ReportError(schema_, absl::InvalidArgumentError("expected --text FILE"));
      return config::kExitUsage;
    }
    const absl::Status status = Measure(env);
    return status.ok() ? config::kExitOk : ReportError(schema_, status);
  }

 private:
  absl::Status Measure(const Environment& env) {
    ASSIGN_OR_RETURN(const std::string text, ReadInput({"--text", text_}));
    ASSIGN_OR_RETURN(const std::string path, model::ResolveModelPath(model_, env));
    ASSIGN_OR_RETURN(const auto checkpoint, model::Checkpoint::Open(path));
    ASSIGN_OR_RETURN(const auto tokenizer, model::Tokenizer::Create(checkpoint->tokenizer()));
    const std::vector<TokenId> tokens =
        tokenizer->Encode(text, {.add_special_tokens = false, .parse_special = false});
    ASSIGN_OR_RETURN(const EvaluationReport report,
                     engine::Evaluate(*checkpoint, tokens, tokenizer->prefix_ids(), options_));
    std::fputs((json_ ? FormatJson(report) : FormatTable(report)).c_str(), stdout);
    return absl::OkStatus();
  }

  config::Schema schema_;
  std::string model_ = "smollm2";
  std::string text_;
  engine::EvaluationOptions options_ = {.weights = {"bf16", "int8", "int4", "as-stored"},
                                        .kv_types = {"bf16"}};
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> NewEvalCommand() { return std::make_unique<EvalCommand>(); }

}  // namespace tandem::cli
