#include "common/engine/device/device_engine.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/engine/compute_pool.h"
#include "common/engine/device/device_forward_pass.h"
#include "common/engine/device/device_kv.h"
#include "common/engine/device/device_kv_bytes.h"
#include "common/engine/device/device_lent_attention.h"
#include "common/engine/device/device_partial_attention.h"
#include "common/engine/device/device_sampler.h"
#include "common/engine/profile_step.h"
#include "common/engine/rope_table.h"
#include "common/engine/slice_check.h"
#include "common/runtime/processors.h"
#include "common/telemetry/log.h"
#include "common/telemetry/start_log.h"
#include "kernels/api/attention.h"
#include "kernels/api/device_attention.h"
#include "kernels/api/device_ops.h"
#include "kernels/api/device_sampling.h"

namespace tandem::engine {
namespace {

using kernels::DeviceBuffer;

// Steps with more rows than this gain nothing from a graph: kernels run longer than launches take.
constexpr int32_t kGraphRowsMax = 256;
// Prompt rows scored at a time: the logits of a whole prompt would be larger than the model.
constexpr int32_t kScoredRows = DeviceSampler::kHostRows;
// Block tables that are reserved for sequences of full length.
constexpr int64_t kFullTablesReserved = 16;

// Row counts that share a graph: 1, 2, 4, 8, then multiples of eight.
int32_t BucketOf(int32_t rows) {
  if (rows > 8) return (rows + 7) / 8 * 8;
  int32_t bucket = 1;
  while (bucket < rows) bucket *= 2;
  return bucket;
}

absl::Status CheckOptions(const model::ModelConfig& config, const DeviceEngineOptions& options) {
  const int block = options.block_tokens;
  if (block < 16 || kernels::kPartitionTokens % block != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_tokens is ", block, ", expected 16, 32, 64, 128 or 256"));
  }
  if (options.context_tokens < 0 || options.context_tokens > config.context_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "context_tokens is ", options.context_tokens, " (--context-tokens), expected at most ",
        config.context_tokens, ", the model's context, or 0 for it"));
  }
  RETURN_IF_ERROR(CheckRopeTables(
      config, options.context_tokens == 0 ? config.context_tokens : options.context_tokens));
  if (!(options.memory_fraction > 0 && options.memory_fraction <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_fraction is ", options.memory_fraction, ", expected (0, 1]"));
  }
  if (!kernels::IsDeviceHeadDim(config.head_dim)) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's heads have ", config.head_dim,
                                                   " dimensions, expected 16, 32, 64, 128 or 256"));
  }
  if (options.sample_on_device && config.vocab_size > kernels::kDeviceVocabularyMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint's vocabulary has ", config.vocab_size,
                     " tokens, devices choose among ", kernels::kDeviceVocabularyMax, " at most"));
  }
  for (const int32_t size : {config.hidden_size, config.ffn_size}) {
    if (size % 8 != 0) {
      return absl::InvalidArgumentError(absl::StrCat("the checkpoint has a layer of ", size,
                                                     " features, expected multiples of 8"));
    }
  }
  return absl::OkStatus();
}

class DeviceEngine final : public Engine {
 public:
  struct Parts {
    EngineSpec spec;
    model::ModelConfig config;
    kernels::KvShape kv;
    DeviceEngineOptions options;
    std::unique_ptr<kernels::Device> device;
    std::unique_ptr<kernels::DeviceStream> stream;
    std::unique_ptr<kernels::DeviceEvent> step_done;
    std::vector<std::unique_ptr<kernels::DeviceEvent>> layer_written;  // [num_layers]
    std::unique_ptr<ComputePool> pool;
    std::unique_ptr<DeviceWeights> weights;
    GemmTiles gemm_tiles;

