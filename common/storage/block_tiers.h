// A node's storage for KV blocks: host memory, a disk, or host memory above a disk. It carries out
// a core's commands on them.
//
//             save                  load
//   blocks ───┬────▶ host memory ───────▶ blocks     the fastest tier that has the block
//             │           ▲ a copy, because the block was wanted
//             └────▶ disk ──────────────▶ blocks
//
// A save goes to both tiers at once: the disk must have the block when the process dies. So what
// leaves host memory to make room is stored still, as long as the disk has it. A tier that fails
// does not keep the other from its work. No tier gives up a block before those that it holds of
// what follows it (use_order.h).
//
// Thread safety: none; one thread. Owner: StorageService.
// Invariants: none of its own: each tier knows what it holds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/kv/block_arena.h"
#include "common/runtime/clock.h"
#include "common/storage/block_storage.h"
#include "common/storage/block_store.h"

namespace tandem::storage {

class BlockTiers {
 public:
  // A tier may be null, not both. `clock`, which outlives this, times the copies.
  BlockTiers(std::unique_ptr<BlockStore> host, std::unique_ptr<BlockStore> disk,
             const Clock& clock);

  StorageContents Contents() const;
  // Of both tiers together.
  int64_t slots() const;

  BlockSaved Save(const SaveBlock& command, const kv::BlockArena& arena);
  // Appends the blocks that were read to `arrived`.
  BlocksLoaded Load(const LoadBlocks& command, kv::BlockArena& arena,
                    std::vector<BlockId>& arrived);
  void Forget(const ForgetBlock& command);

 private:
  // Hashes whose place may have changed during a command.
  using Changed = absl::flat_hash_set<kv::BlockHash>;
  // Reads one block from the fastest tier that has it whole, and says which. Drops copies that are
  // not. nullopt: no tier has it.
  std::optional<StoreTier> LoadOne(const HashedBlock& block, const kv::BlockArena& arena,
                                   BlocksLoaded& event, Changed& changed);
  // Copies blocks that were read from disk into host memory.
  void Raise(const std::vector<HashedBlock>& blocks, const kv::BlockArena& arena, Changed& changed);
  // Whether a tier may make room for a block that follows `parent`: not where it could not be read,
  // because neither the tier nor one below has what precedes it. Free slots it always takes.
  bool Takes(StoreTier tier, const kv::BlockHash& parent) const;
  // In memory: each tier counts it.
  void Use(const UsedBlocks& used);
  TierSet TiersOf(const kv::BlockHash& hash) const;
  std::vector<BlockPlace> PlacesOf(const Changed& changed) const;

  PerTier<std::unique_ptr<BlockStore>> stores_;
  const Clock& clock_;
};

}  // namespace tandem::storage
