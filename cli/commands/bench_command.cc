// `tandem bench`: implements NewBenchCommand (cli/command_line/commands.h).
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/bench_report.h"
#include "cli/bench/engine_bench.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/files/named_file.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "common/model/model_path.h"

namespace tandem::cli {
namespace {

using engine::BenchReport;
using engine::BenchResult;

// Draws the roofline: FLOPs per second over FLOPs per byte, both logarithmic.
class RooflinePicture {
 public:
  explicit RooflinePicture(const BenchReport& report) : report_(report) {}

  std::string Draw() const {
    std::string svg = absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
        "<text x=\"%d\" y=\"18\" font-size=\"14\">%s</text>\n",
        kWidth, kHeight, kLeft, report_.numerics_id);
    const double peak = report_.product_flops, ridge = peak / report_.roofs.bytes_per_second;
    absl::StrAppendFormat(
        &svg,
        "<polyline fill=\"none\" stroke=\"black\" points=\"%.1f,%.1f %.1f,%.1f %.1f,%.1f\"/>\n",
        X(kLeast), Y(kLeast * report_.roofs.bytes_per_second), X(ridge), Y(peak), X(kMost),
        Y(peak));
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\">%.0f GFLOP/s</text>\n", X(ridge) + 8,
                          Y(peak) - 6, peak / 1e9);
    for (const BenchResult& result : report_.results) {
      const double intensity = result.flops_per_token / result.bytes_per_token;
      const double rate = result.flops_per_token * result.tokens_per_second;
      absl::StrAppendFormat(&svg,
                            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>"
                            "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                            X(intensity), Y(rate), result.shape.decode ? "#1f77b4" : "#d62728",
                            X(intensity) + 5, Y(rate) + 12, ShapeName(result.shape));
    }
    absl::StrAppendFormat(&svg, "<text x=\"%d\" y=\"%d\">FLOPs for each byte read</text>\n</svg>\n",
                          kWidth / 2 - 60, kHeight - 8);
    return svg;
  }

 private:
  static constexpr int kWidth = 760, kHeight = 460, kLeft = 30;
  static constexpr double kLeast = 0.5, kMost = 1000;  // FLOPs a byte
  static constexpr double kDecades = 3.5;              // of FLOPs a second, below the peak

  static double X(double intensity) {
    const double at = std::log(std::clamp(intensity, kLeast, kMost) / kLeast);
    return kLeft + at / std::log(kMost / kLeast) * (kWidth - 2 * kLeft - 80);
  }
  double Y(double rate) const {
    const double below = std::log10(report_.product_flops / std::max(rate, 1.0));
    return 50 + std::min(below, kDecades) / kDecades * (kHeight - 100);
  }

  const BenchReport& report_;
};

class BenchCommand final : public Command {
 public:
  BenchCommand()
      : schema_("tandem bench",
                "Measures the engine, or its CPU kernels one by one, beside the machine's roofs.") {
    schema_.LeaveEnvironmentOf("tandem bench chats");
    schema_.LeaveEnvironmentOf("tandem bench kv");
    schema_.LeaveEnvironmentOf("tandem bench lending");
    schema_.LeaveEnvironmentOf("tandem bench modes");
    schema_.LeaveEnvironmentOf("tandem bench serve");
    schema_.LeaveEnvironmentOf("tandem bench trace");
    schema_.Add("model", &model_,
                "smollm2, gemma3, hf:ORG/NAME, a .gguf file or a checkpoint folder.");
    schema_.Add("device", &device_,
                "What `bench engine` measures: the processor, or the first CUDA device.",
                {.choices = {"cpu", "cuda"}});
    schema_.Add("threads", &options_.engine.threads, "Compute threads; 0 = one per core.",
                {.min = 0, .max = 1024});
    schema_.Add("isa", &options_.engine.isa, "Instruction-set class of the CPU kernels.",
                {.choices = {"auto", "amx", "avx512bf16", "avx512", "avx2", "ref"}});
    schema_.Add("numerics", &options_.engine.numerics, "See tandem-decode-node.",
                {.choices = {"auto", "portable"}});
    schema_.Add("weights", &options_.engine.weights, "Type that weights are kept in.",
                {.choices = {"auto", "bf16", "int8", "int4", "as-stored", "fp8", "fp8a16", "f32"}});
    schema_.Add("weight-cache", &options_.engine.weight_cache.where,
                "See tandem-decode-node; auto is beside the model only.");
    schema_.Add("kv-type", &options_.engine.kv_type, "Type of cached keys and values.",
                {.choices = {"bf16", "int8", "fp8", "f32"}});
    schema_.Add("gemm-tiles", &gemm_tiles_, "With device cuda: see tandem-decode-node.");
    schema_.Add("prefill", &prefill_, "Prompt lengths to measure.", {.unit = "tokens"});
    schema_.Add("decode", &decode_, "Batch sizes to measure.", {.unit = "sequences"});
    schema_.Add("contexts", &contexts_, "Contexts to measure each batch size at.",
                {.unit = "tokens"});
    schema_.Add("chunk", &options_.chunk_tokens, "Rows of a prefill step.",
                {.min = 1, .max = 65536, .unit = "tokens"});
    schema_.Add("time", &options_.time_each, "About how long to measure each shape.",
                {.min = absl::ZeroDuration(), .max = absl::Hours(1)});
    schema_.Add("json", &json_, "The figures as JSON.");
    schema_.Add("svg", &svg_,
                "A file to draw the roofline into; - = standard output, without the table.");
    schema_.AllowPositionals("engine|kernels", 1);
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    std::vector<std::string> positionals;
    if (auto code = ParseArguments(schema_, args, env, &positionals)) return *code;
    const bool kernels = positionals == std::vector<std::string>{"kernels"};
    const bool engine = positionals == std::vector<std::string>{"engine"};
    absl::Status status = engine || kernels ? PlanShapes(kernels)
                                            : absl::InvalidArgumentError(
                                                  "expected what to measure: engine, kernels, "
                                                  "chats, kv, lending, modes, serve or trace");
    if (!status.ok()) {
      ReportError(schema_, status);
      return config::kExitUsage;
    }
    if (device_ == "cuda") UseDevice(env);
    status = kernels ? MeasureKernels(env) : Measure(env);
    return status.ok() ? config::kExitOk : ReportError(schema_, status);
  }