    // Narrow attention items that the device computes at a time.
    int32_t AttentionItems() const {
      const kernels::DeviceProperties& properties = device->properties();
      return properties.multiprocessors *
             device->ops().narrow_items_at_once(kv, properties.shared_bytes_per_multiprocessor);
    }
    DevicePartials::Options Partials() const {
      return {.num_heads = config.num_heads,
              .scale = config.attention_scale,
              .kv = kv,
              .layer_block_bytes = spec.layout.layer_block_bytes,
              .items_wanted = std::max(1, AttentionItems() / config.num_kv_heads)};
    }
    int32_t RecordsMax() const {
      return kernels::AttentionRecordsMax(
          {.items_wanted = AttentionItems() / config.num_kv_heads,
           .context_tokens = spec.context_tokens,
           .kv_token_bytes = spec.layout.full_bytes() / kv.block_tokens,
           .memory_bytes = device->properties().memory_bytes});
    }
  };
  explicit DeviceEngine(Parts parts)
      : parts_(std::move(parts)),
        spec_(parts_.spec),
        mirror_written_(parts_.options.mirror_written_kv),
        heads_per_kv_(parts_.config.num_heads / parts_.config.num_kv_heads),
        batch_({parts_.config.num_heads, parts_.config.num_kv_heads, parts_.kv.block_tokens,
                parts_.AttentionItems(), parts_.RecordsMax(),
                DeviceForwardPass::Windows(parts_.config)}),
        pass_({parts_.config, parts_.kv, spec_.layout.layer_block_bytes, parts_.RecordsMax(),
               parts_.gemm_tiles},
              *parts_.weights, *parts_.device, *parts_.stream),
        sampler_({spec_.vocab_size, parts_.options.sample_on_device}, *parts_.device,
                 *parts_.stream, parts_.pool->parallel()) {
    if (spec_.unit_tokens > 0) lent_.emplace(parts_.Partials(), *parts_.device, *parts_.stream);
  }

  const EngineSpec& spec() const override { return spec_; }

