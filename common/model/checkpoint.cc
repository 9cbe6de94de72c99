#include "common/model/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/model/dequantize.h"
#include "common/model/loaded_checkpoint.h"

namespace tandem::model {
namespace {

// Kernels walk heads in vectors of 16 lanes; the largest published head_dim is 256.
constexpr int32_t kHeadDimMultiple = 16;
constexpr int32_t kHeadDimMax = 512;
// Bounds that keep every product of two figures far from 2^63; real models stay below a tenth.
constexpr int32_t kWidthMax = 1 << 22;
constexpr int32_t kVocabularyMax = 1 << 24;

// The file row (or bias element) that holds canonical row `row`; see StoredTensor.
int64_t FileRow(const StoredTensor& tensor, int64_t row) {
  const int64_t head_rows = tensor.permuted_head_rows;
  if (head_rows == 0) return row;
  const int64_t half = head_rows / 2;
  const int64_t within = row % head_rows;
  return row - within + 2 * (within % half) + within / half;
}

void CheckRows(const StoredTensor& tensor, int64_t begin, int64_t count) {
  TANDEM_CHECK(begin >= 0 && count >= 0 && begin <= tensor.rows - count, "tensor ", tensor.name,
               ": rows ", begin, " + ", count, " of ", tensor.rows);
}

absl::Status InRange(absl::string_view what, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", value, ", 1 to ", max, " expected"));
}

absl::Status Positive(absl::string_view what, double value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value, ", a finite number above 0 expected"));
}

absl::Status ValidateLayer(const LayerConfig& layer, int32_t head_dim) {
  RETURN_IF_ERROR(Positive("rope theta", layer.rope_theta));
  if (layer.sliding_window < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sliding window is ", layer.sliding_window, ", 0 or more expected"));
  }
  const RopeScaling& scaling = layer.rope_scaling;
  if (scaling.kind == RopeScaling::Kind::kNone) return absl::OkStatus();
  if (scaling.kind == RopeScaling::Kind::kFactors) {
    if (scaling.frequency_factors.size() != static_cast<size_t>(head_dim) / 2) {
      return absl::InvalidArgumentError(absl::StrCat(scaling.frequency_factors.size(),
                                                     " rope frequency factors, ", head_dim / 2,
                                                     " expected"));
    }
    for (const float factor : scaling.frequency_factors) {
      RETURN_IF_ERROR(Positive("a rope frequency factor", factor));
    }
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Positive("rope scaling factor", scaling.factor));
  if (scaling.kind == RopeScaling::Kind::kLinear) return absl::OkStatus();
  RETURN_IF_ERROR(
      Positive("rope scaling's original context", static_cast<double>(scaling.original_context)));
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    RETURN_IF_ERROR(Positive("rope scaling's low_freq_factor", scaling.low_freq_factor));
    return Positive("rope scaling's high_freq_factor - low_freq_factor",
                    scaling.high_freq_factor - scaling.low_freq_factor);
  }
  RETURN_IF_ERROR(Positive("rope scaling's attention factor", scaling.attention_factor));
  RETURN_IF_ERROR(Positive("rope scaling's beta_fast", scaling.beta_fast));
  RETURN_IF_ERROR(Positive("rope scaling's beta_slow", scaling.beta_slow));
  // YaRN's ramp takes the logarithm of theta as a divisor.
  return Positive("rope theta - 1", layer.rope_theta - 1);
}

// Multiplies the elements of file row `row` by their scales. Each product is rounded once.
void ApplyScales(const StoredTensor& tensor, int64_t row, float* values) {
  const TensorScales& scales = tensor.scales;
  const int64_t in_row = (tensor.columns + scales.columns - 1) / scales.columns;
  const float* next = scales.values.data() + row / scales.rows * in_row;
  for (int64_t begin = 0; begin < tensor.columns; begin += scales.columns, ++next) {
    const int64_t end = std::min(begin + scales.columns, tensor.columns);
    for (int64_t i = begin; i < end; ++i) values[i] *= *next;
  }
}

bool IsNoNumber(std::byte code) { return (code & std::byte{0x7f}) == std::byte{0x7f}; }

}  // namespace

