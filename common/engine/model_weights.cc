#include "common/engine/model_weights.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace tandem::engine {
namespace {

using model::StoredTensor;
using model::TensorRole;

// Rows that one task dequantises and packs: whole panels of 16, small enough to stay in L2.
constexpr int64_t kRowsPerTask = 64;

// Rows of gate, then as many of up: half the panel of a dot product's weights.
constexpr int64_t kInterleave = 16;

// Rows of one stored tensor bound for a place in a packed matrix.
struct PackJob {
  const StoredTensor* tensor;  // nullptr: zero rows
  int64_t first_row;           // in the tensor
  int64_t num_rows;
  const Projection* projection;
  void* packed;
  int64_t packed_row;  // of first_row
};

// Gathers what must be packed, then packs it with all threads.
class WeightLoader {
 public:
  WeightLoader(const model::Checkpoint& checkpoint, const kernels::Backend& backend,
               WeightFormat format)
      : checkpoint_(checkpoint), backend_(backend), format_(format) {}

  // A vector, or an empty one where the architecture has none.
  std::vector<float> Vector(TensorRole role, int layer) const {
    const StoredTensor* tensor = checkpoint_.Find(role, layer);
    if (tensor == nullptr) return {};
    std::vector<float> values(static_cast<size_t>(tensor->rows * tensor->columns));
    model::ReadRows(*tensor, 0, tensor->rows, absl::MakeSpan(values));
    return values;
  }

  // Plans the fusion of `roles`, rows one after another, into `projection`, whose address must
  // stay.
  void Plan(std::initializer_list<TensorRole> roles, int layer, Projection* projection) {
    bool all_bf16 = true;
    for (TensorRole role : roles) {
      const StoredTensor& tensor = Find(role, layer);
      all_bf16 = all_bf16 && tensor.type == model::TensorType::kBF16;
      projection->shape.n += tensor.rows;
      projection->shape.k = tensor.columns;
    }
    Allocate(all_bf16, projection);
    int64_t packed_row = 0;
    for (TensorRole role : roles) {
      const StoredTensor& tensor = Find(role, layer);
      PlanRows({&tensor, 0, tensor.rows, projection, projection->packed.data(), packed_row});
      packed_row += tensor.rows;
    }
  }

  // Plans gate and up in turns of kInterleave rows.
  void PlanInterleaved(int layer, Projection* projection) {
    const StoredTensor& gate = Find(TensorRole::kGate, layer);
    const StoredTensor& up = Find(TensorRole::kUp, layer);
    const int64_t turns = (gate.rows + kInterleave - 1) / kInterleave;
    projection->shape.n = 2 * turns * kInterleave;
    projection->shape.k = gate.columns;
    Allocate(true, projection);
    int64_t packed_row = 0;
    for (int64_t turn = 0; turn < turns; ++turn) {
      for (const StoredTensor* tensor : {&gate, &up}) {
        const int64_t row = turn * kInterleave;
        const int64_t rows = std::min(kInterleave, tensor->rows - row);
        void* packed = projection->packed.data();
        jobs_.push_back({tensor, row, rows, projection, packed, packed_row});
        if (rows < kInterleave) {
          jobs_.push_back({nullptr, 0, kInterleave - rows, projection, packed, packed_row + rows});
        }
        packed_row += kInterleave;
      }
    }
  }

  void Pack(const kernels::ParallelFor& parallel) const {
    parallel(static_cast<int64_t>(jobs_.size()), [this](int64_t task, int) {
      const PackJob& job = jobs_[static_cast<size_t>(task)];
      std::vector<float> rows(static_cast<size_t>(job.num_rows * job.projection->shape.k));
      if (job.tensor != nullptr) {
        model::ReadRows(*job.tensor, job.first_row, job.num_rows, absl::MakeSpan(rows));
      }
      backend_.pack_rows(
          {job.projection->shape, job.packed_row, job.num_rows, rows.data(), job.packed});
    });
  }

