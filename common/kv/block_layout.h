// The sizes of one instance's KV cache in memory, in bytes; common/kv knows no element types.
// Each layer has one region, [num_blocks][layer_block_bytes]. The order of elements inside a block
// is the engine's own (the CPU engine: [num_kv_heads][2][block_tokens][head_dim]), and part of its
// numerics id.
// Thread safety: a plain value.
#pragma once

#include <cstdint>

namespace tandem::kv {

struct BlockLayout {
  int32_t num_layers = 0;
  int32_t block_tokens = 0;       // divides 256, the attention partition
  int64_t layer_block_bytes = 0;  // bytes of one block of one layer; equal for all layers

  int64_t block_bytes() const { return layer_block_bytes * num_layers; }
  // The number of blocks that `tokens` tokens occupy.
  int64_t BlocksFor(int64_t tokens) const { return (tokens + block_tokens - 1) / block_tokens; }
  friend bool operator==(const BlockLayout&, const BlockLayout&) = default;
};

}  // namespace tandem::kv
