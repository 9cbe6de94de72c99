// Goal: any text parsed as config.json or as a shard index gives a Status, or a configuration that
// passes its own checks.
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "common/model/hf_config.h"
#include "common/model/rope_frequencies.h"
#include "common/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = tandem::model::ParseShardIndex(text);
  if (index.ok()) {
    for (const auto& [name, file] : index->tensors) {
      if (file >= index->files.size()) std::abort();
    }
  }
  const auto config = tandem::model::ParseHuggingFaceConfig(text);
  if (!config.ok()) return 0;
  if (!tandem::model::ValidateConfig(*config).ok()) std::abort();
  for (const tandem::model::LayerConfig& layer : config->layers) {
    tandem::model::RopeInverseFrequencies(layer, config->head_dim);
  }
  return 0;
}
