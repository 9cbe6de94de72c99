// The sizes of one instance's KV cache in memory, in bytes; common/kv knows no element types.
// Each layer has one region, [blocks][layer_block_bytes]. The order of elements inside a block
// is the engine's own (the CPU engine: [num_kv_heads][2][block_tokens][head_dim]), and part of its
// numerics id.
//
// Layers form groups. The layers without a window need the KV of all tokens, so each block has room
// in their regions. The windowed layers need the last window_tokens tokens alone: a block has room
// in their regions only while it has a *window slot* (window_slots.h). A block has one name, and
// is one unit of transfers and loans, whatever it holds.
// Thread safety: a plain value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tandem::kv {

// Layers that keep the KV of the same tokens.
struct LayerGroup {
  std::vector<int32_t> layers;  // ascending
  int64_t bytes = 0;            // of one block, in all layers of the group
  int32_t window = 0;           // tokens that a row looks back, itself included; 0 = all
  friend bool operator==(const LayerGroup&, const LayerGroup&) = default;
};

struct BlockLayout {
  int32_t num_layers = 0;
  int32_t block_tokens = 0;       // divides 256, the attention partition
  int64_t layer_block_bytes = 0;  // bytes of one block of one layer; equal for all layers
  // The layers with a window, ascending; empty: there is one group, of all layers. Not all layers:
  // a model whose layers all have windows keeps all of its KV.
  std::vector<int32_t> windowed_layers;
  int32_t window_tokens = 0;  // the largest of their windows; > 0 when there are some

  int64_t block_bytes() const { return layer_block_bytes * num_layers; }
  bool windowed() const { return !windowed_layers.empty(); }
  bool IsWindowed(int32_t layer) const {
    return std::binary_search(windowed_layers.begin(), windowed_layers.end(), layer);
  }
  // Bytes of one block in the layers with a window, and in the others.
  int64_t window_bytes() const {
    return layer_block_bytes * static_cast<int64_t>(windowed_layers.size());
  }
  int64_t full_bytes() const { return block_bytes() - window_bytes(); }
  // The groups: that without a window, then that with one if there is one.
  std::vector<LayerGroup> Groups() const {
    std::vector<LayerGroup> groups = {{.layers = {}, .bytes = full_bytes()}};
    for (int32_t layer = 0; layer < num_layers; ++layer)
      if (!IsWindowed(layer)) groups[0].layers.push_back(layer);
    if (windowed()) groups.push_back({windowed_layers, window_bytes(), window_tokens});
    return groups;
  }
  // The number of blocks that `tokens` tokens occupy.
  int64_t BlocksFor(int64_t tokens) const { return (tokens + block_tokens - 1) / block_tokens; }
  // The first block that the windowed layers read for a row at position `position`; 0 without.
  int32_t FirstInWindow(int64_t position) const {
    const int64_t first = std::max<int64_t>(0, position - window_tokens + 1) / block_tokens;
    return windowed() ? static_cast<int32_t>(first) : 0;
  }
  // Of the blocks before a row that begins a block, how many the windowed layers read; 0 without.
  int64_t window_blocks() const { return windowed() ? BlocksFor(window_tokens - 1) : 0; }
  friend bool operator==(const BlockLayout&, const BlockLayout&) = default;
};

}  // namespace tandem::kv
