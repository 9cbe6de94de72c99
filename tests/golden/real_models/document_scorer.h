// Runs the forward pass over whole documents and hands out the logits of every position, which the
// engine itself computes only for rows that sample. Thread safety: one thread.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/engine/compute_pool.h"
#include "common/engine/forward_pass.h"
#include "common/engine/model_weights.h"
#include "common/kv/block_arena.h"
#include "common/model/checkpoint.h"

namespace tandem::testing {

class DocumentScorer {
 public:
  static constexpr int64_t kTokensMax = 2048;  // of a document
  static constexpr int64_t kChunkRows = 128;   // rows of one pass: a document spans several
  static constexpr int kBlockTokens = 32;

  static absl::StatusOr<std::unique_ptr<DocumentScorer>> Create(const std::string& path,
                                                                kernels::KvType kv_type,
                                                                const kernels::Backend& backend) {
    ASSIGN_OR_RETURN(const std::unique_ptr<model::Checkpoint> checkpoint,
                     model::Checkpoint::Open(path));
    std::unique_ptr<DocumentScorer> scorer(new DocumentScorer(*checkpoint, kv_type, backend));
    kv::BlockLayout layout;
    layout.num_layers = checkpoint->config().num_layers;
    layout.block_tokens = kBlockTokens;
    layout.layer_block_bytes = static_cast<int64_t>(kernels::KvBlockBytes(scorer->shape_));
    ASSIGN_OR_RETURN(scorer->arena_, kv::BlockArena::Create(layout, layout.BlocksFor(kTokensMax)));
    return scorer;
  }

  const kernels::ParallelFor& parallel() const { return parallel_; }

  // Calls `visit` for pieces of the document in order; row(i) is the logits at position begin + i,
  // valid until the next piece. REQUIRES: tokens of the vocabulary, at most kTokensMax.
  struct Piece {
    const engine::ForwardPass& pass;
    size_t begin;
    size_t rows;
    absl::Span<const float> row(size_t i) const { return pass.Logits(i); }
  };
  void Score(absl::Span<const TokenId> tokens, absl::FunctionRef<void(const Piece&)> visit) {
    const auto size = static_cast<int64_t>(tokens.size());
    TANDEM_CHECK(size <= kTokensMax, "a document of ", size, " tokens");
    for (int64_t begin = 0; begin < size; begin += kChunkRows) {
      const int64_t rows = std::min(kChunkRows, size - begin);
      pass_.Run(MakeBatch(tokens, begin, rows), *arena_, [](int) {});
      visit({pass_, static_cast<size_t>(begin), static_cast<size_t>(rows)});
    }
  }

 private:
  DocumentScorer(const model::Checkpoint& checkpoint, kernels::KvType kv_type,
                 const kernels::Backend& backend)
      : shape_{checkpoint.config().num_kv_heads, checkpoint.config().head_dim, kBlockTokens,
               kv_type},
        pool_(engine::AvailableProcessors()),
        parallel_(pool_.parallel()),
        weights_(checkpoint, backend, parallel_),
        pass_({checkpoint.config(), shape_, kTokensMax}, weights_, backend, parallel_) {}

  static engine::ForwardBatch MakeBatch(absl::Span<const TokenId> tokens, int64_t begin,
                                        int64_t rows) {
    engine::ForwardBatch batch;
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
    return batch;
  }

  const kernels::KvShape shape_;
  engine::ComputePool pool_;
  const kernels::ParallelFor parallel_;
  const engine::ModelWeights weights_;
  engine::ForwardPass pass_;
  std::unique_ptr<kv::BlockArena> arena_;
};

}  // namespace tandem::testing
