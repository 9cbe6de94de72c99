#include "common/storage/block_tiers.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace tandem::storage {
namespace {

std::vector<absl::Span<std::byte>> PiecesOf(const kv::BlockArena& arena, BlockId block) {
  std::vector<absl::Span<std::byte>> pieces;
  for (int layer = 0; layer < arena.layout().num_layers; ++layer)
    pieces.push_back(arena.Block(layer, block));
  return pieces;
}

absl::Status SaveIn(BlockStore& store, const HashedBlock& block, const kv::BlockHash& parent,
                    const kv::BlockArena& arena, std::vector<kv::BlockHash>& removed) {
  const auto pieces = PiecesOf(arena, block.second);
  const std::vector<absl::Span<const std::byte>> from(pieces.begin(), pieces.end());
  return store.Save(block.first, parent, from, removed);
}

}  // namespace

BlockTiers::BlockTiers(std::unique_ptr<BlockStore> host, std::unique_ptr<BlockStore> disk,
                       const Clock& clock)
    : stores_{std::move(host), std::move(disk)}, clock_(clock) {
  TANDEM_CHECK(stores_.host != nullptr || stores_.disk != nullptr, "storage without a tier");
}

StorageContents BlockTiers::Contents() const {
  StorageContents contents;
  for (const StoreTier tier : kStoreTiers)
    if (stores_[tier] != nullptr) contents.tiers.Add(tier);
  if (stores_.disk != nullptr) contents.on_disk = stores_.disk->Hashes();
  return contents;
}

int64_t BlockTiers::slots() const {
  int64_t slots = 0;
  for (const StoreTier tier : kStoreTiers)
    if (stores_[tier] != nullptr) slots += stores_[tier]->slots();
  return slots;
}

TierSet BlockTiers::TiersOf(const kv::BlockHash& hash) const {
  TierSet tiers;
  for (const StoreTier tier : kStoreTiers)
    if (stores_[tier] != nullptr && stores_[tier]->Contains(hash)) tiers.Add(tier);
  return tiers;
}

std::vector<BlockPlace> BlockTiers::PlacesOf(const Changed& changed) const {
  std::vector<BlockPlace> places;
  for (const kv::BlockHash& hash : changed) places.push_back({hash, TiersOf(hash)});
  // In the same order in each process.
  std::sort(places.begin(), places.end(),
            [](const BlockPlace& a, const BlockPlace& b) { return a.hash < b.hash; });
  return places;
}

void BlockTiers::Use(const UsedBlocks& used) {
  for (const kv::BlockHash& hash : used)
    for (const StoreTier tier : kStoreTiers)
      if (stores_[tier] != nullptr) stores_[tier]->Touch(hash);
}

bool BlockTiers::Takes(StoreTier tier, const kv::BlockHash& parent) const {
  const BlockStore& store = *stores_[tier];
  if (store.size() < store.slots() || parent == kv::BlockHash() || store.Contains(parent))
    return true;
  return tier == StoreTier::kHost && stores_.disk != nullptr && stores_.disk->Contains(parent);
}

BlockSaved BlockTiers::Save(const SaveBlock& command, const kv::BlockArena& arena) {
  BlockSaved event{.block = command.block};
  Use(command.used);
  std::vector<kv::BlockHash> removed;
  for (const StoreTier tier : kStoreTiers) {
    BlockStore* store = stores_[tier].get();
    if (store == nullptr || !command.tiers.Has(tier) || store->Contains(command.block.first))
      continue;
    if (!Takes(tier, command.parent)) continue;
    const absl::Time start = clock_.Now();
    event.status[tier] = SaveIn(*store, command.block, command.parent, arena, removed);
    if (!store->Contains(command.block.first)) continue;
    event.written[tier] = {arena.layout().block_bytes(), clock_.Now() - start};
  }
  event.tiers = TiersOf(command.block.first);
  event.changed = PlacesOf(Changed(removed.begin(), removed.end()));
  return event;
}

std::optional<StoreTier> BlockTiers::LoadOne(const HashedBlock& block, const kv::BlockArena& arena,
                                             BlocksLoaded& event, Changed& changed) {
  for (const StoreTier tier : kStoreTiers) {
    BlockStore* store = stores_[tier].get();
    if (store == nullptr || !store->Contains(block.first)) continue;
    const absl::Time start = clock_.Now();
    const absl::Status status = store->Load(block.first, PiecesOf(arena, block.second));
    if (status.ok()) {
      event.read[tier].bytes += arena.layout().block_bytes();
      event.read[tier].time += clock_.Now() - start;
      return tier;
    }
    ++event.damaged;
    event.fault = status;
    changed.insert(block.first);
  }
  if (changed.insert(block.first).second) {
    ++event.damaged;
    event.fault = absl::NotFoundError("the block is not stored");
  }
  return std::nullopt;
}

BlocksLoaded BlockTiers::Load(const LoadBlocks& command, kv::BlockArena& arena,
                              std::vector<BlockId>& arrived) {
  BlocksLoaded event{.load = command.load};
  Use(command.used);
  Changed changed;
  std::vector<HashedBlock> from_disk;
  for (const HashedBlock& block : command.blocks) {
    const std::optional<StoreTier> tier = LoadOne(block, arena, event, changed);
    if (!tier.has_value()) break;
    // An engine whose KV lies on a device copies the block there before it reads it.
    arena.MarkArrived(block.second);
    arrived.push_back(block.second);
    ++event.loaded;
    event.from.push_back(*tier);
    if (tier == StoreTier::kDisk)
      from_disk.push_back(block);
    else if (stores_.disk != nullptr)
      stores_.disk->Touch(block.first);
  }
  // Only now: a block that makes room may be one of this load, and in host memory alone.
  if (stores_.host != nullptr) Raise(from_disk, arena, changed);
  event.changed = PlacesOf(changed);
  return event;
}

void BlockTiers::Raise(const std::vector<HashedBlock>& blocks, const kv::BlockArena& arena,
                       Changed& changed) {
  std::vector<kv::BlockHash> removed;
  for (const HashedBlock& block : blocks) {
    // What host memory refuses the disk has.
    const kv::BlockHash parent = stores_.disk->ParentOf(block.first);
    if (!Takes(StoreTier::kHost, parent)) continue;
    SaveIn(*stores_.host, block, parent, arena, removed).IgnoreError();
    changed.insert(block.first);
  }
  changed.insert(removed.begin(), removed.end());
}

void BlockTiers::Forget(const ForgetBlock& command) {
  for (const StoreTier tier : kStoreTiers)
    if (stores_[tier] != nullptr) stores_[tier]->Forget(command.hash);
}

}  // namespace tandem::storage
