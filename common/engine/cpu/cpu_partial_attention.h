// A CPU engine's PartialAttention: records of attention over blocks that its node has lent, on the
// calling thread.
// Thread safety: one thread at a time, beside the engine's Step. Owner: the node's lending plane.
#pragma once

#include <cstddef>
#include <memory>

#include "common/engine/remote_attention.h"
#include "common/kv/block_arena.h"
#include "common/model/model_config.h"
#include "kernels/api/backend.h"

namespace tandem::engine {

// Has the processor fetch these bytes into its L2 cache, and does not wait for them.
void PrefetchBytes(const std::byte* at, size_t bytes);

struct CpuPartialAttentionOptions {
  model::ModelConfig config;
  kernels::KvShape kv;
  // How FetchForNextLayer fetches a block. Another one is a test's.
  void (*fetch)(const std::byte* at, size_t bytes) = &PrefetchBytes;
};

// The next layer that asks about lent tokens; after the last one, the first. Layers with a sliding
// window never ask.
int32_t NextLendingLayer(const model::ModelConfig& config, int32_t layer);

// `backend` and `arena` outlive it.
std::unique_ptr<PartialAttention> NewCpuPartialAttention(CpuPartialAttentionOptions options,
                                                         const kernels::Backend& backend,
                                                         const kv::BlockArena& arena);

}  // namespace tandem::engine
