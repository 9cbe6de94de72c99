// What GGUF files and Hugging Face directories have in common once read: the one implementation of
// Checkpoint, and its two loaders. Thread safety: const methods from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"
#include "common/model/mapped_file.h"
#include "common/model/tensor_table.h"

namespace tandem::model {

class LoadedCheckpoint final : public Checkpoint {
 public:
  struct Parts {
    std::vector<std::unique_ptr<MappedFile>> files;  // hold what `tensors` points into
    ModelConfig config;
    TokenizerSource tokenizer;
    std::string chat_template;
    std::vector<int32_t> stop_token_ids;  // in any order, repetitions allowed
    TensorTable tensors;
  };
  explicit LoadedCheckpoint(Parts parts);

  const ModelConfig& config() const override { return parts_.config; }
  const TokenizerSource& tokenizer() const override { return parts_.tokenizer; }
  const std::string& chat_template() const override { return parts_.chat_template; }
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

// Errors of both: as Checkpoint::Open, without the path.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGgufCheckpoint(std::unique_ptr<MappedFile> file);
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenHuggingFaceCheckpoint(const std::string& folder);

// Most layers a checkpoint may have; the largest published models have some 130.
inline constexpr int64_t kLayersMax = 1024;
// Checks that every figure is in the range the forward pass can work with, whatever file it came
// from. Errors: kInvalidArgument, and kUnimplemented for a head_dim that kernels do not take.
absl::Status ValidateConfig(const ModelConfig& config);

// Whether a control token of this name ends an answer ("<|im_end|>", "<end_of_turn>", ...).
bool IsTurnEnd(absl::string_view token);

// 16 hex digits, see Checkpoint::fingerprint. Reads all tensor data when it is small, otherwise a
// fixed sample of each tensor.
std::string Fingerprint(const ModelConfig& config, const std::vector<StoredTensor>& tensors);

}  // namespace tandem::model
