#include "cli/bench/engine_bench.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cli/bench/device_roofs.h"
#include "cli/bench/weight_bytes.h"
#include "common/base/status_macros.h"
#include "common/engine/compute_pool.h"
#include "common/engine/cpu/cpu_choices.h"
#include "common/runtime/processors.h"

namespace tandem::engine {
namespace {

constexpr int kRepeatsMin = 3;
// Rows of a step that fills a device's cache.
constexpr int64_t kContextRows = 8192;

// The operations and bytes of a shape, computed from the architecture.
class CostModel {
 public:
  CostModel(const model::Checkpoint& checkpoint, const EngineSpec& spec)
      : config_(checkpoint.config()),
        kv_token_bytes_(static_cast<double>(spec.layout.layer_block_bytes) /
                        spec.layout.block_tokens),
        weight_bytes_(WeightBytesOf(checkpoint, spec.numerics_id)) {
    const model::ModelConfig& config = config_;
    const double q = 1.0 * config.num_heads * config.head_dim;
    const double kv = 1.0 * config.num_kv_heads * config.head_dim;
    layer_weights_ = config.hidden_size * (2 * q + 2 * kv + 3.0 * config.ffn_size);
    output_weights_ = 1.0 * config.hidden_size * config.vocab_size;
  }

  // Tokens of KV that a row at `position` attends to, summed over layers.
  double Visible(int64_t position) const {
    double sum = 0;
    for (const model::LayerConfig& layer : config_.layers) {
      const auto seen = static_cast<double>(position + 1);
      sum += layer.sliding_window > 0 ? std::min<double>(seen, layer.sliding_window) : seen;
    }
    return sum;
  }

  // Operations a second of products with the engine's weights.
  double ProductFlops(const MachineRoofs& roofs) const {
    return weight_bytes_.int8_products ? roofs.int8_flops : roofs.flops;
  }

  // Fills everything in `result` except measurements. The run reads the weights `steps` times.
  void Fill(const MachineRoofs& roofs, int64_t chunk_tokens, BenchResult* result) const {
    const BenchShape& shape = result->shape;
    const double tokens = static_cast<double>(shape.decode ? shape.sequences : shape.tokens);
    const double outputs = shape.decode ? tokens : 1;
    double visible = 0, kv_bytes = 0, steps = 1;
    if (shape.decode) {
      visible = tokens * Visible(shape.context);
      kv_bytes = visible * kv_token_bytes_;
    } else {
      for (int64_t i = 0; i < shape.tokens; ++i) visible += Visible(i);
      steps = static_cast<double>((shape.tokens + chunk_tokens - 1) / chunk_tokens);
      kv_bytes = steps * Visible(shape.tokens / 2) * kv_token_bytes_;
    }
    const double layers = config_.num_layers;
    const double weight_bytes = steps * weight_bytes_.layers + weight_bytes_.output;
    const double product_flops = 2 * (tokens * layers * layer_weights_ + outputs * output_weights_);
    const double attention_flops = 4 * visible * config_.num_heads * config_.head_dim;
    const double flops = product_flops + attention_flops;
    const double arithmetic_s =
        roofs.flops > 0 ? product_flops / ProductFlops(roofs) + attention_flops / roofs.flops : 0;
    const double memory_s = (weight_bytes + kv_bytes) / roofs.bytes_per_second;
    result->flops_per_token = flops / tokens;
    result->bytes_per_token = (weight_bytes + kv_bytes) / tokens;
    result->roof_tokens_per_second = tokens / std::max(arithmetic_s, memory_s);
    result->bound = arithmetic_s > memory_s   ? "FLOPs"
                    : weight_bytes > kv_bytes ? "weight bytes"
                                              : "KV bytes";
  }

 private:
  const model::ModelConfig& config_;
  const double kv_token_bytes_;
  const WeightBytes weight_bytes_;
  double layer_weights_ = 0, output_weights_ = 0;
};

// Sequences that share no block, each `length` tokens long.
class BenchBatch {
 public:
  BenchBatch(const EngineSpec& spec, int64_t sequences, int64_t length) : length_(length) {
    sampling_.temperature = 0;
    const int64_t blocks = spec.layout.BlocksFor(length);
    for (int64_t s = 0; s < sequences; ++s) {
      std::vector<TokenId>& tokens = tokens_.emplace_back();
      for (int64_t i = 0; i < length; ++i) {
        tokens.push_back(static_cast<TokenId>((i * 7919 + s * 104729) % spec.vocab_size));
      }
      std::vector<BlockId>& table = blocks_.emplace_back();
      for (int64_t b = 0; b < blocks; ++b) {
        table.emplace_back(static_cast<int32_t>(s * blocks + b));
      }
    }
  }

  // Rows [begin, end) of every sequence; those that reach the end sample.
  absl::Status Step(Engine* engine, int64_t begin, int64_t end) const {
    std::vector<SequenceSlice> slices;
    for (size_t s = 0; s < tokens_.size(); ++s) {
      SequenceSlice& slice = slices.emplace_back();
      slice.tokens = tokens_[s];
      slice.num_computed = begin;
      slice.num_new = end - begin;
      slice.blocks = blocks_[s];
      slice.sample = end == length_;
      slice.sampling = &sampling_;
    }
    return engine->Step(slices, [](int) {}).status();
  }

