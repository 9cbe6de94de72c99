// A checkpoint on disk: its configuration, its tensors by role, and the raw material of its
// tokenizer and chat template. This interface is the same for GGUF v3 files and Hugging Face
// directories (safetensors, single or sharded). Tensors are memory-mapped and read row by row on
// demand, in the canonical form of stored_tensor.h.
// Thread safety: const methods from any thread.
// Owner: the engine or router process that opened it. It unmaps the files when it is destroyed, so
// it must outlive every StoredTensor* taken from it.
// Errors: kNotFound for a path that does not exist; kInvalidArgument for a file that is not a
// checkpoint or lacks something (names it, with offset and expected size where they apply);
// kUnimplemented for an architecture or tensor type that is not supported, naming it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/architecture/tensor_role.h"
#include "common/model/model_config.h"
#include "common/model/stored_tensor.h"

namespace tandem::model {

// A tokenizer's raw material: either GGUF's tokenizer.ggml.* metadata or a tokenizer.json's text.
struct TokenizerSource {
  std::string tokenizer_json;         // Hugging Face; empty for GGUF
  std::string tokenizer_config_json;  // Hugging Face; may be empty
  // GGUF:
  std::string gguf_model;  // "gpt2" (byte-level BPE) or "llama" (SentencePiece)
  std::string gguf_pre;    // "smollm", "llama-bpe", "qwen2", "default", ...
  std::vector<std::string> tokens;
  std::vector<float> scores;  // SentencePiece; may be empty
  // ggml: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<int32_t> token_types;
  std::vector<std::string> merges;  // "left right", byte-level text
  std::optional<int32_t> bos_token_id, eos_token_id, eot_token_id, unknown_token_id,
      padding_token_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

// A file that tensors lie in, as it was when the checkpoint was opened.
struct CheckpointFile {
  std::string path;
  int64_t bytes = 0;
  int64_t modified_ns = 0;  // since 1970
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // `path`: a GGUF file or a directory with config.json. Maps it and checks that every tensor lies
  // within its file, that every role the architecture needs has a tensor of the expected shape, and
  // that no tensor is left over (it would belong to a feature that is not supported).
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  virtual const ModelConfig& config() const = 0;
  virtual const TokenizerSource& tokenizer() const = 0;
  // The Jinja source of the chat template: the checkpoint's own, or else its architecture's
  // (Architecture::chat_template). Empty when there is neither.
  virtual const std::string& chat_template() const = 0;
  // The one for conversations with tools, which checkpoints with several templates name
  // "tool_use". Empty: chat_template() is for them, too.
  virtual const std::string& tool_chat_template() const = 0;
  // Tokens that end an answer, ascending (eos, end of turn, generation_config's list).
  virtual const std::vector<int32_t>& stop_token_ids() const = 0;
  // The tensor of `role` in `layer` (-1 for roles that are not per layer); nullptr when the
  // architecture has none. Valid as long as the checkpoint.
  virtual const StoredTensor* Find(TensorRole role, int layer) const = 0;
  // The files that the tensors lie in; empty when they are in memory only.
  virtual const std::vector<CheckpointFile>& files() const = 0;
  // 16 hex digits (fingerprint.h): equal for equal checkpoints, part of every block hash's salt.
  virtual const std::string& fingerprint() const = 0;
};

}  // namespace tandem::model