 private:
  const StoredTensor& Find(TensorRole role, int layer) const {
    const StoredTensor* tensor = checkpoint_.Find(role, layer);
    TANDEM_CHECK(tensor != nullptr, model::TensorRoleName(role), " of layer ", layer);
    return *tensor;
  }
  void Allocate(bool stored_bf16, Projection* projection) const {
    const bool bf16 = format_ == WeightFormat::kBf16 ||
                      (format_ == WeightFormat::kAuto && (stored_bf16 || backend_.dot_products));
    projection->shape.type = format_ == WeightFormat::kInt8 ? kernels::WeightType::kInt8
                             : bf16                         ? kernels::WeightType::kBf16
                                                            : kernels::WeightType::kF32;
    projection->packed = AlignedBuffer(backend_.packed_bytes(projection->shape));
  }
  void PlanRows(PackJob job) {
    for (int64_t left = job.num_rows; left > 0; left -= job.num_rows) {
      job.num_rows = std::min(kRowsPerTask, left);
      jobs_.push_back(job);
      job.first_row += job.num_rows;
      job.packed_row += job.num_rows;
    }
  }

  const model::Checkpoint& checkpoint_;
  const kernels::Backend& backend_;
  const WeightFormat format_;
  std::vector<PackJob> jobs_;
};

void PlanLayer(const model::ModelConfig& config, int layer, WeightLoader* loader,
               LayerWeights* weights, bool interleave) {
  weights->attention_norm = loader->Vector(TensorRole::kAttentionNorm, layer);
  weights->post_attention_norm = loader->Vector(TensorRole::kPostAttentionNorm, layer);
  weights->ffn_norm = loader->Vector(TensorRole::kFfnNorm, layer);
  weights->post_ffn_norm = loader->Vector(TensorRole::kPostFfnNorm, layer);
  weights->q_norm = loader->Vector(TensorRole::kQNorm, layer);
  weights->k_norm = loader->Vector(TensorRole::kKNorm, layer);
  loader->Plan({TensorRole::kQ, TensorRole::kK, TensorRole::kV}, layer, &weights->qkv);
  loader->Plan({TensorRole::kO}, layer, &weights->o);
  if (interleave) {
    loader->PlanInterleaved(layer, &weights->gate_up);
  } else {
    loader->Plan({TensorRole::kGate, TensorRole::kUp}, layer, &weights->gate_up);
  }
  loader->Plan({TensorRole::kDown}, layer, &weights->down);
  weights->o.bias = loader->Vector(TensorRole::kOBias, layer);
  if (!config.attention_bias) return;
  for (TensorRole role : {TensorRole::kQBias, TensorRole::kKBias, TensorRole::kVBias}) {
    const std::vector<float> bias = loader->Vector(role, layer);
    weights->qkv.bias.insert(weights->qkv.bias.end(), bias.begin(), bias.end());
  }
}

}  // namespace

ModelWeights::ModelWeights(const model::Checkpoint& checkpoint, const kernels::Backend& backend,
                           const kernels::ParallelFor& parallel, WeightFormat format)
    : dot_products_(backend.dot_products && format != WeightFormat::kF32 &&
                    format != WeightFormat::kInt8),
      fused_gate_(dot_products_ || format == WeightFormat::kInt8) {
  const model::ModelConfig& config = checkpoint.config();
  WeightLoader loader(checkpoint, backend, format);
  layers_.resize(static_cast<size_t>(config.num_layers));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    PlanLayer(config, layer, &loader, &layers_[static_cast<size_t>(layer)], fused_gate_);
  }
  final_norm_ = loader.Vector(TensorRole::kFinalNorm, -1);
  loader.Plan({config.tied_embeddings ? TensorRole::kTokenEmbedding : TensorRole::kOutput}, -1,
              &output_);
  loader.Pack(parallel);
  embedding_ = *checkpoint.Find(TensorRole::kTokenEmbedding, -1);
  embedding_bytes_.assign(embedding_.data,
                          embedding_.data + embedding_.rows * embedding_.row_bytes);
  embedding_.data = embedding_bytes_.data();
}

void ModelWeights::ReadEmbedding(TokenId token, absl::Span<float> out) const {
  model::ReadRows(embedding_, token, 1, out);
}

std::string ModelWeights::TypeNames() const {
  if (output_.shape.type == kernels::WeightType::kInt8) return "int8";
  bool any_f32 = output_.shape.type == kernels::WeightType::kF32;
  bool any_bf16 = !any_f32;
  for (const LayerWeights& layer : layers_) {
    for (const Projection* p : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      (p->shape.type == kernels::WeightType::kF32 ? any_f32 : any_bf16) = true;
    }
  }
  return any_f32 && any_bf16 ? "bf16+f32" : (any_f32 ? "f32" : "bf16");
}

int64_t ModelWeights::bytes() const {
  size_t bytes = output_.packed.bytes() + embedding_bytes_.size();
  for (const LayerWeights& layer : layers_) {
    for (const Projection* p : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      bytes += p->packed.bytes();
    }
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace tandem::engine
