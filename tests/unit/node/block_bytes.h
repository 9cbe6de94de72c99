// The bytes of a KV block, over all layers, for storages that tests play.
#pragma once

#include <algorithm>
#include <string>

#include "absl/strings/string_view.h"
#include "common/engine/engine.h"

namespace tandem::node {

inline std::string BytesOf(engine::Engine& engine, BlockId block) {
  std::string bytes;
  for (int layer = 0; layer < engine.spec().layout.num_layers; ++layer) {
    const auto cell = engine.arena().Block(layer, block);
    bytes.append(reinterpret_cast<const char*>(cell.data()), cell.size());
  }
  return bytes;
}

inline void SetBytes(engine::Engine& engine, BlockId block, absl::string_view bytes) {
  for (int layer = 0; layer < engine.spec().layout.num_layers; ++layer) {
    const auto cell = engine.arena().Block(layer, block);
    std::copy_n(bytes.data(), cell.size(), reinterpret_cast<char*>(cell.data()));
    bytes.remove_prefix(cell.size());
  }
}

}  // namespace tandem::node
