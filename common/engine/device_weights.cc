#include "common/engine/device_weights.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/engine/rope_table.h"

namespace tandem::engine {
namespace {

using kernels::DeviceBuffer;
using model::StoredTensor;
using model::TensorRole;

// Pinned memory that weights pass through; several times what one task dequantises.
constexpr size_t kStagingBytes = size_t{16} << 20;
constexpr int64_t kRowsPerTask = 16;

kernels::Bf16Bits RoundToBf16(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<kernels::Bf16Bits>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

class Loader {
 public:
  Loader(const model::Checkpoint& checkpoint, kernels::Device& device,
         kernels::DeviceStream& stream, const kernels::ParallelFor& parallel)
      : checkpoint_(checkpoint), device_(device), stream_(stream), parallel_(parallel) {}

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

  // `roles` of one input size, rows one after another.
  absl::StatusOr<DeviceMatrix> Matrix(std::initializer_list<TensorRole> roles, int layer) {
    DeviceMatrix matrix;
    for (TensorRole role : roles) {
      const StoredTensor* tensor = checkpoint_.Find(role, layer);
      TANDEM_CHECK(tensor != nullptr, model::TensorRoleName(role), " of layer ", layer);
      matrix.n += static_cast<int32_t>(tensor->rows);
      matrix.k = static_cast<int32_t>(tensor->columns);
    }
    const size_t row_bytes = static_cast<size_t>(matrix.k) * sizeof(kernels::Bf16Bits);
    ASSIGN_OR_RETURN(matrix.values, device_.Allocate(DeviceBuffer::Kind::kDevice,
                                                     static_cast<size_t>(matrix.n) * row_bytes));
    char* to = matrix.values.data();
    for (TensorRole role : roles) {
      const StoredTensor& tensor = *checkpoint_.Find(role, layer);
      RETURN_IF_ERROR(UploadRows(tensor, to));
      to += static_cast<size_t>(tensor.rows) * row_bytes;
    }
    return matrix;
  }

 private:
  absl::Status UploadRows(const StoredTensor& tensor, char* to) {
    const size_t row_bytes = static_cast<size_t>(tensor.columns) * sizeof(kernels::Bf16Bits);
    const int64_t rows_at_once = static_cast<int64_t>(staging_.bytes() / row_bytes);
    TANDEM_CHECK(rows_at_once > 0, "a row of ", row_bytes, " bytes");
    for (int64_t first = 0; first < tensor.rows; first += rows_at_once) {
      const int64_t rows = std::min(rows_at_once, tensor.rows - first);
      parallel_((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
        const int64_t begin = task * kRowsPerTask;
        const int64_t count = std::min(kRowsPerTask, rows - begin);
        std::vector<float> values(static_cast<size_t>(count * tensor.columns));
        model::ReadRows(tensor, first + begin, count, absl::MakeSpan(values));
        auto* staged = staging_.as<kernels::Bf16Bits>() + begin * tensor.columns;
        std::transform(values.begin(), values.end(), staged, RoundToBf16);
      });
      const size_t bytes = static_cast<size_t>(rows) * row_bytes;
      stream_.CopyIn(to + static_cast<size_t>(first) * row_bytes, staging_.data(), bytes);
      RETURN_IF_ERROR(stream_.Synchronize());
    }
    return absl::OkStatus();
  }

  const model::Checkpoint& checkpoint_;
  kernels::Device& device_;
  kernels::DeviceStream& stream_;
  const kernels::ParallelFor parallel_;
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
  ASSIGN_OR_RETURN(w.gate_up, loader->Matrix({TensorRole::kGate, TensorRole::kUp}, layer));
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

absl::StatusOr<DeviceWeights> LoadDeviceWeights(const model::Checkpoint& checkpoint,
                                                const DeviceWeightsOptions& options,
                                                kernels::Device& device,
                                                kernels::DeviceStream& stream,
                                                const kernels::ParallelFor& parallel) {
  const model::ModelConfig& config = checkpoint.config();
  Loader loader(checkpoint, device, stream, parallel);
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
  ASSIGN_OR_RETURN(weights.embedding, loader.Matrix({TensorRole::kTokenEmbedding}, -1));
  if (!config.tied_embeddings) {
    ASSIGN_OR_RETURN(weights.output, loader.Matrix({TensorRole::kOutput}, -1));
  }
  return weights;
}

}  // namespace tandem::engine
