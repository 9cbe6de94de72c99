// Runs the forward pass over whole documents and returns the logits of every position; the engine
// computes logits only for rows that sample. Thread safety: one thread. Owner: `tandem eval` and
// tests.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/engine/compute_pool.h"
#include "common/engine/cpu/forward_pass.h"
#include "common/engine/cpu/model_weights.h"
#include "common/kv/block_arena.h"
#include "common/model/checkpoint.h"

namespace tandem::engine {

class DocumentScorer {
 public:
  static constexpr int64_t kTokensMax = 2048;  // of a document
  static constexpr int64_t kChunkRows = 128;   // rows of one pass: a document spans several

  struct Options {
    const kernels::Backend& backend;
    WeightFormat weights = WeightFormat::kAuto;
    kernels::KvType kv_type = kernels::KvType::kBf16;
    int threads = 0;  // 0 = one per core this process may use
  };
  // The scorer does not keep `checkpoint`.
  static absl::StatusOr<std::unique_ptr<DocumentScorer>> Create(const model::Checkpoint& checkpoint,
                                                                const Options& options);

  const kernels::ParallelFor& parallel() const { return parallel_; }
  const ModelWeights& weights() const { return weights_; }

  // Computes positions [begin, begin + rows) of a document whose earlier positions were computed by
  // the calls before. Then Row(i) is the logits at position begin + i, until the next call.
  // REQUIRES: tokens of the vocabulary, begin + rows <= kTokensMax and the model's context.
  void Score(absl::Span<const TokenId> tokens, int64_t begin, int64_t rows);
  absl::Span<const float> Row(int64_t i) const { return pass_.Logits(static_cast<size_t>(i)); }

 private:
  DocumentScorer(const model::Checkpoint& checkpoint, const Options& options);

  const kernels::KvShape shape_;
  ComputePool pool_;
  const kernels::ParallelFor parallel_;
  const ModelWeights weights_;
  ForwardPass pass_;
  std::unique_ptr<kv::BlockArena> arena_;
};

}  // namespace tandem::engine