  absl::StatusOr<int64_t> ProfileStepBytes(int64_t max_batch_tokens) override {
    if (max_batch_tokens < 1 || max_batch_tokens > int64_t{1} << 20) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_batch_tokens is ", max_batch_tokens, ", expected 1 to ", 1 << 20));
    }
    DeviceBatchLimits limits;
    limits.rows = static_cast<int32_t>(max_batch_tokens);
    // A step with more of them grows the logits' buffer.
    limits.logit_rows =
        std::min(limits.rows, BucketOf(std::min(parts_.options.max_sequences, kGraphRowsMax)));
    limits.table_entries =
        static_cast<int32_t>(spec_.layout.BlocksFor(spec_.context_tokens) * kFullTablesReserved);
    RETURN_IF_ERROR(Reserve(limits));
    RETURN_IF_ERROR(RunProfile(max_batch_tokens));
    return step_bytes_;
  }

  absl::StatusOr<std::optional<int64_t>> DeviceKvBytes() override {
    return DeviceBytesForKv(parts_.options, spec_.layout, *parts_.device);
  }

  absl::Status AllocateKv(int64_t num_blocks) override {
    TANDEM_CHECK(kv_ == nullptr, "AllocateKv is called once");
    ASSIGN_OR_RETURN(kv_, DeviceKv::Create(spec_.layout, num_blocks, *parts_.device));
    blocks_.device = parts_.device.get();
    blocks_.regions.clear();
    for (int layer = 0; layer < spec_.layout.num_layers; ++layer) {
      blocks_.regions.push_back(kv_->Region(layer));
    }
    return absl::OkStatus();
  }

  kv::BlockArena& arena() override {
    TANDEM_CHECK(kv_ != nullptr, "arena before AllocateKv");
    return kv_->arena();
  }

  const kernels::DeviceBlocks* device_blocks() override {
    TANDEM_CHECK(kv_ != nullptr, "device_blocks before AllocateKv");
    return &blocks_;
  }
  void UseHostMirror(bool enabled) override {
    fetch_arrived_ = enabled;
    mirror_written_ = enabled && parts_.options.mirror_written_kv;
  }

  absl::Status FetchArrived(absl::Span<const BlockId> blocks) override {
    return fetch_arrived_ ? kv_->FetchBlocks(blocks) : absl::OkStatus();
  }

  std::unique_ptr<PartialAttention> NewPartialAttention() override {
    TANDEM_CHECK(kv_ != nullptr, "NewPartialAttention before AllocateKv");
    if (spec_.unit_tokens == 0) return nullptr;
    absl::StatusOr<std::unique_ptr<PartialAttention>> attention = NewDevicePartialAttention(
        {.config = parts_.config, .partials = parts_.Partials(), .fetch_arrived = fetch_arrived_},
        *kv_, *parts_.device);
    if (attention.ok()) return *std::move(attention);
    Log(LogLevel::kWarning, "cannot compute attention for other nodes",
        {{"error", attention.status().ToString()}});
    return nullptr;
  }
  void SetRemoteAttention(RemoteAttention* peers) override {
    if (lent_.has_value()) lent_->SetPeers(peers);
  }

  absl::StatusOr<std::vector<SampledToken>> Step(absl::Span<const SequenceSlice> slices,
                                                 LayerDone layer_done) override {
    absl::StatusOr<std::vector<SampledToken>> tokens = RunStep(slices, layer_done);
    // What a failed step has enqueued may still use the buffers that the next one fills or moves.
    if (!tokens.ok()) parts_.stream->Synchronize().IgnoreError();
    return tokens;
  }

 private:
  absl::StatusOr<std::vector<SampledToken>> RunStep(absl::Span<const SequenceSlice> slices,
                                                    LayerDone layer_done) {
    RETURN_IF_ERROR(CheckSlices(slices, spec_, arena().num_blocks()));
    if (slices.empty()) return std::vector<SampledToken>();
    if (fetch_arrived_) RETURN_IF_ERROR(kv_->FetchArrived(slices));
    DeviceBatchLimits needs = DeviceBatch::Needs(slices);
    const bool as_graph = RunsAsGraph(slices);
    const int32_t padded_rows = as_graph ? BucketOf(needs.rows) : needs.rows;
    needs.rows = padded_rows;
    if (as_graph) needs.logit_rows = padded_rows;
    if (HasPromptScores(slices)) needs.logit_rows = std::max(needs.logit_rows, kScoredRows);
    RETURN_IF_ERROR(Reserve(needs));
    RETURN_IF_ERROR(kv_->CopyForks(ForkCopies(slices, spec_.layout.block_tokens), *parts_.stream));
    batch_.Fill(slices, padded_rows, *parts_.stream);
    if (lent_.has_value()) lent_->StartStep(slices);
    if (as_graph) {
      EnqueueGraph(padded_rows);
    } else {
      EnqueueRows(HasPromptScores(slices));
    }
    if (lent_.has_value()) RETURN_IF_ERROR(lent_->status());
    parts_.stream->Record(*parts_.step_done);
    RETURN_IF_ERROR(sampler_.Start(slices, pass_.logits()));
    RETURN_IF_ERROR(FinishLayers(slices, as_graph, layer_done));
    ASSIGN_OR_RETURN(std::vector<SampledToken> sampled, sampler_.Finish());
    RETURN_IF_ERROR(ScorePrompts(slices));
    return sampled;
  }

  absl::Status Reserve(const DeviceBatchLimits& limits) {
    if (batch_.Fits(limits)) return absl::OkStatus();
    const DeviceBatchLimits held = batch_.limits();
    const absl::Status grown = Allocate(held.GrownFor(limits));
    if (grown.ok()) return grown;
    // This step fails. Smaller ones go on with the buffers of before; where these are not to be had
    // any more, each allocates what it needs.
    Release();
    if (held.rows > 0 && !Allocate(held).ok()) Release();
    return grown;
  }
  absl::Status Allocate(const DeviceBatchLimits& limits) {
    // Drop the graphs: they hold the addresses of buffers that are about to move.
    graphs_.clear();
    RETURN_IF_ERROR(batch_.Reserve(limits, *parts_.device));
    ASSIGN_OR_RETURN(step_bytes_, pass_.Reserve(limits.rows, limits.logit_rows));
    step_bytes_ += batch_.bytes();
    ASSIGN_OR_RETURN(const int64_t sampler_bytes, sampler_.Reserve(limits.logit_rows));
    step_bytes_ += sampler_bytes;
    return absl::OkStatus();
  }
  void Release() {
    batch_.Release();
    pass_.Release();
    sampler_.Release();
  }

  bool RunsAsGraph(absl::Span<const SequenceSlice> slices) const {
    if (!parts_.options.use_graphs || heads_per_kv_ > kernels::kNarrowVectors ||
        slices.size() > static_cast<size_t>(kGraphRowsMax)) {
      return false;
    }
    return std::all_of(slices.begin(), slices.end(), [](const SequenceSlice& slice) {
      return slice.num_new == 1 && slice.sample && slice.prompt_scores == nullptr &&
             !HasLent(slice);
    });
  }

  static bool HasPromptScores(absl::Span<const SequenceSlice> slices) {
    return std::any_of(slices.begin(), slices.end(),
                       [](const SequenceSlice& slice) { return slice.prompt_scores != nullptr; });
  }

  void EnqueueRows(bool logits_later) {
    pass_.Enqueue(
        batch_,
        {batch_.rows(), batch_.num_logit_rows(), false, logits_later,
         lent_.has_value() && !lent_->empty() ? &*lent_ : nullptr},
        [this](int layer) { return kv_->Region(layer); },
        [this](int layer) {
          parts_.stream->Record(*parts_.layer_written[static_cast<size_t>(layer)]);
        });
  }

  void EnqueueGraph(int32_t bucket) {
    const auto enqueue = [this, bucket] {
      pass_.Enqueue(
          batch_, {bucket, bucket, true}, [this](int layer) { return kv_->Region(layer); },
          [](int) {});
    };
    // The first pass loads the kernels, which may not happen while a stream is captured.
    if (!std::exchange(warm_, true)) return enqueue();
    const auto [place, is_new] = graphs_.try_emplace(bucket);
    std::unique_ptr<kernels::DeviceGraph>& graph = place->second;
    if (is_new) graph = CaptureGraph(bucket, enqueue);
    if (graph == nullptr) return enqueue();
    parts_.stream->Launch(*graph);
  }

  // Null, and a line in the log, if the device refuses the graph: it takes memory of its own.
  std::unique_ptr<kernels::DeviceGraph> CaptureGraph(int32_t rows,
                                                     absl::FunctionRef<void()> enqueue) {
    absl::StatusOr<std::unique_ptr<kernels::DeviceGraph>> graph = parts_.stream->Capture(enqueue);
    if (graph.ok()) return *std::move(graph);
    Log(LogLevel::kWarning, "steps run without a graph, which is slower",
        {{"rows", rows}, {"why", graph.status().ToString()}});
    return nullptr;
  }

  // Mirrors the layers that the step writes, if the arena mirrors the device's blocks, and calls
  // `layer_done` for each.
  absl::Status FinishLayers(absl::Span<const SequenceSlice> slices, bool as_graph,
                            LayerDone layer_done) {
    const std::vector<BlockId> written =
        mirror_written_ ? kv_->WrittenBlocks(slices) : std::vector<BlockId>();
    for (int layer = 0; layer < spec_.layout.num_layers; ++layer) {
      kernels::DeviceEvent& ready =
          as_graph ? *parts_.step_done : *parts_.layer_written[static_cast<size_t>(layer)];
      if (mirror_written_) {
        RETURN_IF_ERROR(kv_->Mirror(layer, written, ready));
      } else {
        RETURN_IF_ERROR(ready.Synchronize());
      }
      layer_done(layer);
    }
    return absl::OkStatus();
  }

  // Appends to the slices' prompt_scores, a few rows' logits at a time.
  absl::Status ScorePrompts(absl::Span<const SequenceSlice> slices) {
    int64_t first_row = 0;  // of the slice, in the batch
    for (const SequenceSlice& slice : slices) {
      const int64_t end = std::min(slice.num_computed + slice.num_new, slice.prompt_tokens - 1);
      for (int64_t begin = slice.num_computed; slice.prompt_scores != nullptr && begin < end;
           begin += kScoredRows) {
        const int64_t count = std::min(int64_t{kScoredRows}, end - begin);
        RETURN_IF_ERROR(ScoreRows(slice, begin, {first_row + begin - slice.num_computed, count}));
      }
      first_row += slice.num_new;
    }
    return absl::OkStatus();
  }

  // Rows of the batch.
  struct RowRange {
    int64_t first, count;
  };
  // Scores tokens [begin + 1, begin + 1 + rows.count) of the slice.
  absl::Status ScoreRows(const SequenceSlice& slice, int64_t begin, const RowRange& rows) {
    if (scored_rows_.bytes() == 0) {
      ASSIGN_OR_RETURN(scored_rows_, parts_.device->Allocate(DeviceBuffer::Kind::kDevice,
                                                             kScoredRows * sizeof(int32_t)));
    }
    std::vector<int32_t> indices;
    for (int64_t i = 0; i < rows.count; ++i) {
      indices.push_back(static_cast<int32_t>(rows.first + i));
    }
    parts_.stream->CopyIn(scored_rows_.data(), indices.data(), indices.size() * sizeof(int32_t));
    pass_.EnqueueLogits(scored_rows_.as<int32_t>(), static_cast<int32_t>(indices.size()));
    ASSIGN_OR_RETURN(
        std::vector<SampledToken> scores,
        sampler_.Score(slice.tokens.subspan(static_cast<size_t>(begin) + 1, indices.size()),
                       slice.prompt_logprobs, pass_.logits()));
    std::move(scores.begin(), scores.end(), std::back_inserter(*slice.prompt_scores));
    return absl::OkStatus();
  }

  // Runs one step over blocks of its own, so that all kernels are loaded before the first real
  // step.
  absl::Status RunProfile(int64_t max_batch_tokens) {
    const ProfileStep step(spec_, max_batch_tokens);
    RETURN_IF_ERROR(AllocateKv(step.num_blocks()));
    const absl::Status status = Step(step.slices(), [](int) {}).status();
    kv_.reset();
    graphs_.clear();
    return status;
  }

  // In the order of construction, so that the device is destroyed last.
  Parts parts_;
  const EngineSpec spec_;
  // Whether the arena mirrors the device's blocks (UseHostMirror).
  bool fetch_arrived_ = true;
  bool mirror_written_;
  const int32_t heads_per_kv_;
  DeviceBatch batch_;
  DeviceForwardPass pass_;
  DeviceSampler sampler_;
  std::optional<DeviceLentAttention> lent_;  // where unit_tokens is not 0
  int64_t step_bytes_ = 0;
  kernels::DeviceBuffer scored_rows_;  // [kScoredRows], once prompts are scored
  std::unique_ptr<DeviceKv> kv_;
  kernels::DeviceBlocks blocks_;  // of kv_
  bool warm_ = false;
  // By bucket; null: the device refused it.
  std::map<int32_t, std::unique_ptr<kernels::DeviceGraph>> graphs_;
};

