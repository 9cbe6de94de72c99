// The seam between a node's core and its storage for KV blocks that memory has no room for: the
// core decides and gives commands, a thread (storage_service.h) or the simulator carries them out
// and answers with events. Each save and each load has exactly one event. Saves and forgets are
// carried out in their order; loads may go before them.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/kv/block_hash.h"

namespace tandem::storage {

// One load of a node.
using LoadId = StrongId<struct LoadIdTag, uint64_t>;
using HashedBlock = std::pair<kv::BlockHash, BlockId>;

// Stores a copy of a sealed block. Its bytes do not change before the event.
struct SaveBlock {
  HashedBlock block;
};
// Reads stored blocks into blocks of the arena, which no other thread reads or writes before the
// event.
struct LoadBlocks {
  LoadId load;
  std::vector<HashedBlock> blocks;  // a parent before its children
};
// Forgets a block whose contents turned out to be wrong. No event.
struct ForgetBlock {
  kv::BlockHash hash;
};
using StorageCommand = std::variant<SaveBlock, LoadBlocks, ForgetBlock>;

struct BlockSaved {
  HashedBlock block;
  absl::Status status;                 // why it was not stored, or OK
  std::vector<kv::BlockHash> removed;  // made room for it
  int64_t bytes = 0;                   // that were written
  absl::Duration time;                 // that writing took
};
struct BlocksLoaded {
  LoadId load;
  int64_t loaded = 0;                  // blocks at the beginning whose bytes are there, verified
  std::vector<kv::BlockHash> removed;  // the first that was not loaded: damaged, or lost
  int64_t bytes = 0;
  absl::Duration time;  // that reading took
};
using StorageEvent = std::variant<BlockSaved, BlocksLoaded>;

}  // namespace tandem::storage
