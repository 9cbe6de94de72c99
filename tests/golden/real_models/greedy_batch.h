// Answers several prompts greedily through the engine, all in one batch, as a decode node does.
// Thread safety: one thread.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/engine/engine.h"

namespace tandem::testing {

class GreedyBatch {
 public:
  static constexpr int64_t kTokensMax = 1024;   // of a prompt with its answer
  static constexpr int64_t kPrefillRows = 256;  // rows of one step of prompts

  // The engine must outlive the batch; its KV is set up here.
  static absl::StatusOr<std::unique_ptr<GreedyBatch>> Create(
      engine::Engine* engine, std::vector<std::vector<TokenId>> prompts) {
    std::unique_ptr<GreedyBatch> batch(new GreedyBatch(engine));
    const int64_t blocks_each = engine->spec().layout.BlocksFor(kTokensMax);
    RETURN_IF_ERROR(engine->AllocateKv(blocks_each * static_cast<int64_t>(prompts.size())));
    for (std::vector<TokenId>& prompt : prompts) {
      Sequence& sequence = batch->sequences_.emplace_back();
      sequence.prompt_tokens = static_cast<int64_t>(prompt.size());
      sequence.tokens = std::move(prompt);
      for (int64_t i = 0; i < blocks_each; ++i) {
        sequence.blocks.emplace_back(static_cast<int32_t>(batch->num_blocks_++));
      }
    }
    return batch;
  }

  // Generates until `keep_going(sequence, token)` has said no for every sequence.
  absl::Status Run(absl::FunctionRef<bool(size_t sequence, TokenId token)> keep_going) {
    for (size_t i = 0; i < sequences_.size(); ++i) RETURN_IF_ERROR(Prefill(i, keep_going));
    std::vector<size_t> running = Running();
    while (!running.empty()) {
      RETURN_IF_ERROR(Step(running, 1, keep_going));
      running = Running();
    }
    return absl::OkStatus();
  }

 private:
  struct Sequence {
    std::vector<TokenId> tokens;
    std::vector<BlockId> blocks;
    int64_t prompt_tokens = 0;
    int64_t num_computed = 0;
    bool running = true;
  };

  explicit GreedyBatch(engine::Engine* engine) : engine_(*engine) { greedy_.temperature = 0; }

  std::vector<size_t> Running() const {
    std::vector<size_t> running;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      if (sequences_[i].running) running.push_back(i);
    }
    return running;
  }

  absl::Status Prefill(size_t index, absl::FunctionRef<bool(size_t, TokenId)> keep_going) {
    const Sequence& sequence = sequences_[index];
    while (sequence.num_computed < sequence.prompt_tokens) {
      RETURN_IF_ERROR(Step({index}, kPrefillRows, keep_going));
    }
    return absl::OkStatus();
  }

  // One engine step of at most `rows_max` rows of each sequence.
  absl::Status Step(const std::vector<size_t>& indices, int64_t rows_max,
                    absl::FunctionRef<bool(size_t, TokenId)> keep_going) {
    std::vector<engine::SequenceSlice> slices;
    std::vector<size_t> sampling;
    for (size_t index : indices) {
      Sequence& sequence = sequences_[index];
      engine::SequenceSlice& slice = slices.emplace_back();
      const auto size = static_cast<int64_t>(sequence.tokens.size());
      slice.tokens = sequence.tokens;
      slice.num_computed = sequence.num_computed;
      slice.num_new = std::min(rows_max, size - sequence.num_computed);
      slice.blocks = sequence.blocks;
      slice.prompt_tokens = sequence.prompt_tokens;
      slice.sampling = &greedy_;
      sequence.num_computed += slice.num_new;
      slice.sample = sequence.num_computed == size;
      if (slice.sample) sampling.push_back(index);
    }
    ASSIGN_OR_RETURN(const std::vector<engine::SampledToken> sampled,
                     engine_.Step(slices, [](int) {}));
    for (size_t i = 0; i < sampled.size(); ++i) {
      Sequence& sequence = sequences_[sampling[i]];
      sequence.tokens.push_back(sampled[i].token);
      const bool full = static_cast<int64_t>(sequence.tokens.size()) >= kTokensMax;
      sequence.running = keep_going(sampling[i], sampled[i].token) && !full;
    }
    return absl::OkStatus();
  }

  engine::Engine& engine_;
  request::SamplingParams greedy_;
  std::vector<Sequence> sequences_;
  int64_t num_blocks_ = 0;
};

}  // namespace tandem::testing
