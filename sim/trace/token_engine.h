// An engine without bytes, for simulations that ask when things happen and not whether bytes are
// right. It keeps no KV: the next token is a hash of the last token and its position. So a million
// blocks take no memory, and a step costs a few nanoseconds a sequence.
// Thread safety: common/engine/engine.h's. Owner: a SimNode.
#pragma once

#include <cstdint>
#include <memory>

#include "common/engine/engine.h"

namespace tandem::sim {

struct TokenEngineOptions {
  int32_t block_tokens = 512;
  int64_t kv_bytes_per_token = 0;  // only named: what transfers of blocks count
  int32_t vocab_size = 0;
  int32_t context_tokens = 0;
};

// It generates no end-of-sequence token: answers end by length. It has one layer. arena() ends the
// process: there are no bytes. Sampling parameters, masks and scores have no effect.
std::unique_ptr<engine::Engine> NewTokenEngine(const TokenEngineOptions& options);

}  // namespace tandem::sim
