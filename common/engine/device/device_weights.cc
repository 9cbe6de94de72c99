#include "common/engine/device/device_weights.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/engine/rope_table.h"
#include "kernels/api/device_matrix.h"

namespace tandem::engine {
namespace {

using kernels::DeviceBuffer;
using kernels::DeviceWeightType;
using model::StoredTensor;
using model::TensorRole;

// Pinned memory that weights pass through; several times what one task dequantises.
constexpr size_t kStagingBytes = size_t{16} << 20;
constexpr int64_t kRowsPerTask = 16;

// The rows of a matrix on the device: those of some tensors one after another, or rows of two
// tensors alternately.
struct RowSources {
  std::vector<const StoredTensor*> tensors;
  bool interleaved = false;

  int64_t rows() const {
    int64_t sum = 0;
    for (const StoredTensor* tensor : tensors) sum += tensor->rows;
    return sum;
  }
  // Reads row `row` of the matrix: calls read(tensor, the tensor's row).
  template <typename Read>
  void Visit(int64_t row, const Read& read) const {
    const int64_t count = static_cast<int64_t>(tensors.size());
    if (interleaved) return read(*tensors[static_cast<size_t>(row % count)], row / count);
    for (const StoredTensor* tensor : tensors) {
      if (row < tensor->rows) return read(*tensor, row);
      row -= tensor->rows;
    }
  }
};

bool HasFourBits(const StoredTensor& tensor) {
  return model::HasInt4Blocks(tensor) || model::HasQ4KBlocks(tensor);
}

bool AllOf(const RowSources& sources, bool (*is_so)(const StoredTensor&)) {
  return std::all_of(sources.tensors.begin(), sources.tensors.end(),
                     [is_so](const StoredTensor* tensor) { return is_so(*tensor); });
}

// Whether the device keeps the file's fp8 codes instead of rounding again.
bool KeepsCodes(DeviceWeightFormat format, const RowSources& sources) {
  return (format == DeviceWeightFormat::kAsStored || format == DeviceWeightFormat::kFp8 ||
          format == DeviceWeightFormat::kFp8Rows) &&
         AllOf(sources, model::HasFp8Rows);
}

DeviceWeightType TypeOf(DeviceWeightFormat format, const RowSources& sources, bool output) {
  const DeviceWeightType fp8 = format == DeviceWeightFormat::kFp8Rows && !output
                                   ? DeviceWeightType::kFp8Rows
                                   : DeviceWeightType::kFp8;
  if (KeepsCodes(format, sources)) return fp8;
  switch (format) {
    case DeviceWeightFormat::kBf16:
      return DeviceWeightType::kBf16;
    case DeviceWeightFormat::kInt8:
      return DeviceWeightType::kInt8;
    case DeviceWeightFormat::kInt4:
      return output ? DeviceWeightType::kInt8 : DeviceWeightType::kInt4;
    case DeviceWeightFormat::kFp8:
    case DeviceWeightFormat::kFp8Rows:
      return output ? DeviceWeightType::kInt8 : fp8;
    case DeviceWeightFormat::kAsStored:
      break;
  }
  return AllOf(sources, HasFourBits) ? DeviceWeightType::kInt4 : DeviceWeightType::kInt8;
}

bool HasMatrixInFp8(const model::Checkpoint& checkpoint) {
  for (int layer = -1; layer < checkpoint.config().num_layers; ++layer) {
    for (TensorRole role :
         {TensorRole::kTokenEmbedding, TensorRole::kOutput, TensorRole::kQ, TensorRole::kK,
          TensorRole::kV, TensorRole::kO, TensorRole::kGate, TensorRole::kUp, TensorRole::kDown}) {
      const StoredTensor* tensor = checkpoint.Find(role, layer);
      if (tensor != nullptr && model::HasFp8Rows(*tensor)) return true;
    }
  }
  return false;
}

// A row's groups of four bits as they are stored. REQUIRES: HasFourBits.
std::vector<kernels::Int4Group> ReadGroups(const StoredTensor& tensor, int64_t row) {
  std::vector<kernels::Int4Group> groups(
      static_cast<size_t>(tensor.columns / model::kInt4BlockWeights));
  static_assert(sizeof(kernels::Int4Group) == model::kInt4BlockBytes);
  static_assert(sizeof(kernels::Q4KBlock) == sizeof(model::Q4KBlock));
  if (model::HasInt4Blocks(tensor)) {
    model::ReadInt4Blocks(tensor, row, 1,
                          absl::MakeSpan(reinterpret_cast<std::byte*>(groups.data()),
                                         groups.size() * sizeof(kernels::Int4Group)));
    return groups;
  }
  std::vector<model::Q4KBlock> blocks(
      static_cast<size_t>(tensor.columns / model::kQ4KBlockWeights));
  model::ReadQ4KBlocks(tensor, row, 1, absl::MakeSpan(blocks));
  for (size_t i = 0; i < blocks.size(); ++i) {
    kernels::Q4KBlock block;
    std::memcpy(&block, &blocks[i], sizeof(block));
    kernels::GroupsOf(block, &groups[i * 8]);
  }
  return groups;
}

class Loader {
 public:
  Loader(const model::Checkpoint& checkpoint, kernels::Device& device,
         kernels::DeviceStream& stream, const kernels::ParallelFor& parallel,
         DeviceWeightFormat format)
      : checkpoint_(checkpoint),
        device_(device),
        stream_(stream),
        parallel_(parallel),
        format_(format) {}

