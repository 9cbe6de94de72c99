#include "common/engine/cpu/cpu_engine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/engine/compute_pool.h"
#include "common/engine/cpu/cpu_choices.h"
#include "common/engine/cpu/cpu_partial_attention.h"
#include "common/engine/cpu/forward_pass.h"
#include "common/engine/cpu/model_weights.h"
#include "common/engine/fork_copies.h"
#include "common/engine/profile_step.h"
#include "common/engine/slice_check.h"
#include "common/engine/token_sampler.h"
#include "common/runtime/clock.h"
#include "common/runtime/processors.h"
#include "common/telemetry/log.h"
#include "common/telemetry/start_log.h"

namespace tandem::engine {
namespace {

class CpuEngine : public Engine {
 public:
  struct Parts {
    EngineSpec spec;
    model::ModelConfig config;
    kernels::KvShape kv;
    kv::ArenaMemory kv_memory = kv::ArenaMemory::kPrivate;
    const kernels::Backend* backend;
    std::unique_ptr<ComputePool> pool;
    std::unique_ptr<ModelWeights> weights;
  };
  explicit CpuEngine(Parts parts)
      : spec_(std::move(parts.spec)),
        kv_memory_(parts.kv_memory),
        backend_(*parts.backend),
        pool_(std::move(parts.pool)),
        weights_(std::move(parts.weights)),
        partial_attention_{parts.config, parts.kv},
        pass_({std::move(parts.config), parts.kv, spec_.context_tokens}, *weights_, backend_,
              pool_->parallel()) {}

  const EngineSpec& spec() const override { return spec_; }

  absl::StatusOr<int64_t> ProfileStepBytes(int64_t max_batch_tokens) override {
    if (max_batch_tokens < 1 || max_batch_tokens > spec_.context_tokens * kBatchContextsMax) {
      return absl::InvalidArgumentError(absl::StrCat("max_batch_tokens is ", max_batch_tokens,
                                                     ", expected 1 to ",
                                                     spec_.context_tokens * kBatchContextsMax));
    }
    RETURN_IF_ERROR(RunProfile(max_batch_tokens));
    // Allocate everything that the largest step uses, once.
    return pass_.Reserve(max_batch_tokens, std::min(max_batch_tokens, kLogitRowsReserved)) +
           ReserveSampling();
  }

  void SetWindowSlots(int64_t slots) override { window_slots_ = slots; }

  absl::Status AllocateKv(int64_t num_blocks) override {
    TANDEM_CHECK(arena_ == nullptr, "AllocateKv is called once");
    ASSIGN_OR_RETURN(arena_,
                     kv::BlockArena::Create(spec_.layout, num_blocks, kv_memory_, window_slots_));
    return absl::OkStatus();
  }

  kv::BlockArena& arena() override {
    TANDEM_CHECK(arena_ != nullptr, "arena before AllocateKv");
    return *arena_;
  }

  std::unique_ptr<PartialAttention> NewPartialAttention() override {
    return NewCpuPartialAttention(partial_attention_, backend_, arena());
  }
  void SetRemoteAttention(RemoteAttention* peers) override { pass_.SetRemoteAttention(peers); }

  absl::StatusOr<std::vector<SampledToken>> Step(absl::Span<const SequenceSlice> slices,
                                                 LayerDone layer_done) override {
    return StepIn(*arena_, slices, layer_done);
  }

 private:
  // Rows that sample in the profiled step. A step with more of them grows the logits' buffer.
  static constexpr int64_t kLogitRowsReserved = 64;
  // Prompt rows scored at a time.
  static constexpr int64_t kScoredRows = 32;
  // A batch may hold this many full contexts.
  static constexpr int64_t kBatchContextsMax = 64;

  static ForwardBatch MakeBatch(absl::Span<const SequenceSlice> slices,
                                const kv::BlockArena& arena);
  absl::StatusOr<std::vector<SampledToken>> StepIn(const kv::BlockArena& arena,
                                                   absl::Span<const SequenceSlice> slices,
                                                   LayerDone layer_done);
  void CopyForks(const kv::BlockArena& arena, absl::Span<const SequenceSlice> slices);
  std::vector<SampledToken> SampleAll(absl::Span<const SequenceSlice> slices);
  void ScorePrompts(absl::Span<const SequenceSlice> slices);
  absl::Status RunProfile(int64_t max_batch_tokens);
  int64_t ReserveSampling();

