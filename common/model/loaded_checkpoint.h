// The only implementation of Checkpoint. It holds the parts that a loader (gguf_checkpoint.h,
// hf_checkpoint.h) collected. Thread safety: const methods from any thread.
// Owner: as Checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/model/checkpoint.h"
#include "common/model/mapped_file.h"
#include "common/model/tensor_table.h"

namespace tandem::model {

class LoadedCheckpoint final : public Checkpoint {
 public:
  struct Parts {
    std::vector<std::unique_ptr<MappedFile>> files;  // hold the bytes that `tensors` points into
    ModelConfig config;
    TokenizerSource tokenizer;
    std::string chat_template;
    std::string tool_chat_template;
    std::vector<int32_t> stop_token_ids;  // in any order, repetitions allowed
    TensorTable tensors;
  };
  explicit LoadedCheckpoint(Parts parts);

  const ModelConfig& config() const override { return parts_.config; }
  const TokenizerSource& tokenizer() const override { return parts_.tokenizer; }
  const std::string& chat_template() const override { return parts_.chat_template; }
  const std::string& tool_chat_template() const override { return parts_.tool_chat_template; }
  const std::vector<int32_t>& stop_token_ids() const override { return parts_.stop_token_ids; }
  const StoredTensor* Find(TensorRole role, int layer) const override {
    return parts_.tensors.Find(role, layer);
  }
  const std::vector<CheckpointFile>& files() const override { return files_; }
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  Parts parts_;
  std::vector<CheckpointFile> files_;
  std::string fingerprint_;
};

// Whether a control token of this name ends an answer ("<|im_end|>", "<end_of_turn>", ...).
bool IsTurnEnd(absl::string_view token);

}  // namespace tandem::model
