// Which tensors an architecture consists of, what files call them, and where each was found.
// Thread safety: const methods from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"

namespace tandem::model {

enum class TensorNaming { kGguf, kHuggingFace };

// A tensor found in a file, before its role is known. `shape` is slowest dimension first.
struct FileTensor {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  TensorScales scales;  // kF8E4M3, once they were found (hf_quantization.h)
};

// A tensor that `config` calls for. `columns` alone for vectors (rows = 0).
struct ExpectedTensor {
  TensorRole role = TensorRole::kTokenEmbedding;
  int layer = -1;
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
};
std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config, TensorNaming naming);

class TensorTable {
 public:
  // Gives every tensor its role. Errors: kInvalidArgument for a tensor that is missing, occurs
  // twice or has another shape (naming it, expected and found); kUnimplemented for one that the
  // architecture has no place for.
  static absl::StatusOr<TensorTable> Bind(const ModelConfig& config, TensorNaming naming,
                                          const std::vector<FileTensor>& found);

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
