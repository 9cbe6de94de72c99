#include "common/engine/rope_table.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/rope_frequencies.h"

namespace tandem::engine {
namespace {

RopeTable MakeTable(const model::LayerConfig& layer, int32_t head_dim, int64_t context_tokens) {
  const std::vector<double> frequencies = model::RopeInverseFrequencies(layer, head_dim);
  const double magnitude = layer.rope_scaling.kind == model::RopeScaling::Kind::kYarn
                               ? layer.rope_scaling.attention_factor
                               : 1.0;
  RopeTable table;
  table.cos.reserve(frequencies.size() * static_cast<size_t>(context_tokens));
  table.sin.reserve(frequencies.size() * static_cast<size_t>(context_tokens));
  for (int64_t position = 0; position < context_tokens; ++position) {
    for (double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      table.cos.push_back(static_cast<float>(magnitude * std::cos(angle)));
      table.sin.push_back(static_cast<float>(magnitude * std::sin(angle)));
    }
  }
  return table;
}

// A layer of each kind that has a table of its own, and each layer's place among them.
struct DistinctLayers {
  std::vector<const model::LayerConfig*> layers;
  std::vector<size_t> place_of_layer;  // [num_layers]
};

DistinctLayers FindDistinct(const model::ModelConfig& config) {
  DistinctLayers distinct;
  for (const model::LayerConfig& layer : config.layers) {
    size_t place = 0;
    while (place < distinct.layers.size() && !model::SameRope(*distinct.layers[place], layer)) {
      ++place;
    }
    if (place == distinct.layers.size()) distinct.layers.push_back(&layer);
    distinct.place_of_layer.push_back(place);
  }
  return distinct;
}

// Of this machine.
int64_t MemoryBytes() {
  return static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
}

}  // namespace

absl::Status CheckRopeTables(const model::ModelConfig& config, int64_t context_tokens) {
  // A cosine and a sine for each pair of dimensions.
  const int64_t token_bytes = static_cast<int64_t>(FindDistinct(config).layers.size()) *
                              config.head_dim * static_cast<int64_t>(sizeof(float));
  const int64_t most = std::min(kRopeTableBytesMax, MemoryBytes() / 2);
  if (context_tokens * token_bytes <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the tables of rotary angles for a context of ", context_tokens, " tokens take ",
      context_tokens * token_bytes, " bytes, and may take ", most,
      " (16 GiB, or half of the machine's memory): expected a --context-tokens of at most ",
      most / token_bytes));
}

RopeTables::RopeTables(const model::ModelConfig& config, int64_t context_tokens) {
  DistinctLayers distinct = FindDistinct(config);
  for (const model::LayerConfig* layer : distinct.layers) {
    tables_.push_back(MakeTable(*layer, config.head_dim, context_tokens));
  }
  table_of_layer_ = std::move(distinct.place_of_layer);
}

}  // namespace tandem::engine
