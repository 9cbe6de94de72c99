// How many KV blocks a node has, and for how many of them the windowed layers have memory.
// Thread safety: functions; the node's start calls them. Owner: none.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/engine/engine.h"
#include "common/node/node_config.h"

namespace tandem::node {

// A node has at least so many blocks.
inline constexpr int64_t kKvBlocksMin = 2;

struct KvSize {
  int64_t blocks = 0;
  // Window slots (common/kv/window_slots.h); 0 without windowed layers.
  int64_t window_slots = 0;

  int64_t Bytes(const kv::BlockLayout& layout) const {
    return blocks * layout.full_bytes() + window_slots * layout.window_bytes();
  }
};

// What a sequence of `tokens` tokens takes between steps.
KvSize SizeOfSequence(const kv::BlockLayout& layout, int64_t tokens);

// What fits into `bytes`, at most `blocks_max` blocks. Where layers have windows, there is a slot
// for each fourth block, so that short sequences find slots as well as long ones find blocks; at
// least as many slots as one sequence and a step of `step_tokens` rows need. With `whole_blocks`
// each block has a slot.
KvSize FitKv(const kv::BlockLayout& layout, int64_t bytes, int64_t blocks_max, int64_t step_tokens,
             bool whole_blocks);
// The slots that go with a number of blocks, by the same rule.
int64_t SlotsFor(const kv::BlockLayout& layout, int64_t blocks, int64_t step_tokens,
                 bool whole_blocks);

// As configured, or what the memory fraction holds after a profiling run; says in the log how.
// Errors: kResourceExhausted when there is room for fewer than kKvBlocksMin; the engine's.
absl::StatusOr<KvSize> ChooseKvSize(const NodeConfig& config, engine::Engine& engine);

}  // namespace tandem::node
