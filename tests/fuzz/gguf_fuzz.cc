// Goal: any bytes opened as a GGUF checkpoint give a Status, or a checkpoint all of whose rows can
// be read.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/model/gguf_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tandem::model::MappedFile;
  using tandem::model::ModelConfig;
  using tandem::model::StoredTensor;
  using tandem::model::TensorRole;
  auto file = MappedFile::FromMemory("fuzz", std::string(data, data + size));
  const auto checkpoint = tandem::model::OpenGgufCheckpoint(std::move(file));
  if (!checkpoint.ok()) return 0;
  const ModelConfig& config = (*checkpoint)->config();
  std::vector<float> row;
  for (int layer = -1; layer < config.num_layers; ++layer) {
    for (int role = 0; role <= static_cast<int>(TensorRole::kDown); ++role) {
      const StoredTensor* tensor = (*checkpoint)->Find(static_cast<TensorRole>(role), layer);
      if (tensor == nullptr) continue;
      row.resize(static_cast<size_t>(tensor->columns));
      for (int64_t i = 0; i < tensor->rows; ++i) ReadRows(*tensor, i, 1, absl::MakeSpan(row));
    }
  }
  return 0;
}
