// A CPU engine's PartialAttention: records of attention over blocks that its node has lent, on the
// calling thread.
// Thread safety: one thread at a time, beside the engine's Step. Owner: the node's lending plane.
#pragma once

#include <memory>

#include "common/engine/remote_attention.h"
#include "common/kv/block_arena.h"
#include "common/model/model_config.h"
#include "kernels/api/backend.h"

namespace tandem::engine {

struct CpuPartialAttentionOptions {
  model::ModelConfig config;
  kernels::KvShape kv;
  int64_t context_tokens = 0;
};

// The next layer that asks about lent tokens; after the last one, the first. Layers with a sliding
// window never ask.
int32_t NextLendingLayer(const model::ModelConfig& config, int32_t layer);

// `backend` and `arena` outlive it.
std::unique_ptr<PartialAttention> NewCpuPartialAttention(CpuPartialAttentionOptions options,
                                                         const kernels::Backend& backend,
                                                         const kv::BlockArena& arena);

}  // namespace tandem::engine