  const EngineSpec spec_;
  const kv::ArenaMemory kv_memory_;
  const kernels::Backend& backend_;
  const std::unique_ptr<ComputePool> pool_;
  const std::unique_ptr<ModelWeights> weights_;
  const CpuPartialAttentionOptions partial_attention_;
  ForwardPass pass_;
  int64_t window_slots_ = 0;
  std::unique_ptr<kv::BlockArena> arena_;
  std::vector<AlignedBuffer> sampling_scratch_;  // [threads]
};

ForwardBatch CpuEngine::MakeBatch(absl::Span<const SequenceSlice> slices,
                                  const kv::BlockArena& arena) {
  ForwardBatch batch;
  for (const SequenceSlice& slice : slices) {
    const int64_t end = slice.num_computed + slice.num_new;
    std::vector<int32_t>& table = batch.tables.emplace_back();
    for (BlockId block : slice.blocks) table.push_back(block.value());
    kernels::SequenceRows& rows = batch.sequences.emplace_back();
    rows.block_table = table.data();  // moving the vector keeps its storage
    rows.first_row = static_cast<int32_t>(batch.tokens.size());
    rows.num_rows = static_cast<int32_t>(slice.num_new);
    rows.first_position = static_cast<int32_t>(slice.num_computed);
    if (arena.slots() != nullptr) {
      // Blocks before the window may have no slot; kernels do not read their entries.
      std::vector<int32_t>& windowed = batch.windowed_tables.emplace_back();
      for (BlockId block : slice.blocks)
        windowed.push_back(block == kNoBlock ? kv::SlotTable::kNone : arena.slots()->slot(block));
      batch.windowed_sequences.push_back(rows);
      batch.windowed_sequences.back().block_table = windowed.data();
    }
    for (int64_t i = slice.num_computed; i < end; ++i) {
      batch.tokens.push_back(slice.tokens[static_cast<size_t>(i)]);
      batch.positions.push_back(static_cast<int32_t>(i));
    }
    if (slice.remote != nullptr && !slice.remote->lent.empty()) {
      batch.remote.resize(slices.size());
      batch.remote[batch.sequences.size() - 1] = slice.remote;
    }
    if (slice.sample) batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()) - 1);
    batch.logits_later |= slice.prompt_scores != nullptr;
  }
  return batch;
}

absl::StatusOr<std::vector<SampledToken>> CpuEngine::StepIn(const kv::BlockArena& arena,
                                                            absl::Span<const SequenceSlice> slices,
                                                            LayerDone layer_done) {
  RETURN_IF_ERROR(CheckSlices(slices, spec_, arena));
  if (slices.empty()) return std::vector<SampledToken>();
  for (const SequenceSlice& slice : slices) {
    if (slice.remote != nullptr) slice.remote->Begin();
  }
  CopyForks(arena, slices);
  pass_.Forward(MakeBatch(slices, arena), arena, layer_done);
  std::vector<SampledToken> sampled = SampleAll(slices);
  ScorePrompts(slices);
  return sampled;
}

void CpuEngine::CopyForks(const kv::BlockArena& arena, absl::Span<const SequenceSlice> slices) {
  const std::vector<BlockCopy> copies = ForkCopies(slices, spec_.layout.block_tokens);
  const auto count = static_cast<int64_t>(copies.size());
  if (count == 0) return;
  pool_->parallel()(count * spec_.layout.num_layers, [&](int64_t i, int) {
    const BlockCopy& copy = copies[static_cast<size_t>(i % count)];
    arena.CopyBlock(static_cast<int>(i / count), copy.from, copy.to);
  });
}

// A few rows' logits at a time: those of a whole prompt would be larger than the model.
void CpuEngine::ScorePrompts(absl::Span<const SequenceSlice> slices) {
  int64_t first_row = 0;  // of the slice, in the batch
  for (const SequenceSlice& slice : slices) {
    const int64_t end = std::min(slice.num_computed + slice.num_new, slice.prompt_tokens - 1);
    for (int64_t begin = slice.num_computed; slice.prompt_scores != nullptr && begin < end;
         begin += kScoredRows) {
      std::vector<int32_t> rows;
      for (int64_t i = begin; i < std::min(end, begin + kScoredRows); ++i)
        rows.push_back(static_cast<int32_t>(first_row + i - slice.num_computed));
      pass_.ComputeLogits(rows);
      const size_t scored = slice.prompt_scores->size();
      slice.prompt_scores->resize(scored + rows.size());
      pool_->parallel()(static_cast<int64_t>(rows.size()), [&](int64_t i, int worker) {
        (*slice.prompt_scores)[scored + static_cast<size_t>(i)] =
            ScoreToken(slice.tokens[static_cast<size_t>(begin + i + 1)], slice.prompt_logprobs,
                       pass_.Logits(static_cast<size_t>(i)), backend_,
                       sampling_scratch_[static_cast<size_t>(worker)].data());
      });
    }
    first_row += slice.num_new;
  }
}

std::vector<SampledToken> CpuEngine::SampleAll(absl::Span<const SequenceSlice> slices) {
  std::vector<const SequenceSlice*> sampling;
  for (const SequenceSlice& slice : slices) {
    if (slice.sample) sampling.push_back(&slice);
  }
  ReserveSampling();
  std::vector<SampledToken> tokens(sampling.size());
  pool_->parallel()(static_cast<int64_t>(sampling.size()), [&](int64_t i, int worker) {
    const size_t index = static_cast<size_t>(i);
    // Without a creditor's answer the logits mean nothing, and may be no numbers.
    if (sampling[index]->remote != nullptr && !sampling[index]->remote->failure.ok()) return;
    tokens[index] = SampleToken(*sampling[index], pass_.Logits(index), backend_,
                                sampling_scratch_[static_cast<size_t>(worker)].data());
  });
  return tokens;
}

