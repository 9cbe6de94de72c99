// Which tensors a model consists of and where in a checkpoint's files each one is. A loader binds a
// table to check that a checkpoint has every tensor that the model needs and no other. Thread
// safety: const methods from any thread. Owner: the Checkpoint, whose mapped files the tensors
// point into.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/architecture/architecture.h"
#include "common/model/model_config.h"
#include "common/model/stored_tensor.h"

namespace tandem::model {

// A tensor found in a file, before its role is known. `shape` is slowest dimension first.
struct FileTensor {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  TensorScales scales;  // kF8E4M3, set by AttachScales (hf_quantization.h)
};

// A tensor that `config` calls for. `columns` alone for vectors (rows = 0).
struct ExpectedTensor {
  TensorRole role = TensorRole::kTokenEmbedding;
  int layer = -1;
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
};
// The tensors of the model, in a fixed order that fingerprints depend on.
std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config,
                                            const Architecture& architecture,
                                            CheckpointFormat format);

class TensorTable {
 public:
  // Gives every tensor its role. Errors: kInvalidArgument for a tensor that is missing, occurs
  // twice or has another shape (naming it, expected and found); kUnimplemented for a tensor without
  // a role in the architecture.
  static absl::StatusOr<TensorTable> Bind(const ModelConfig& config,
                                          const Architecture& architecture, CheckpointFormat format,
                                          const std::vector<FileTensor>& found);

  // nullptr if there is none; `layer` is -1 for roles that are not per layer.
  const StoredTensor* Find(TensorRole role, int layer) const;
  // In the order of ExpectedTensors.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

 private:
  std::vector<StoredTensor> tensors_;
  // Index into tensors_ by layer + 1 and role; -1 where there is none.
  std::vector<std::vector<int32_t>> index_;
};

// "[576, 1536]", as errors show shapes.
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace tandem::model