  absl::Status Init() {
    ASSIGN_OR_RETURN(staging_, device_.Allocate(DeviceBuffer::Kind::kPinnedHost, kStagingBytes));
    return absl::OkStatus();
  }

  absl::StatusOr<DeviceBuffer> Upload(const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    ASSIGN_OR_RETURN(DeviceBuffer buffer, device_.Allocate(DeviceBuffer::Kind::kDevice, bytes));
    for (size_t done = 0; done < bytes; done += staging_.bytes()) {
      const size_t part = std::min(staging_.bytes(), bytes - done);
      std::memcpy(staging_.data(), reinterpret_cast<const char*>(values.data()) + done, part);
      stream_.CopyIn(buffer.data() + done, staging_.data(), part);
      RETURN_IF_ERROR(stream_.Synchronize());
    }
    return buffer;
  }

  // A vector, or an empty one where the architecture has none.
  std::vector<float> Values(TensorRole role, int layer) const {
    const StoredTensor* tensor = checkpoint_.Find(role, layer);
    if (tensor == nullptr) return {};
    std::vector<float> values(static_cast<size_t>(tensor->rows * tensor->columns));
    model::ReadRows(*tensor, 0, tensor->rows, absl::MakeSpan(values));
    return values;
  }
  absl::StatusOr<DeviceBuffer> Vector(TensorRole role, int layer) {
    return Upload(Values(role, layer));
  }

  // `roles` of one input size, fused.
  absl::StatusOr<DeviceMatrix> Matrix(std::initializer_list<TensorRole> roles, int layer,
                                      bool interleaved = false) {
    const RowSources sources = Find(roles, layer, interleaved);
    return Upload(sources, TypeOf(format_, sources, layer < 0));
  }
  absl::StatusOr<DeviceMatrix> Bf16Matrix(TensorRole role) {
    return Upload(Find({role}, -1, false), DeviceWeightType::kBf16);
  }

 private:
  RowSources Find(std::initializer_list<TensorRole> roles, int layer, bool interleaved) const {
    RowSources sources;
    sources.interleaved = interleaved;
    for (TensorRole role : roles) {
      const StoredTensor* tensor = checkpoint_.Find(role, layer);
      TANDEM_CHECK(tensor != nullptr, model::TensorRoleName(role), " of layer ", layer);
      sources.tensors.push_back(tensor);
    }
    return sources;
  }