// Runs one step of that size, or of one context if that is smaller, over blocks of its own.
absl::Status CpuEngine::RunProfile(int64_t max_batch_tokens) {
  const ProfileStep step(spec_, max_batch_tokens);
  ASSIGN_OR_RETURN(std::unique_ptr<kv::BlockArena> arena,
                   kv::BlockArena::Create(spec_.layout, step.num_blocks()));
  return StepIn(*arena, step.slices(), [](int) {}).status();
}

int64_t CpuEngine::ReserveSampling() {
  int64_t bytes = 0;
  while (sampling_scratch_.size() < static_cast<size_t>(pool_->num_threads())) {
    sampling_scratch_.emplace_back(kernels::SamplingScratchBytes(spec_.vocab_size));
  }
  for (const AlignedBuffer& buffer : sampling_scratch_) {
    bytes += static_cast<int64_t>(buffer.bytes());
  }
  return bytes;
}

// Groups the layers by their windows. The numerics id says how they are grouped: nodes that group
// them otherwise send other parts of blocks. REQUIRES: the layout's other fields are set.
void SetWindow(const model::ModelConfig& config, EngineSpec* spec) {
  std::vector<int32_t> windowed;
  for (int32_t layer = 0; layer < config.num_layers; ++layer)
    if (config.layers[static_cast<size_t>(layer)].sliding_window > 0) windowed.push_back(layer);
  if (windowed.empty() || std::ssize(windowed) == config.num_layers) return;
  spec->layout.windowed_layers = std::move(windowed);
  spec->layout.window_tokens = spec->window_tokens;
  absl::StrAppend(&spec->numerics_id, "-win", spec->window_tokens);
}

// The order of a bf16 cache's elements (kernels/cpu/kv_cache.cc, kernels/ref/kv_cache.cc).
absl::string_view KvOrderOf(const kernels::Backend& backend) {
  if (backend.isa == kernels::IsaClass::kRef) return kv::kRowsOrder;
  return backend.kv_in_pairs ? kv::kPairsOrder : kv::kTilesOrder;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> NewCpuEngine(const model::Checkpoint& checkpoint,
                                                     const CpuEngineOptions& options) {
  const absl::Time begin = RealClock().Now();
  const model::ModelConfig& config = checkpoint.config();
  ASSIGN_OR_RETURN(const CpuChoices choices, ChooseForCpu(config, options));
  CpuEngine::Parts parts;
  parts.backend = choices.backend;
  parts.config = config;
  parts.kv = choices.kv;
  const int threads =
      options.threads == 0 ? DefaultComputeThreads(ReadProcessors()) : options.threads;
  parts.pool = std::make_unique<ComputePool>(threads, options.processors);
  parts.weights = std::make_unique<ModelWeights>(
      checkpoint, *parts.backend, LoadThreads(parts.pool->parallel(), options.on_load_progress),
      choices.weights, options.weight_cache);
  RETURN_IF_ERROR(parts.weights->status());

  EngineSpec& spec = parts.spec;
  spec.model_name = config.name;
  spec.model_fingerprint = checkpoint.fingerprint();
  spec.numerics_id = absl::StrCat(choices.numerics, "-w", parts.weights->TypeNames(), "-kv",
                                  options.kv_type, "-b", options.block_tokens);
  spec.vocab_size = config.vocab_size;
  spec.context_tokens = options.context_tokens == 0 ? config.context_tokens
                                                    : static_cast<int32_t>(options.context_tokens);
  spec.mapped_bytes = parts.weights->mapped_bytes();
  spec.unit_tokens = kernels::kPartitionTokens;
  for (const model::LayerConfig& layer : config.layers) {
    spec.window_tokens = std::max(spec.window_tokens, static_cast<int32_t>(layer.sliding_window));
  }
  spec.layout.num_layers = config.num_layers;
  spec.layout.block_tokens = options.block_tokens;
  spec.layout.layer_block_bytes = static_cast<int64_t>(kernels::KvBlockBytes(parts.kv));
  SetWindow(config, &spec);
  if (parts.kv.type == kernels::KvType::kBf16) {
    spec.format = {"bf16",
                   parts.kv.num_kv_heads,
                   parts.kv.head_dim,
                   parts.kv.block_tokens,
                   config.num_layers,
                   std::string(KvOrderOf(*parts.backend)),
                   spec.layout.window_tokens};
  }
  LogStart("model loaded", {{"model", spec.model_name},
                            {"backend", parts.backend->name},
                            {"threads", threads},
                            {"weights_bytes", parts.weights->bytes()},
                            {"mapped_bytes", parts.weights->mapped_bytes()},
                            {"load_ms", absl::ToInt64Milliseconds(RealClock().Now() - begin)},
                            {"numerics_id", spec.numerics_id}});
  parts.kv_memory = options.kv_memory;
  return std::unique_ptr<Engine>(new CpuEngine(std::move(parts)));
}

}  // namespace tandem::engine