EngineSpec MakeSpec(const model::Checkpoint& checkpoint, const kernels::KvShape& kv,
                    const DeviceEngineOptions& options, const kernels::Device& device,
                    DeviceWeightFormat weights) {
  const model::ModelConfig& config = checkpoint.config();
  const kernels::DeviceProperties& properties = device.properties();
  EngineSpec spec;
  spec.model_name = config.name;
  spec.model_fingerprint = checkpoint.fingerprint();
  spec.numerics_id =
      absl::StrCat(device.ops().numerics, "-sm", properties.compute_major, properties.compute_minor,
                   "-w", DeviceWeightFormatName(checkpoint, weights), "-kv", options.kv_type, "-b",
                   options.block_tokens);
  spec.vocab_size = config.vocab_size;
  spec.context_tokens = options.context_tokens == 0 ? config.context_tokens
                                                    : static_cast<int32_t>(options.context_tokens);
  if (DevicePartials::Serves(config.num_heads, config.num_kv_heads)) {
    spec.unit_tokens = kernels::kPartitionTokens;
  }
  for (const model::LayerConfig& layer : config.layers) {
    spec.window_tokens = std::max(spec.window_tokens, static_cast<int32_t>(layer.sliding_window));
  }
  spec.layout.num_layers = config.num_layers;
  spec.layout.block_tokens = options.block_tokens;
  spec.layout.layer_block_bytes = static_cast<int64_t>(kernels::KvBlockBytes(kv));
  if (kv.type == kernels::KvType::kBf16) {
    spec.format = {"bf16",          kv.num_kv_heads,   kv.head_dim,
                   kv.block_tokens, config.num_layers, std::string(kv::kRowsOrder)};
  }
  return spec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> NewDeviceEngine(const model::Checkpoint& checkpoint,
                                                        const DeviceEngineOptions& options,
                                                        std::unique_ptr<kernels::Device> device) {
  DeviceEngine::Parts parts;
  parts.config = checkpoint.config();
  RETURN_IF_ERROR(CheckOptions(parts.config, options));
  parts.options = options;
  parts.device = std::move(device);
  ASSIGN_OR_RETURN(const DeviceWeightFormat format,
                   ParseDeviceWeights(options.weights, parts.device->ops()));
  parts.kv = {parts.config.num_kv_heads, parts.config.head_dim, options.block_tokens};
  ASSIGN_OR_RETURN(parts.kv.type, ParseDeviceKvType(options.kv_type));
  parts.spec = MakeSpec(checkpoint, parts.kv, options, *parts.device, format);
  ASSIGN_OR_RETURN(parts.stream, parts.device->NewStream(kernels::StreamPriority::kUrgent));
  ASSIGN_OR_RETURN(parts.step_done, parts.device->NewEvent());
  for (int layer = 0; layer < parts.config.num_layers; ++layer) {
    ASSIGN_OR_RETURN(parts.layer_written.emplace_back(), parts.device->NewEvent());
  }
  parts.pool = std::make_unique<ComputePool>(
      options.threads == 0 ? DefaultComputeThreads(ReadProcessors()) : options.threads);
  ASSIGN_OR_RETURN(DeviceWeights weights,
                   LoadDeviceWeights(checkpoint, {parts.spec.context_tokens, format}, *parts.device,
                                     *parts.stream, parts.pool->parallel()));
  parts.weights = std::make_unique<DeviceWeights>(std::move(weights));
  parts.gemm_tiles =
      ChooseGemmTiles(*parts.weights, options.gemm_tiles, *parts.device, parts.pool->parallel());
  LogStart("model loaded", {{"model", parts.spec.model_name},
                            {"device", parts.device->properties().name},
                            {"numerics_id", parts.spec.numerics_id}});
  return std::unique_ptr<Engine>(std::make_unique<DeviceEngine>(std::move(parts)));
}

absl::StatusOr<std::unique_ptr<Engine>> NewCudaEngine(const model::Checkpoint& checkpoint,
                                                      const DeviceEngineOptions& options) {
  RETURN_IF_ERROR(ParseDeviceKvType(options.kv_type).status());
  ASSIGN_OR_RETURN(std::unique_ptr<kernels::Device> device, kernels::OpenCudaDevice(0));
  return NewDeviceEngine(checkpoint, options, std::move(device));
}

}  // namespace tandem::engine
