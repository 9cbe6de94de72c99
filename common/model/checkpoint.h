// A checkpoint on disk: its configuration, its tensors by role, and its tokenizer's and chat
// template's raw material. GGUF v3 files and Hugging Face directories (safetensors, single or
// sharded) present themselves alike; tensors are memory-mapped and dequantised row by row on
// demand.
//
// Canonical form: whatever the file's convention, callers see matrices as [out_features,
// in_features], row-major; q and k rows in Hugging Face's (half-split, "NeoX") RoPE order: GGUF's
// llama-architecture q/k rows, stored for the interleaved convention, are read un-permuted; RMSNorm
// weights multiply as they are (Gemma's
// "+1" is folded in); fp8 elements are multiplied by their scales.
// Thread safety: const methods from any thread.
// Errors: kNotFound for a path where nothing is; kInvalidArgument for a file that is not a
// checkpoint or misses something (named, with offset and expected size where one applies);
// kUnimplemented for an architecture or tensor type not supported, naming it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/model_config.h"

namespace tandem::model {

enum class TensorType {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kF8E4M3,  // no infinities; 0x7f and 0xff are no numbers
};
absl::string_view TensorTypeName(TensorType type);

// What a tensor is for. Roles without a layer: kTokenEmbedding, kOutput (absent when tied),
// kFinalNorm.
enum class TensorRole {
  kTokenEmbedding,     // [vocab, hidden]
  kOutput,             // [vocab, hidden]
  kFinalNorm,          // [hidden]
  kAttentionNorm,      // [hidden], before attention
  kPostAttentionNorm,  // [hidden], sandwich only: after o, before the residual is added
  kFfnNorm,            // [hidden], before the FFN
  kPostFfnNorm,        // [hidden], sandwich only
  kQ,
  kK,
  kV,  // [heads * head_dim, hidden]
  kQBias,
  kKBias,
  kVBias,
  kQNorm,
  kKNorm,  // [head_dim]
  kO,      // [hidden, heads * head_dim]
  kOBias,
  kGate,
  kUp,    // [ffn, hidden]
  kDown,  // [hidden, ffn]
};
absl::string_view TensorRoleName(TensorRole role);

// What the elements of an fp8 matrix are multiplied by, widened to fp32.
struct TensorScales {
  // [ceil(tensor's rows / rows)][ceil(tensor's columns / columns)], finite and above 0.
  std::vector<float> values;
  // As many rows and columns of the matrix share one: all of both when the tensor has a single
  // scale, one and all when each row has its own.
  int64_t rows = 0, columns = 0;
};

// A tensor as it lies in the mapped file.
struct StoredTensor {
  std::string name;  // in the file
  TensorType type = TensorType::kF32;
  int64_t rows = 0;  // 1 for vectors
  int64_t columns = 0;
  // Raw bytes, `rows` rows of row_bytes each, in *file* order, at any alignment. When
  // permuted_head_rows = d > 0, canonical row h * d + p * d/2 + i (head h, half p) is file row
  // h * d + 2 * i + p; for a bias the same holds for its elements.
  const std::byte* data = nullptr;
  int64_t row_bytes = 0;
  int64_t permuted_head_rows = 0;  // head_dim when rows are in interleaved RoPE order, else 0
  bool add_one = false;            // Gemma norm of a Hugging Face checkpoint: 1 is added on reading
  TensorScales scales;             // kF8E4M3 only
};

// Reads canonical rows [row_begin, row_begin + row_count) as fp32 into `out` [row_count * columns].
// REQUIRES: the range lies within the tensor and `out` has exactly that size.
void ReadRows(const StoredTensor& tensor, int64_t row_begin, int64_t row_count,
              absl::Span<float> out);

// A block of 32 weights of four bits: scale and offset in fp16, then 16 bytes whose low halves are
// elements 0 to 15 and high halves 16 to 31. Weight = scale * element + offset.
inline constexpr int64_t kInt4BlockWeights = 32;
inline constexpr int64_t kInt4BlockBytes = 20;
// Whether a tensor is stored in such blocks, or in ones that become such without a loss.
bool HasInt4Blocks(const StoredTensor& tensor);
// Reads canonical rows as blocks into `out` [row_count * columns / 32 * 20]. REQUIRES:
// HasInt4Blocks; range and size as for ReadRows.
void ReadInt4Blocks(const StoredTensor& tensor, int64_t row_begin, int64_t row_count,
                    absl::Span<std::byte> out);

// Q4_K: super-blocks of 256 weights, eight groups of 32. Weight = d * scales[g] * element - dmin *
// mins[g]; elements of a group lie as in a block above.
struct Q4KBlock {
  uint16_t d, dmin;  // fp16
  uint8_t scales[8], mins[8];
  uint8_t elements[8][16];
};
inline constexpr int64_t kQ4KBlockWeights = 256;
bool HasQ4KBlocks(const StoredTensor& tensor);
// As ReadInt4Blocks, into `out` [row_count * columns / 256].
void ReadQ4KBlocks(const StoredTensor& tensor, int64_t row_begin, int64_t row_count,
                   absl::Span<Q4KBlock> out);

// Whether a matrix is stored as fp8 with one scale for each row, or for all of it.
bool HasFp8Rows(const StoredTensor& tensor);
// A canonical row as it is stored: weight i = e4m3(codes[i]) * scale.
struct Fp8Row {
  const uint8_t* codes = nullptr;  // [columns], in the mapped file
  float scale = 1.0f;
};
// REQUIRES: HasFp8Rows; a row of the tensor.
Fp8Row ReadFp8Row(const StoredTensor& tensor, int64_t row);

// Looks for codes of fp8 that are no numbers in canonical rows [row_begin, row_begin + row_count):
// opening a checkpoint does not read its weights, so whoever does asks here. Errors:
// kInvalidArgument naming the first one's tensor and place. REQUIRES: as ReadRows.
absl::Status CheckCodes(const StoredTensor& tensor, int64_t row_begin, int64_t row_count);

// A tokenizer's raw material: either GGUF's tokenizer.ggml.* metadata or a tokenizer.json's text.
struct TokenizerSource {
  std::string tokenizer_json;         // Hugging Face; empty for GGUF
  std::string tokenizer_config_json;  // Hugging Face; may be empty
  // GGUF:
  std::string gguf_model;  // "gpt2" (byte-level BPE) or "llama" (SentencePiece)
  std::string gguf_pre;    // "smollm", "llama-bpe", "qwen2", "default", ...
  std::vector<std::string> tokens;
  std::vector<float> scores;  // SentencePiece; may be empty
  std::vector<int32_t>
      token_types;  // ggml: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<std::string> merges;  // "left right", byte-level text
  std::optional<int32_t> bos_token_id, eos_token_id, eot_token_id, unknown_token_id,
      padding_token_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

// A file that tensors lie in, as it was when it was opened.
struct CheckpointFile {
  std::string path;
  int64_t bytes = 0;
  int64_t modified_ns = 0;  // since 1970
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // `path`: a GGUF file or a directory with config.json. Maps it, checks every tensor's bounds,
  // that every role the architecture needs is present with the expected shape, and that no tensor
  // is left over (a feature this description does not know).
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  virtual const ModelConfig& config() const = 0;
  virtual const TokenizerSource& tokenizer() const = 0;
  // The chat template's Jinja source; empty when the checkpoint brings none.
  virtual const std::string& chat_template() const = 0;
  // Tokens that end an answer, ascending (eos, end of turn, generation_config's list).
  virtual const std::vector<int32_t>& stop_token_ids() const = 0;
  // The tensor of `role` in `layer` (-1 for roles without one); nullptr when the architecture has
  // none.
  virtual const StoredTensor* Find(TensorRole role, int layer) const = 0;
  // Where the tensors lie; empty when in memory only.
  virtual const std::vector<CheckpointFile>& files() const = 0;
  // 16 hex digits over configuration, tensor names, types, shapes and contents' checksum sample:
  // equal for equal checkpoints, part of every block hash's salt.
  virtual const std::string& fingerprint() const = 0;
};

}  // namespace tandem::model
