#include "common/engine/rope_table.h"

#include <cmath>

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

}  // namespace

RopeTables::RopeTables(const model::ModelConfig& config, int64_t context_tokens) {
  std::vector<const model::LayerConfig*> distinct;
  for (const model::LayerConfig& layer : config.layers) {
    size_t table = 0;
    while (table < distinct.size() && !model::SameRope(*distinct[table], layer)) ++table;
    if (table == distinct.size()) {
      distinct.push_back(&layer);
      tables_.push_back(MakeTable(layer, config.head_dim, context_tokens));
    }
    table_of_layer_.push_back(table);
  }
}

}  // namespace tandem::engine
