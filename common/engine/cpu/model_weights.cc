#include "common/engine/cpu/model_weights.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem::engine {
namespace {

using model::StoredTensor;
using model::TensorRole;

// Rows that one task dequantises and packs: whole panels of 16, small enough to stay in L2.
constexpr int64_t kRowsPerTask = 64;

// Rows of gate, then as many of up: half the panel of a dot product's weights.
constexpr int64_t kInterleave = 16;

// Rows of one stored tensor, and their place in a packed matrix.
struct PackJob {
  const StoredTensor* tensor;  // nullptr: zero rows
  int64_t first_row;           // in the tensor
  int64_t num_rows;
  Projection* projection;
  int64_t packed_row;  // of first_row
};

// The version of the layout. It changes whenever the same tensors get other places.
constexpr char kPlanVersion[] = "1";
// Packed matrices begin on cache lines; a page apart they do not share one.
constexpr size_t kAlignment = 4096;

// Plans which rows go where, then packs them with all threads.
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
    std::vector<const StoredTensor*> tensors;
    for (TensorRole role : roles) {
      const StoredTensor& tensor = Find(role, layer);
      tensors.push_back(&tensor);
      projection->shape.n += tensor.rows;
      projection->shape.k = tensor.columns;
    }
    Place(tensors, /*output=*/layer < 0, projection);
    int64_t packed_row = 0;
    for (TensorRole role : roles) {
      const StoredTensor& tensor = Find(role, layer);
      PlanRows({&tensor, 0, tensor.rows, projection, packed_row});
      packed_row += tensor.rows;
    }
  }

  // Plans gate and up alternately, kInterleave rows at a time.
  void PlanInterleaved(int layer, Projection* projection) {
    const StoredTensor& gate = Find(TensorRole::kGate, layer);
    const StoredTensor& up = Find(TensorRole::kUp, layer);
    const int64_t rounds = (gate.rows + kInterleave - 1) / kInterleave;
    projection->shape.n = 2 * rounds * kInterleave;
    projection->shape.k = gate.columns;
    Place({&gate, &up}, /*output=*/false, projection);
    int64_t packed_row = 0;
    for (int64_t round = 0; round < rounds; ++round) {
      for (const StoredTensor* tensor : {&gate, &up}) {
        const int64_t row = round * kInterleave;
        const int64_t rows = std::min(kInterleave, tensor->rows - row);
        jobs_.push_back({tensor, row, rows, projection, packed_row});
        if (rows < kInterleave) {
          jobs_.push_back({nullptr, 0, kInterleave - rows, projection, packed_row + rows});
        }
        packed_row += kInterleave;
      }
    }
  }

  // Reserves space for the embedding's rows in their stored form. A step reads them one at a time.
  void PlanEmbedding(StoredTensor* embedding) {
    *embedding = Find(TensorRole::kTokenEmbedding, -1);
    embedding_offset_ = Reserve(static_cast<size_t>(embedding->rows * embedding->row_bytes));
  }

  // The storage that the plan needs. REQUIRES: everything is planned.
  WeightCacheSubject Subject() const {
    WeightCacheSubject subject;
    subject.backend = &backend_;
    subject.bytes = bytes_;
    absl::StrAppend(&subject.plan, kPlanVersion);
    std::set<kernels::WeightType> types;
    for (const auto& [projection, offset] : places_) types.insert(projection->shape.type);
    for (const PackJob& job : jobs_) {
      absl::StrAppend(&subject.plan, "\n", job.tensor == nullptr ? "" : job.tensor->name, " ",
                      job.first_row, " ", job.num_rows, " ",
                      WeightTypeName(job.projection->shape.type), " ", job.projection->shape.k, " ",
                      job.packed_row);
    }
    subject.types.assign(types.begin(), types.end());
    std::vector<absl::string_view> names;
    for (const kernels::WeightType type : subject.types) names.push_back(WeightTypeName(type));
    std::sort(names.begin(), names.end());
    subject.format = absl::StrCat(format_ == WeightFormat::kAsStored ? "stored-" : "",
                                  absl::StrJoin(names, "+"));
    return subject;
  }

  // Fills `storage`. Errors: model::CheckCodes'. REQUIRES: Subject().bytes, zeros.
  absl::Status Pack(char* storage, const kernels::ParallelFor& parallel) {
    Bind(storage);
    absl::Mutex mutex;
    absl::Status status;  // of some job that failed
    parallel(static_cast<int64_t>(jobs_.size()), [&](int64_t task, int) {
      const PackJob& job = jobs_[static_cast<size_t>(task)];
      if (job.tensor != nullptr) {
        const absl::Status checked = model::CheckCodes(*job.tensor, job.first_row, job.num_rows);
        if (!checked.ok()) {
          const absl::MutexLock lock(&mutex);
          status = checked;
          return;
        }
      }
      const auto offset = static_cast<const char*>(job.projection->packed) - storage;
      PackOne(job, storage + offset);
    });
    RETURN_IF_ERROR(status);
    const StoredTensor& embedding = Find(TensorRole::kTokenEmbedding, -1);
    std::memcpy(storage + embedding_offset_, embedding.data,
                static_cast<size_t>(embedding.rows * embedding.row_bytes));
    return model::CheckCodes(embedding, 0, embedding.rows);
  }

  // Points the projections into `storage`, filled by Pack, and returns where the embedding lies.
  const std::byte* Bind(const void* storage) const {
    const char* bytes = static_cast<const char*>(storage);
    for (const auto& [projection, offset] : places_) projection->packed = bytes + offset;
    return reinterpret_cast<const std::byte*>(bytes + embedding_offset_);
  }

 private:
  void PackOne(const PackJob& job, char* packed) const {
    kernels::PackRowsArgs args;
    args.shape = job.projection->shape;
    args.first_row = job.packed_row;
    args.num_rows = job.num_rows;
    args.packed = packed;
    std::vector<float> rows;
    std::vector<kernels::Int4Group> groups;
    std::vector<kernels::Q4KBlock> blocks;
    if (args.shape.type == kernels::WeightType::kQ4K) {
      ReadQ4K(job, &blocks);
      args.blocks = blocks.data();
    } else if (format_ == WeightFormat::kAsStored &&
               args.shape.type == kernels::WeightType::kInt4) {
      static_assert(sizeof(kernels::Int4Group) == model::kInt4BlockBytes);
      groups.resize(static_cast<size_t>(job.num_rows * args.shape.k / model::kInt4BlockWeights));
      if (job.tensor != nullptr) {
        model::ReadInt4Blocks(*job.tensor, job.first_row, job.num_rows,
                              absl::MakeSpan(reinterpret_cast<std::byte*>(groups.data()),
                                             groups.size() * sizeof(kernels::Int4Group)));
      }
      args.groups = groups.data();
    } else {
      rows.resize(static_cast<size_t>(job.num_rows * args.shape.k));
      if (job.tensor != nullptr) {
        model::ReadRows(*job.tensor, job.first_row, job.num_rows, absl::MakeSpan(rows));
      }
      args.rows = rows.data();
    }
    backend_.pack_rows(args);
  }
  static void ReadQ4K(const PackJob& job, std::vector<kernels::Q4KBlock>* blocks) {
    std::vector<model::Q4KBlock> stored(
        static_cast<size_t>(job.num_rows * job.projection->shape.k / model::kQ4KBlockWeights));
    if (job.tensor != nullptr) {
      model::ReadQ4KBlocks(*job.tensor, job.first_row, job.num_rows, absl::MakeSpan(stored));
    }
    static_assert(sizeof(kernels::Q4KBlock) == sizeof(model::Q4KBlock));
    blocks->resize(stored.size());
    std::memcpy(blocks->data(), stored.data(), stored.size() * sizeof(model::Q4KBlock));
  }
  const StoredTensor& Find(TensorRole role, int layer) const {
    const StoredTensor* tensor = checkpoint_.Find(role, layer);
    TANDEM_CHECK(tensor != nullptr, model::TensorRoleName(role), " of layer ", layer);
    return *tensor;
  }
  size_t Reserve(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
  void Place(const std::vector<const StoredTensor*>& tensors, bool output, Projection* projection) {
    projection->shape.type = PackedType(format_, backend_, tensors, output);
    places_.emplace_back(projection, Reserve(backend_.packed_bytes(projection->shape)));
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
  std::vector<std::pair<Projection*, size_t>> places_;  // offsets in the storage
  size_t embedding_offset_ = 0;
  size_t bytes_ = 0;
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
                           const LoadThreads& threads, WeightFormat format,
                           const WeightCacheOptions& cache_options)
    : dot_products_(backend.dot_products && format != WeightFormat::kF32 &&
                    !HasExactProducts(format)),
      fused_gate_(dot_products_ || HasExactProducts(format)) {
  const model::ModelConfig& config = checkpoint.config();
  WeightLoader loader(checkpoint, backend, format);
  layers_.resize(static_cast<size_t>(config.num_layers));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    PlanLayer(config, layer, &loader, &layers_[static_cast<size_t>(layer)], fused_gate_);
  }
  final_norm_ = loader.Vector(TensorRole::kFinalNorm, -1);
  loader.Plan({config.tied_embeddings ? TensorRole::kTokenEmbedding : TensorRole::kOutput}, -1,
              &output_);
  loader.PlanEmbedding(&embedding_);
  const WeightCacheSubject subject = loader.Subject();
  bytes_ = static_cast<int64_t>(subject.bytes);
  type_names_ = subject.format;
  const WeightCache cache(checkpoint, cache_options, subject);
  mapped_ = cache.Find(LoadStage(threads, "checking").parallel());
  if (mapped_ == nullptr) {
    own_ = AlignedBuffer(subject.bytes);
    status_ =
        loader.Pack(static_cast<char*>(own_.data()), LoadStage(threads, "packing").parallel());
    if (!status_.ok()) return;
    mapped_ = cache.Keep({static_cast<const std::byte*>(own_.data()), subject.bytes},
                         LoadStage(threads, "storing").parallel());
    if (mapped_ != nullptr) own_ = AlignedBuffer();
  }
  embedding_.data = loader.Bind(
      mapped_ != nullptr ? static_cast<const void*>(mapped_->payload().data()) : own_.data());
}

void ModelWeights::ReadEmbedding(TokenId token, absl::Span<float> out) const {
  model::ReadRows(embedding_, token, 1, out);
}

}  // namespace tandem::engine