  absl::StatusOr<DeviceMatrix> Upload(const RowSources& sources, DeviceWeightType type) {
    DeviceMatrix matrix;
    matrix.n = static_cast<int32_t>(sources.rows());
    matrix.k = static_cast<int32_t>(sources.tensors.front()->columns);
    matrix.type = type;
    const kernels::DeviceRowBytes bytes = kernels::RowBytesOf(type, matrix.k);
    const size_t rows = static_cast<size_t>(matrix.n);
    ASSIGN_OR_RETURN(matrix.values,
                     device_.Allocate(DeviceBuffer::Kind::kDevice, rows * bytes.values));
    ASSIGN_OR_RETURN(matrix.scales,
                     device_.Allocate(DeviceBuffer::Kind::kDevice, rows * bytes.scales));
    const size_t rows_at_once = staging_.bytes() / (bytes.values + bytes.scales);
    TANDEM_CHECK(rows_at_once > 0, "a row of ", bytes.values, " bytes");
    for (size_t first = 0; first < rows; first += rows_at_once) {
      const size_t count = std::min(rows_at_once, rows - first);
      char* scales = staging_.data() + count * bytes.values;
      const int64_t tasks = (static_cast<int64_t>(count) + kRowsPerTask - 1) / kRowsPerTask;
      absl::Mutex mutex;
      absl::Status status;  // of some row that could not be packed
      parallel_(tasks, [&](int64_t task, int) {
        const size_t begin = static_cast<size_t>(task * kRowsPerTask);
        const size_t end = std::min(begin + static_cast<size_t>(kRowsPerTask), count);
        for (size_t row = begin; row < end; ++row) {
          const absl::Status packed =
              PackRow(sources, static_cast<int64_t>(first + row), matrix,
                      staging_.data() + row * bytes.values, scales + row * bytes.scales);
          if (packed.ok()) continue;
          const absl::MutexLock lock(&mutex);
          status = packed;
        }
      });
      RETURN_IF_ERROR(status);
      stream_.CopyIn(matrix.values.data() + first * bytes.values, staging_.data(),
                     count * bytes.values);
      if (bytes.scales > 0) {
        stream_.CopyIn(matrix.scales.data() + first * bytes.scales, scales, count * bytes.scales);
      }
      RETURN_IF_ERROR(stream_.Synchronize());
    }
    return matrix;
  }

  absl::Status PackRow(const RowSources& sources, int64_t row, const DeviceMatrix& matrix,
                       char* values, char* scales) const {
    kernels::DevicePackArgs args;
    args.type = matrix.type;
    args.k = matrix.k;
    args.values = values;
    args.scales = scales;
    absl::Status status;
    sources.Visit(row, [&](const StoredTensor& tensor, int64_t tensor_row) {
      status = model::CheckCodes(tensor, tensor_row, 1);
      if (!status.ok()) return;
      std::vector<float> floats;
      std::vector<kernels::Int4Group> groups;
      // The embedding is always bf16, whatever type the file stores.
      if (KeepsCodes(format_, sources) && matrix.type != DeviceWeightType::kBf16) {
        const model::Fp8Row stored = model::ReadFp8Row(tensor, tensor_row);
        args.codes = stored.codes;
        args.code_scale = stored.scale;
      } else if (format_ == DeviceWeightFormat::kAsStored &&
                 matrix.type == DeviceWeightType::kInt4) {
        groups = ReadGroups(tensor, tensor_row);
        args.groups = groups.data();
      } else {
        floats.resize(static_cast<size_t>(tensor.columns));
        model::ReadRows(tensor, tensor_row, 1, absl::MakeSpan(floats));
        args.row = floats.data();
      }
      kernels::PackDeviceRow(args);
    });
    return status;
  }