void ReadRows(const StoredTensor& tensor, int64_t row_begin, int64_t row_count,
              absl::Span<float> out) {
  CheckRows(tensor, row_begin, row_count);
  TANDEM_CHECK(static_cast<int64_t>(out.size()) == row_count * tensor.columns, "tensor ",
               tensor.name, ": ", out.size(), " floats for ", row_count, " rows");
  const bool is_permuted_vector = tensor.rows == 1 && tensor.permuted_head_rows > 0;
  for (int64_t i = 0; i < row_count; ++i) {
    const int64_t row = is_permuted_vector ? 0 : FileRow(tensor, row_begin + i);
    DequantizeRow(tensor.type, tensor.data + row * tensor.row_bytes, tensor.columns,
                  out.data() + i * tensor.columns);
    if (!tensor.scales.values.empty()) ApplyScales(tensor, row, out.data() + i * tensor.columns);
  }
  if (is_permuted_vector && row_count == 1) {
    const std::vector<float> stored(out.begin(), out.end());
    for (int64_t i = 0; i < tensor.columns; ++i) {
      out[static_cast<size_t>(i)] = stored[static_cast<size_t>(FileRow(tensor, i))];
    }
  }
  if (tensor.add_one) {
    for (float& value : out) value += 1.0f;
  }
}

bool HasInt4Blocks(const StoredTensor& tensor) {
  return (tensor.type == TensorType::kQ4_0 || tensor.type == TensorType::kQ4_1) && !tensor.add_one;
}

void ReadInt4Blocks(const StoredTensor& tensor, int64_t row_begin, int64_t row_count,
                    absl::Span<std::byte> out) {
  TANDEM_CHECK(HasInt4Blocks(tensor), "tensor ", tensor.name);
  CheckRows(tensor, row_begin, row_count);
  const int64_t blocks = tensor.columns / kInt4BlockWeights;
  TANDEM_CHECK(static_cast<int64_t>(out.size()) == row_count * blocks * kInt4BlockBytes, "tensor ",
               tensor.name, ": ", out.size(), " bytes for ", row_count, " rows");
  std::byte* next = out.data();
  for (int64_t i = 0; i < row_count; ++i) {
    const std::byte* row = tensor.data + FileRow(tensor, row_begin + i) * tensor.row_bytes;
    if (tensor.type == TensorType::kQ4_1) {  // stored as blocks of this kind
      next = std::copy_n(row, blocks * kInt4BlockBytes, next);
      continue;
    }
    for (int64_t b = 0; b < blocks; ++b, row += 18, next += kInt4BlockBytes) {
      uint16_t scale = 0;
      std::memcpy(&scale, row, sizeof(scale));
      const uint16_t offset = TimesMinusEight(scale);
      std::memcpy(next, &scale, sizeof(scale));
      std::memcpy(next + 2, &offset, sizeof(offset));
      std::memcpy(next + 4, row + 2, 16);
    }
  }
}

bool HasQ4KBlocks(const StoredTensor& tensor) {
  return tensor.type == TensorType::kQ4_K && !tensor.add_one;
}

void ReadQ4KBlocks(const StoredTensor& tensor, int64_t row_begin, int64_t row_count,
                   absl::Span<Q4KBlock> out) {
  TANDEM_CHECK(HasQ4KBlocks(tensor), "tensor ", tensor.name);
  CheckRows(tensor, row_begin, row_count);
  const int64_t blocks = tensor.columns / kQ4KBlockWeights;
  TANDEM_CHECK(static_cast<int64_t>(out.size()) == row_count * blocks, "tensor ", tensor.name, ": ",
               out.size(), " blocks for ", row_count, " rows");
  Q4KBlock* next = out.data();
  for (int64_t i = 0; i < row_count; ++i) {
    const std::byte* row = tensor.data + FileRow(tensor, row_begin + i) * tensor.row_bytes;
    for (int64_t b = 0; b < blocks; ++b) *next++ = UnpackQ4K(row + b * kQ4KStoredBytes);
  }
}

bool HasFp8Rows(const StoredTensor& tensor) {
  return tensor.type == TensorType::kF8E4M3 && tensor.scales.columns >= tensor.columns &&
         !tensor.add_one;
}

