// The step between a layer's projections and attention, on a device: QK-norm, RoPE, rounding of q
// to bf16 and of K and V to the cache's type, and the write of K and V into the paged cache (vLLM's
// reshape_and_cache). DeviceOps::rope_kv enqueues it.
//
// A slab of a bf16 cache is [block_tokens][head_dim]. A slab of an int8 or fp8 cache is tiles of 16
// tokens: [16][head_dim] bytes, then the 16 tokens' fp32 scales.
//
// All pointers are device memory, except where a comment says otherwise; the caller owns that
// memory and keeps it unchanged until the enqueued work is done. Thread safety: the stream's.
// Errors: the stream's status; a broken REQUIRES ends the process.
#pragma once

#include <cstdint>

#include "kernels/api/bf16.h"
#include "kernels/api/kv_cache.h"

namespace tandem::kernels {

struct DeviceRopeKvArgs {
  const float* qkv = nullptr;  // [rows][(num_heads + 2 num_kv_heads) · head_dim]: q, k, v
  int32_t rows = 0;
  int32_t num_heads = 0;
  const float* q_norm = nullptr;  // [head_dim] or nullptr
  const float* k_norm = nullptr;
  float eps = 1e-5f;
  const int32_t* positions = nullptr;  // [rows]
  const float* cos = nullptr;          // [positions][head_dim / 2]
  const float* sin = nullptr;
  // [rows] block · block_tokens + token within it; negative: this row only pads the batch.
  const int64_t* slots = nullptr;
  KvLayer layer;          // bf16, int8 or fp8
  Bf16Bits* q = nullptr;  // [rows][num_heads · head_dim]
};

}  // namespace tandem::kernels