  const model::Checkpoint& checkpoint_;
  kernels::Device& device_;
  kernels::DeviceStream& stream_;
  const kernels::ParallelFor parallel_;
  const DeviceWeightFormat format_;
  DeviceBuffer staging_;
};

absl::StatusOr<DeviceLayerWeights> LoadLayer(const model::ModelConfig& config, int layer,
                                             Loader* loader) {
  DeviceLayerWeights w;
  ASSIGN_OR_RETURN(w.attention_norm, loader->Vector(TensorRole::kAttentionNorm, layer));
  ASSIGN_OR_RETURN(w.post_attention_norm, loader->Vector(TensorRole::kPostAttentionNorm, layer));
  ASSIGN_OR_RETURN(w.ffn_norm, loader->Vector(TensorRole::kFfnNorm, layer));
  ASSIGN_OR_RETURN(w.post_ffn_norm, loader->Vector(TensorRole::kPostFfnNorm, layer));
  ASSIGN_OR_RETURN(w.q_norm, loader->Vector(TensorRole::kQNorm, layer));
  ASSIGN_OR_RETURN(w.k_norm, loader->Vector(TensorRole::kKNorm, layer));
  ASSIGN_OR_RETURN(w.qkv, loader->Matrix({TensorRole::kQ, TensorRole::kK, TensorRole::kV}, layer));
  ASSIGN_OR_RETURN(w.o, loader->Matrix({TensorRole::kO}, layer));
  ASSIGN_OR_RETURN(w.gate_up, loader->Matrix({TensorRole::kGate, TensorRole::kUp}, layer, true));
  ASSIGN_OR_RETURN(w.down, loader->Matrix({TensorRole::kDown}, layer));
  ASSIGN_OR_RETURN(w.o.bias, loader->Vector(TensorRole::kOBias, layer));
  if (config.attention_bias) {
    std::vector<float> bias;
    for (TensorRole role : {TensorRole::kQBias, TensorRole::kKBias, TensorRole::kVBias}) {
      const std::vector<float> part = loader->Values(role, layer);
      bias.insert(bias.end(), part.begin(), part.end());
    }
    ASSIGN_OR_RETURN(w.qkv.bias, loader->Upload(bias));
  }
  return w;
}

}  // namespace

absl::StatusOr<DeviceWeightFormat> ParseDeviceWeights(const std::string& name,
                                                      const kernels::DeviceOps& ops) {
  if (name == "auto" || name == "bf16") return DeviceWeightFormat::kBf16;
  if (name == "int8") return DeviceWeightFormat::kInt8;
  if (name == "int4") return DeviceWeightFormat::kInt4;
  if (name == "as-stored") return DeviceWeightFormat::kAsStored;
  if (name == "fp8" && kernels::HasProducts(ops, DeviceWeightType::kFp8Rows)) {
    return DeviceWeightFormat::kFp8Rows;
  }
  if (name == "fp8" || name == "fp8a16") return DeviceWeightFormat::kFp8;
  return absl::InvalidArgumentError(
      absl::StrCat("weights is \"", name,
                   "\", but a device has auto, bf16, int8, int4, as-stored, fp8 and fp8a16 only"));
}

const char* DeviceWeightFormatName(const model::Checkpoint& checkpoint, DeviceWeightFormat format) {
  switch (format) {
    case DeviceWeightFormat::kBf16:
      return "bf16";
    case DeviceWeightFormat::kInt8:
      return "int8";
    case DeviceWeightFormat::kInt4:
      return "int4+int8";
    case DeviceWeightFormat::kAsStored:
      return HasMatrixInFp8(checkpoint) ? "stored-fp8+int8" : "stored-int4+int8";
    case DeviceWeightFormat::kFp8:
      return "fp8+int8";
    case DeviceWeightFormat::kFp8Rows:
      return "fp8a8+int8";
  }
  return "";
}

absl::StatusOr<DeviceWeights> LoadDeviceWeights(const model::Checkpoint& checkpoint,
                                                const DeviceWeightsOptions& options,
                                                kernels::Device& device,
                                                kernels::DeviceStream& stream,
                                                const kernels::ParallelFor& parallel) {
  const model::ModelConfig& config = checkpoint.config();
  Loader loader(checkpoint, device, stream, parallel, options.format);
  RETURN_IF_ERROR(loader.Init());
  DeviceWeights weights;
  const RopeTables tables(config, options.context_tokens);
  std::vector<const RopeTable*> uploaded;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    ASSIGN_OR_RETURN(DeviceLayerWeights w, LoadLayer(config, layer, &loader));
    const RopeTable* table = &tables.ForLayer(layer);
    const auto known = std::find(uploaded.begin(), uploaded.end(), table);
    w.rope_table = static_cast<size_t>(known - uploaded.begin());
    if (known == uploaded.end()) {
      uploaded.push_back(table);
      DeviceRopeTable& rope = weights.rope.emplace_back();
      ASSIGN_OR_RETURN(rope.cos, loader.Upload(table->cos));
      ASSIGN_OR_RETURN(rope.sin, loader.Upload(table->sin));
    }
    weights.layers.push_back(std::move(w));
  }
  ASSIGN_OR_RETURN(weights.final_norm, loader.Vector(TensorRole::kFinalNorm, -1));
  ASSIGN_OR_RETURN(weights.embedding, loader.Bf16Matrix(TensorRole::kTokenEmbedding));
  if (!config.tied_embeddings || options.format != DeviceWeightFormat::kBf16) {
    const TensorRole role =
        config.tied_embeddings ? TensorRole::kTokenEmbedding : TensorRole::kOutput;
    ASSIGN_OR_RETURN(weights.output, loader.Matrix({role}, -1));
  }
  return weights;
}

}  // namespace tandem::engine
