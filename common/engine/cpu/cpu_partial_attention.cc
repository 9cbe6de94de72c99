#include "common/engine/cpu/cpu_partial_attention.h"

#include <immintrin.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/aligned_buffer.h"
#include "common/engine/cpu/lent_attention.h"
#include "common/engine/partial_check.h"

namespace tandem::engine {
namespace {

constexpr size_t kCacheLineBytes = 64;

class CpuPartialAttention final : public PartialAttention {
 public:
  CpuPartialAttention(CpuPartialAttentionOptions options, const kernels::Backend& backend,
                      const kv::BlockArena& arena)
      : options_(std::move(options)), backend_(backend), arena_(arena) {
    scratch_ = AlignedBuffer(kernels::PartialsScratchBytes(
        {options_.config.num_heads, options_.kv, /*max_sequences=*/1, /*num_workers=*/1}));
  }

  int64_t q_floats() const override {
    return int64_t{options_.config.num_heads} * options_.config.head_dim;
  }
  int64_t AnswerBytes(int32_t, const UnitSpan& units, int32_t num_rows) const override {
    return RecordBytes(PartitionsOf(units), num_rows, options_.config.num_heads,
                       options_.config.head_dim);
  }

  absl::Status Compute(const PartialQuery& query, absl::Span<std::byte> answer) override {
    RETURN_IF_ERROR(CheckQuery(query, {.num_layers = options_.config.num_layers,
                                       .unit_tokens = kernels::kPartitionTokens,
                                       .block_tokens = options_.kv.block_tokens,
                                       .num_blocks = arena_.num_blocks(),
                                       .q_floats = q_floats()}));
    RETURN_IF_ERROR(CheckAnswer(
        query, options_.config.layers[static_cast<size_t>(query.layer)].sliding_window > 0,
        static_cast<int64_t>(answer.size()),
        AnswerBytes(query.layer, query.units, query.num_rows)));
    table_.clear();
    for (const BlockId block : query.blocks) table_.push_back(block.value());
    const kernels::PartialsSequence sequence{
        .block_table = table_.data(),
        .first_row = 0,
        .num_rows = query.num_rows,
        .first_position = static_cast<int32_t>(query.first_position),
        .span = PartitionsOf(query.units),
        .records = reinterpret_cast<float*>(answer.data())};
    kernels::AttentionPartialsArgs args;
    args.q = query.q.data();
    args.q_stride = q_floats();
    args.num_heads = options_.config.num_heads;
    args.scale = options_.config.attention_scale;
    args.layer = {options_.kv, arena_.LayerRegion(query.layer), arena_.layout().layer_block_bytes};
    args.sequences = &sequence;
    args.num_sequences = 1;
    args.scratch = scratch_.data();
    args.scratch_bytes = scratch_.bytes();
    backend_.attention_partials(args, kernels::ParallelFor());
    return absl::OkStatus();
  }

  int64_t FetchForNextLayer(int32_t layer, absl::Span<const BlockId> blocks) override {
    const int32_t next = NextLendingLayer(options_.config, layer);
    const size_t bytes = kernels::KvBlockBytes(options_.kv);
    const std::byte* region = reinterpret_cast<const std::byte*>(arena_.LayerRegion(next));
    for (const BlockId block : blocks)
      options_.fetch(region + block.value() * arena_.layout().layer_block_bytes, bytes);
    return static_cast<int64_t>(bytes * blocks.size());
  }

 private:
  const CpuPartialAttentionOptions options_;
  const kernels::Backend& backend_;
  const kv::BlockArena& arena_;
  AlignedBuffer scratch_;
  std::vector<int32_t> table_;  // of the query: its units' blocks
};

}  // namespace

void PrefetchBytes(const std::byte* at, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kCacheLineBytes) _mm_prefetch(at + i, _MM_HINT_T1);
}

int32_t NextLendingLayer(const model::ModelConfig& config, int32_t layer) {
  for (int32_t i = 1; i < config.num_layers; ++i) {
    const int32_t next = (layer + i) % config.num_layers;
    if (config.layers[static_cast<size_t>(next)].sliding_window == 0) return next;
  }
  return layer;
}

std::unique_ptr<PartialAttention> NewCpuPartialAttention(CpuPartialAttentionOptions options,
                                                         const kernels::Backend& backend,
                                                         const kv::BlockArena& arena) {
  return std::make_unique<CpuPartialAttention>(std::move(options), backend, arena);
}

}  // namespace tandem::engine
