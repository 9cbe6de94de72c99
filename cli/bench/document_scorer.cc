#include "cli/bench/document_scorer.h"

#include <vector>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/runtime/processors.h"

namespace tandem::engine {
namespace {

constexpr int kBlockTokens = 32;

}  // namespace

DocumentScorer::DocumentScorer(const model::Checkpoint& checkpoint, const Options& options)
    : shape_{checkpoint.config().num_kv_heads, checkpoint.config().head_dim, kBlockTokens,
             options.kv_type},
      pool_(options.threads == 0 ? DefaultComputeThreads(ReadProcessors()) : options.threads),
      parallel_(pool_.parallel()),
      weights_(checkpoint, options.backend, parallel_, options.weights),
      pass_({checkpoint.config(), shape_, kTokensMax}, weights_, options.backend, parallel_) {}

absl::StatusOr<std::unique_ptr<DocumentScorer>> DocumentScorer::Create(
    const model::Checkpoint& checkpoint, const Options& options) {
  std::unique_ptr<DocumentScorer> scorer(new DocumentScorer(checkpoint, options));
  RETURN_IF_ERROR(scorer->weights_.status());
  kv::BlockLayout layout;
  layout.num_layers = checkpoint.config().num_layers;
  layout.block_tokens = kBlockTokens;
  layout.layer_block_bytes = static_cast<int64_t>(kernels::KvBlockBytes(scorer->shape_));
  ASSIGN_OR_RETURN(scorer->arena_, kv::BlockArena::Create(layout, layout.BlocksFor(kTokensMax)));
  return scorer;
}

void DocumentScorer::Score(absl::Span<const TokenId> tokens, int64_t begin, int64_t rows) {
  TANDEM_CHECK(begin + rows <= kTokensMax, "a document of ", begin + rows, " tokens");
  ForwardBatch batch;
  std::vector<int32_t>& table = batch.tables.emplace_back();
  for (int32_t block = 0; block < kTokensMax / kBlockTokens; ++block) table.push_back(block);
  for (int64_t i = 0; i < rows; ++i) {
    batch.tokens.push_back(tokens[static_cast<size_t>(begin + i)]);
    batch.positions.push_back(static_cast<int32_t>(begin + i));
    batch.logit_rows.push_back(static_cast<int32_t>(i));
  }
  kernels::SequenceRows& sequence = batch.sequences.emplace_back();
  sequence.block_table = table.data();
  sequence.num_rows = static_cast<int32_t>(rows);
  sequence.first_position = static_cast<int32_t>(begin);
  pass_.Forward(batch, *arena_, [](int) {});
}

}  // namespace tandem::engine