Fp8Row ReadFp8Row(const StoredTensor& tensor, int64_t row) {
  TANDEM_CHECK(HasFp8Rows(tensor), "tensor ", tensor.name);
  CheckRows(tensor, row, 1);
  const int64_t file_row = FileRow(tensor, row);
  return {reinterpret_cast<const uint8_t*>(tensor.data + file_row * tensor.row_bytes),
          tensor.scales.values[static_cast<size_t>(file_row / tensor.scales.rows)]};
}

absl::Status CheckCodes(const StoredTensor& tensor, int64_t row_begin, int64_t row_count) {
  CheckRows(tensor, row_begin, row_count);
  if (tensor.type != TensorType::kF8E4M3) return absl::OkStatus();
  for (int64_t row = row_begin; row < row_begin + row_count; ++row) {
    const std::byte* begin = tensor.data + FileRow(tensor, row) * tensor.row_bytes;
    const std::byte* end = begin + tensor.row_bytes;
    const std::byte* found = std::find_if(begin, end, IsNoNumber);
    if (found == end) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.name, ": row ", row, ", column ", found - begin, " is 0x",
                     absl::Hex(static_cast<unsigned>(*found)),
                     ", which in F8_E4M3 is no number; numbers expected"));
  }
  return absl::OkStatus();
}

absl::Status ValidateConfig(const ModelConfig& config) {
  RETURN_IF_ERROR(InRange("the number of layers", config.num_layers, kLayersMax));
  RETURN_IF_ERROR(InRange("the hidden size", config.hidden_size, kWidthMax));
  RETURN_IF_ERROR(InRange("the number of heads", config.num_heads, kWidthMax));
  RETURN_IF_ERROR(InRange("the number of KV heads", config.num_kv_heads, config.num_heads));
  RETURN_IF_ERROR(InRange("the FFN size", config.ffn_size, kWidthMax));
  RETURN_IF_ERROR(InRange("the vocabulary size", config.vocab_size, kVocabularyMax));
  RETURN_IF_ERROR(InRange("the context length", config.context_tokens, 1 << 30));
  if (config.num_heads % config.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(config.num_heads, " heads cannot share ",
                                                   config.num_kv_heads, " KV heads evenly"));
  }
  if (config.head_dim < 1 || config.head_dim > kHeadDimMax ||
      config.head_dim % kHeadDimMultiple != 0) {
    return absl::UnimplementedError(absl::StrCat("head_dim ", config.head_dim, "; multiples of ",
                                                 kHeadDimMultiple, " up to ", kHeadDimMax,
                                                 " are supported"));
  }
  RETURN_IF_ERROR(Positive("the RMSNorm epsilon", config.rms_norm_eps));
  RETURN_IF_ERROR(Positive("the embedding scale", config.embedding_scale));
  RETURN_IF_ERROR(Positive("the attention scale", config.attention_scale));
  TANDEM_CHECK(config.layers.size() == static_cast<size_t>(config.num_layers), "layers");
  for (const LayerConfig& layer : config.layers) {
    RETURN_IF_ERROR(ValidateLayer(layer, config.head_dim));
  }
  return absl::OkStatus();
}

bool IsTurnEnd(absl::string_view token) {
  for (const absl::string_view name : {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>"}) {
    if (token == name) return true;
  }
  return false;
}

LoadedCheckpoint::LoadedCheckpoint(Parts parts)
    : parts_(std::move(parts)), fingerprint_(Fingerprint(parts_.config, parts_.tensors.tensors())) {
  for (const std::unique_ptr<MappedFile>& file : parts_.files) {
    if (file->modified_ns().has_value()) {
      files_.push_back(
          {file->path(), static_cast<int64_t>(file->bytes().size()), *file->modified_ns()});
    }
  }
  std::vector<int32_t>& ids = parts_.stop_token_ids;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return OpenHuggingFaceCheckpoint(path);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = OpenGgufCheckpoint(std::move(file));
  if (!checkpoint.ok()) {
    return absl::Status(checkpoint.status().code(),
                        absl::StrCat(path, ": ", checkpoint.status().message()));
  }
  return checkpoint;
}

}  // namespace tandem::model