 private:
  const int64_t length_;
  request::SamplingParams sampling_;
  std::vector<std::vector<TokenId>> tokens_;
  std::vector<std::vector<BlockId>> blocks_;
};

// One pass over the shape.
absl::Status RunOnce(Engine* engine, const BenchBatch& batch, const BenchShape& shape,
                     int64_t chunk_tokens) {
  if (shape.decode) return batch.Step(engine, shape.context, shape.context + 1);
  for (int64_t begin = 0; begin < shape.tokens; begin += chunk_tokens) {
    RETURN_IF_ERROR(batch.Step(engine, begin, std::min(shape.tokens, begin + chunk_tokens)));
  }
  return absl::OkStatus();
}

// Gives a device's cache contents; FillCache does so for the host's.
absl::Status ComputeContext(Engine* engine, const BenchBatch& batch, const BenchShape& shape) {
  const int64_t chunk = std::max<int64_t>(1, kContextRows / shape.sequences);
  for (int64_t begin = 0; begin < shape.context; begin += chunk) {
    RETURN_IF_ERROR(batch.Step(engine, begin, std::min(shape.context, begin + chunk)));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> MeasureSeconds(Engine* engine, const BenchOptions& options,
                                      const BenchShape& shape) {
  const BenchBatch batch(engine->spec(), shape.decode ? shape.sequences : 1,
                         shape.decode ? shape.context + 1 : shape.tokens);
  if (shape.decode && options.device.has_value()) {
    RETURN_IF_ERROR(ComputeContext(engine, batch, shape));
  }
  RETURN_IF_ERROR(RunOnce(engine, batch, shape, options.chunk_tokens));
  std::vector<double> times;
  double total = 0;
  while (times.size() < kRepeatsMin || total < absl::ToDoubleSeconds(options.time_each)) {
    absl::Status status;
    times.push_back(
        SecondsOf([&] { status = RunOnce(engine, batch, shape, options.chunk_tokens); }));
    RETURN_IF_ERROR(status);
    total += times.back();
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// Fills every block with finite values and its own memory pages, as a prompt would.
void FillCache(Engine* engine, int64_t num_blocks) {
  for (int layer = 0; layer < engine->spec().layout.num_layers; ++layer) {
    for (int64_t b = 0; b < num_blocks; ++b) {
      const auto block = engine->arena().Block(layer, BlockId(static_cast<int32_t>(b)));
      std::memset(block.data(), 0x3c, block.size());
    }
  }
}

absl::StatusOr<MachineRoofs> MeasureRoofsOf(const model::Checkpoint& checkpoint,
                                            const BenchOptions& options) {
  if (options.device.has_value()) {
    ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Device> device, kernels::OpenCudaDevice(0));
    return MeasureDeviceRoofs(*device);
  }
  ComputePool pool(options.engine.threads == 0 ? DefaultComputeThreads(ReadProcessors())
                                               : options.engine.threads);
  ASSIGN_OR_RETURN(const CpuChoices choices, ChooseForCpu(checkpoint.config(), options.engine));
  return MeasureRoofs(*choices.backend, pool);
}

}  // namespace

absl::StatusOr<BenchReport> BenchEngine(const model::Checkpoint& checkpoint,
                                        const BenchOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                   options.device.has_value() ? NewCudaEngine(checkpoint, *options.device)
                                              : NewCpuEngine(checkpoint, options.engine));
  const EngineSpec& spec = engine->spec();
  int64_t num_blocks = 1;
  for (const BenchShape& shape : options.shapes) {
    const int64_t length = shape.decode ? shape.context + 1 : shape.tokens;
    if (length < 1 || length > spec.context_tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a sequence of ", length, " tokens, expected 1 to the model's ", spec.context_tokens));
    }
    num_blocks =
        std::max(num_blocks, spec.layout.BlocksFor(length) * (shape.decode ? shape.sequences : 1));
  }
  RETURN_IF_ERROR(engine->AllocateKv(num_blocks));
  if (!options.device.has_value()) FillCache(engine.get(), num_blocks);
  BenchReport report;
  report.numerics_id = spec.numerics_id;
  ASSIGN_OR_RETURN(report.roofs, MeasureRoofsOf(checkpoint, options));
  const CostModel costs(checkpoint, spec);
  report.product_flops = costs.ProductFlops(report.roofs);
  for (const BenchShape& shape : options.shapes) {
    BenchResult& result = report.results.emplace_back();
    result.shape = shape;
    ASSIGN_OR_RETURN(const double seconds, MeasureSeconds(engine.get(), options, shape));
    result.tokens_per_second =
        static_cast<double>(shape.decode ? shape.sequences : shape.tokens) / seconds;
    costs.Fill(report.roofs, options.chunk_tokens, &result);
  }
  return report;
}

}  // namespace tandem::engine
