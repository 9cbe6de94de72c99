// The seam between a node's core and its storage for KV blocks that memory has no room for: the
// core decides and gives commands, a thread (storage_service.h) or the simulator carries them out
// and answers with events. Each save and each load has exactly one event. Saves and forgets are
// carried out in their order; loads may go before them. Loads are carried out in their order, but
// for those that are cancelled before they begin.
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
#include "common/storage/store_tier.h"

namespace tandem::storage {

// One load of a node.
using LoadId = StrongId<struct LoadIdTag, uint64_t>;
using HashedBlock = std::pair<kv::BlockHash, BlockId>;

// What the storage has when the node starts.
struct StorageContents {
  TierSet tiers;
  std::vector<kv::BlockHash> on_disk;
};

// Stored blocks that prompts found in memory since the last command, of each prompt the last one in
// each tier, in the order of their use. Of what makes room they count as used before the command.
using UsedBlocks = std::vector<kv::BlockHash>;

// Stores a copy of a sealed block in each of `tiers` that the storage has. The block's bytes do not
// change before the event.
struct SaveBlock {
  HashedBlock block;
  TierSet tiers = TierSet::All();
  kv::BlockHash parent;  // of the block; all zero: it begins a prompt, or that is not known
  UsedBlocks used;
};
// Reads stored blocks into blocks of the arena, which no other thread reads or writes before the
// event.
struct LoadBlocks {
  LoadId load;
  std::vector<HashedBlock> blocks;  // a parent before its children
  UsedBlocks used;
};
// Forgets a block whose contents turned out to be wrong. No event.
struct ForgetBlock {
  kv::BlockHash hash;
};
// The node wants this load no more. If it has not begun, it never does: its event comes at once,
// with the status kCancelled, and nothing writes its blocks after that. If it has begun, or ended,
// this has no effect: its event is that of any load. No event of its own.
struct CancelLoad {
  LoadId load;
};
using StorageCommand = std::variant<SaveBlock, LoadBlocks, ForgetBlock, CancelLoad>;

// Where a block lies now, after a command for others changed that; nowhere: it is stored no more.
struct BlockPlace {
  kv::BlockHash hash;
  TierSet tiers;
};
struct Copied {
  int64_t bytes = 0;
  absl::Duration time;  // that copying took
};

struct BlockSaved {
  HashedBlock block;
  TierSet tiers;                    // that have the block now
  PerTier<absl::Status> status;     // how writing it failed in a tier, or OK
  std::vector<BlockPlace> changed;  // made room for it
  PerTier<Copied> written;
};
struct BlocksLoaded {
  LoadId load;
  absl::Status status;          // kCancelled: it never began, and the rest is empty; otherwise OK
  int64_t loaded = 0;           // blocks at the beginning whose bytes are there, verified
  std::vector<StoreTier> from;  // of each of these: the tier that it was read from
  // Blocks of this load that came from a slower tier and lie in a faster one now, what made room
  // for them, and those of which a copy was damaged or lost.
  std::vector<BlockPlace> changed;
  int64_t damaged = 0;  // copies that were dropped, and the block that no tier had
  absl::Status fault;   // of the last of these
  PerTier<Copied> read;
};
using StorageEvent = std::variant<BlockSaved, BlocksLoaded>;

// The event of a load that was cancelled before it began.
inline BlocksLoaded Cancelled(LoadId load) {
  return {.load = load, .status = absl::CancelledError("the load was cancelled before it began")};
}

}  // namespace tandem::storage