 private:
  static absl::StatusOr<std::vector<int64_t>> Numbers(const std::string& flag,
                                                      const std::vector<std::string>& texts) {
    std::vector<int64_t> numbers;
    for (const std::string& text : texts) {
      if (!absl::SimpleAtoi(text, &numbers.emplace_back()) || numbers.back() < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", flag, ": \"", text, "\", expected a number from 1"));
      }
    }
    return numbers;
  }

  absl::Status PlanShapes(bool kernels) {
    if (kernels && device_ == "cuda") {
      return absl::InvalidArgumentError("--device=cuda: only `bench engine` measures devices");
    }
    ASSIGN_OR_RETURN(const auto prefill, Numbers("prefill", prefill_));
    ASSIGN_OR_RETURN(const auto decode, Numbers("decode", decode_));
    ASSIGN_OR_RETURN(const auto contexts, Numbers("contexts", contexts_));
    for (int64_t tokens : prefill) options_.shapes.push_back({.tokens = tokens});
    for (int64_t context : contexts) {
      for (int64_t sequences : decode) {
        options_.shapes.push_back({.decode = true, .sequences = sequences, .context = context});
      }
    }
    return absl::OkStatus();
  }

  // Puts the first CUDA device in the processor's place, with the flags that both know.
  void UseDevice(const Environment& env) {
    engine::DeviceEngineOptions& device = options_.device.emplace();
    device.threads = options_.engine.threads;
    device.weights = options_.engine.weights;
    device.kv_type = options_.engine.kv_type;
    device.mirror_written_kv = false;
    device.gemm_tiles.choice = gemm_tiles_;
    device.gemm_tiles.user_folder = model::UserWeightsFolder(env);
  }

  absl::Status MeasureKernels(const Environment& env) {
    if (!svg_.empty())
      return absl::InvalidArgumentError("--svg: only `bench engine` draws a picture");
    ASSIGN_OR_RETURN(const std::string path, model::ResolveModelPath(model_, env));
    ASSIGN_OR_RETURN(const auto checkpoint, model::Checkpoint::Open(path));
    ASSIGN_OR_RETURN(const engine::KernelReport report,
                     engine::BenchKernels(*checkpoint, options_.engine, options_.time_each));
    std::fputs((json_ ? FormatJson(report) : FormatTable(report)).c_str(), stdout);
    return absl::OkStatus();
  }

  absl::Status Measure(const Environment& env) {
    ASSIGN_OR_RETURN(const std::string path, model::ResolveModelPath(model_, env));
    ASSIGN_OR_RETURN(const auto checkpoint, model::Checkpoint::Open(path));
    ASSIGN_OR_RETURN(const BenchReport report, engine::BenchEngine(*checkpoint, options_));
    const NamedFile svg = {"--svg", svg_};
    PrintReport(json_ ? FormatJson(report) : FormatTable(report), {svg});
    return svg_.empty() ? absl::OkStatus() : WriteOutput(svg, RooflinePicture(report).Draw());
  }

  config::Schema schema_;
  std::string model_ = "smollm2";
  engine::BenchOptions options_;
  std::string device_ = "cpu", gemm_tiles_ = "auto";
  std::vector<std::string> prefill_ = {"128", "512", "2048"};
  std::vector<std::string> decode_ = {"1", "4", "8", "16", "32", "64"};
  std::vector<std::string> contexts_ = {"512", "2048"};
  bool json_ = false;
  std::string svg_;
};

}  // namespace

std::unique_ptr<Command> NewBenchCommand() { return std::make_unique<BenchCommand>(); }

}  // namespace tandem::cli
