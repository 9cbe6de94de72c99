#include "common/kv/block_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace tandem::kv {
namespace {

constexpr uint32_t kUsesMax = 1 << 16;  // more make no difference

}  // namespace

BlockPool::BlockPool(int64_t num_blocks, std::shared_ptr<SlotTable> slots, int64_t window_blocks)
    : window_blocks_(window_blocks),
      num_blocks_(num_blocks),
      cached_(num_blocks),
      by_hash_(0, HashOf{blocks_}, SameHash{blocks_}),
      owners_(num_blocks) {
  if (slots != nullptr) window_.emplace(std::move(slots));
  // Growing later would make one step wait for a millisecond.
  blocks_.reserve(num_blocks);
  free_.reserve(num_blocks);
  by_hash_.reserve(num_blocks);
}

BlockPool::Block& BlockPool::At(BlockId block) {
  TANDEM_CHECK(block.value() >= 0 && block.value() < static_cast<int64_t>(blocks_.size()), "block ",
               block.value(), " of ", num_blocks_, ", of which ", blocks_.size(),
               " were ever used");
  return blocks_[block.value()];
}

const BlockPool::Block& BlockPool::At(BlockId block) const {
  return const_cast<BlockPool*>(this)->At(block);
}

void BlockPool::EnterCache(BlockId block) {
  Block& b = At(block);
  b.state = State::kCached;
  b.order = cached_.Insert(block, b.uses);
  if (b.saving) ++saving_cached_;
  owners_.OnCached(block);
  if (!b.sealed) {
    b.part = cached_parts_.insert(cached_parts_.end(), block);
    if (cached_parts_.size() > kCachedPartsMax) Evict(cached_parts_.front());
  }
  const auto evictable = [this](BlockId id) { return !At(id).saving; };
  while (const auto given_back = owners_.ToEvictFor(block, evictable)) Evict(*given_back);
}

void BlockPool::LeaveCache(BlockId block) {
  Block& b = At(block);
  cached_.Erase(b.order);
  if (b.saving) --saving_cached_;
  if (!b.sealed) cached_parts_.erase(b.part);
  owners_.OnTakenFromCache(block);
}

void BlockPool::Free(BlockId block) {
  if (window_.has_value()) window_->Drop(block);
  owners_.OnFreed(block);
  At(block) = Block();
  free_.push_back(block);
}

void BlockPool::Evict(BlockId block) {
  Block& b = At(block);
  TANDEM_CHECK(b.state == State::kCached, "block ", block.value(), " evicted while not cached");
  LeaveCache(block);
  parts_.Remove(block);
  if (b.sealed) {
    by_hash_.erase(b.hash);
    changes_.push_back({.hash = b.hash, .stored = false});
  }
  Free(block);
}

BlockId BlockPool::TakeFree(absl::FunctionRef<bool(BlockId)> evictable) {
  if (free_.empty() && std::ssize(blocks_) < num_blocks_) {
    blocks_.emplace_back();
    return BlockId(static_cast<int32_t>(blocks_.size() - 1));
  }
  if (free_.empty()) Evict(*cached_.First(evictable));
  const BlockId block = free_.back();
  free_.pop_back();
  return block;
}

absl::StatusOr<std::vector<BlockId>> BlockPool::Allocate(int64_t count, const BlockOwner& owner) {
  TANDEM_CHECK(count >= 0, "count ", count);
  const int64_t available = counts().available();
  if (count > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("KV pool: ", count, " blocks requested, ", available, " of ", num_blocks_,
                     " available (", used_, " used, ", quarantined_, " quarantined)"));
  }
  const auto evictable = [this](BlockId id) { return !At(id).saving; };
  while (const auto given_back = owners_.ToEvict(owner, count, evictable)) Evict(*given_back);
  std::vector<BlockId> allocated;
  allocated.reserve(count);
  for (int64_t i = 0; i < count; ++i) {
    const BlockId block = TakeFree(evictable);
    Block& b = At(block);
    TANDEM_CHECK(b.state == State::kFree && !b.sealed && b.references == 0, "block ", block.value(),
                 " on the free list is not free");
    b.state = State::kUsed;
    b.references = 1;
    ++used_;
    owners_.OnUsedBy(block, owner);
    allocated.push_back(block);
  }
  return allocated;
}

void BlockPool::AddReference(BlockId block) {
  Block& b = At(block);
  if (b.state == State::kCached) {
    LeaveCache(block);
    b.state = State::kUsed;
    ++used_;
  }
  ++b.references;
}

std::vector<BlockId> BlockPool::MatchBlocks(absl::Span<const BlockHash> hashes,
                                            const BlockOwner& owner) {
  std::vector<BlockId> matched;
  for (const BlockHash& hash : hashes) {
    const auto it = by_hash_.find(hash);
    if (it == by_hash_.end()) break;
    AddReference(*it);
    owners_.OnUsedBy(*it, owner);
    matched.push_back(*it);
  }
  const auto evictable = [this](BlockId id) { return !At(id).saving; };
  while (const auto given_back = owners_.ToEvict(owner, 0, evictable)) Evict(*given_back);
  return matched;
}

int64_t BlockPool::AvailableBeside(absl::Span<const BlockHash> hashes) const {
  int64_t available = counts().available();
  for (const BlockHash& hash : hashes) {
    const auto it = by_hash_.find(hash);
    if (it == by_hash_.end()) break;
    const Block& b = At(*it);
    if (b.state == State::kCached && !b.saving) --available;
  }
  return available;
}

void BlockPool::CountUse(absl::Span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    Block& b = At(block);
    TANDEM_CHECK(b.state == State::kUsed, "block ", block.value(), " counted while not used");
    if (b.uses < kUsesMax) ++b.uses;
  }
}

std::vector<BlockHash> BlockPool::MostRecentlyUsed(int64_t count) const {
  std::vector<const Block*> shared, single;
  for (const Block& b : blocks_) {
    if (b.state != State::kUsed || !b.findable()) continue;
    (b.references > 1 ? shared : single).push_back(&b);
  }
  const auto earlier = [](const Block* a, const Block* b) {
    return a->sealed_order < b->sealed_order;
  };
  std::sort(shared.begin(), shared.end(), earlier);
  std::sort(single.begin(), single.end(), earlier);
  std::vector<BlockHash> hashes;
  const auto add = [&](const Block& b) {
    if (b.sealed && static_cast<int64_t>(hashes.size()) < count) hashes.push_back(b.hash);
  };
  for (const Block* b : shared) add(*b);
  // Owners release leaves first, so a parent is more recent than its children.
  for (const BlockId block : cached_.LastToFirst()) add(At(block));
  for (const Block* b : single) add(*b);
  return hashes;
}

void BlockPool::Ref(BlockId block) {
  Block& b = At(block);
  TANDEM_CHECK(b.state == State::kUsed && b.sealed, "block ", block.value(),
               " shared while not used and sealed");
  ++b.references;
}

void BlockPool::Unref(BlockId block) {
  Block& b = At(block);
  TANDEM_CHECK(b.state == State::kUsed && b.references > 0, "block ", block.value(),
               " released by one who does not own it");
  if (--b.references > 0) return;
  --used_;
  ++releases_;
  if (b.findable() || parts_.Contains(block)) return EnterCache(block);
  if (b.saving) {
    b.state = State::kQuarantined;
    ++quarantined_;
  } else {
    Free(block);
  }
}

void BlockPool::Seal(BlockId block, const BlockHash& hash, const BlockHash& parent) {
  const Block& b = At(block);
  TANDEM_CHECK(b.state == State::kUsed && !b.sealed && b.references == 1, "block ", block.value(),
               " sealed twice or while not used");
  TakeName(block, hash, parent);
}

void BlockPool::SealAgain(BlockId block, const BlockHash& hash, const BlockHash& parent) {
  const Block& b = At(block);
  TANDEM_CHECK(b.state == State::kUsed, "block ", block.value(), " sealed again while not used");
  if (!b.sealed) TakeName(block, hash, parent);
}

void BlockPool::TakeName(BlockId block, const BlockHash& hash, const BlockHash& parent) {
  Block& b = At(block);
  b.hash = hash;
  const auto [named, is_new] = by_hash_.insert(block);
  if (!is_new) {
    const bool more_complete = HasSlot(block) && !HasSlot(*named);
    if (!more_complete || !GiveUpName(*named)) return;
    by_hash_.erase(named);
    by_hash_.insert(block);
  }
  b.sealed = true;
  b.sealed_order = next_sealed_order_++;
  if (is_new) changes_.push_back({.hash = hash, .stored = true, .parent = parent});
}

void BlockPool::Forget(BlockId block) {
  Block& b = At(block);
  TANDEM_CHECK(b.state == State::kUsed, "block ", block.value(), " forgotten while not used");
  parts_.Remove(block);
  if (!b.findable()) return;
  b.forgotten = true;
  by_hash_.erase(b.hash);
  wrong_.push_back(b.hash);
  changes_.push_back({.hash = b.hash, .stored = false});
}

std::optional<BlockId> BlockPool::Find(const BlockHash& hash) const {
  const auto it = by_hash_.find(hash);
  if (it == by_hash_.end()) return std::nullopt;
  return *it;
}

void BlockPool::BeginSave(BlockId block) {
  Block& b = At(block);
  TANDEM_CHECK(b.sealed && !b.forgotten && !b.saving, "block ", block.value(),
               " saved twice or while not sealed");
  b.saving = true;
  if (b.state == State::kCached) ++saving_cached_;
  if (window_.has_value()) window_->Ref(block);
}

void BlockPool::EndSave(BlockId block) {
  Block& b = At(block);
  TANDEM_CHECK(b.saving, "block ", block.value(), " is not being saved");
  b.saving = false;
  ++releases_;
  if (b.state == State::kCached) --saving_cached_;
  if (window_.has_value()) window_->Unref(block, b.findable() && b.state != State::kQuarantined);
  if (b.state == State::kQuarantined) EndQuarantine(block);
}

void BlockPool::NamePart(BlockId block, const BlockHash& parent, absl::Span<const TokenId> tokens) {
  const Block& b = At(block);
  TANDEM_CHECK(b.state == State::kUsed, "block ", block.value(), " gets a part while not used");
  if (!b.forgotten && !parts_.Contains(block)) parts_.Add(block, parent, tokens);
}

std::optional<PartIndex::Found> BlockPool::PinPart(const BlockHash& parent,
                                                   absl::Span<const TokenId> tokens) {
  const std::optional<PartIndex::Found> part = parts_.Find(parent, tokens);
  if (!part.has_value() || !HasSlot(part->block) || !ReserveSlots(1)) return std::nullopt;
  AddReference(part->block);
  if (window_.has_value()) window_->Ref(part->block);
  return part;
}

void BlockPool::ForgetParts(const BlockHash& parent) {
  for (const BlockId block : parts_.PartsOf(parent)) {
    const Block& b = At(block);
    if (b.state == State::kCached && !b.sealed) {
      Evict(block);
    } else {
      parts_.Remove(block);
    }
  }
}

bool BlockPool::IsSealed(BlockId block) const { return At(block).sealed; }

void BlockPool::Quarantine(BlockId block) {
  Block& b = At(block);
  TANDEM_CHECK(b.state == State::kUsed && !b.sealed && b.references == 1, "block ", block.value(),
               " quarantined while shared, sealed or not used");
  TANDEM_CHECK(!parts_.Contains(block), "block ", block.value(), " quarantined with a part");
  b.state = State::kQuarantined;
  b.references = 0;
  if (window_.has_value()) window_->Quarantine(block);
  --used_;
  ++quarantined_;
}

void BlockPool::EndQuarantine(BlockId block) {
  Block& b = At(block);
  TANDEM_CHECK(b.state == State::kQuarantined, "block ", block.value(), " is not quarantined");
  --quarantined_;
  ++releases_;
  Free(block);
}

BlockPool::Counts BlockPool::counts() const {
  const Counts counts{.total = num_blocks_,
                      .free = std::ssize(free_) + num_blocks_ - std::ssize(blocks_),
                      .cached = cached_.size(),
                      .used = used_,
                      .quarantined = quarantined_,
                      .saving = saving_cached_};
  TANDEM_CHECK(counts.free + counts.cached + counts.used + counts.quarantined == counts.total,
               "free ", counts.free, " cached ", counts.cached, " used ", counts.used,
               " quarantined ", counts.quarantined, " total ", counts.total);
  return counts;
}

BlockEvents BlockPool::DrainEvents() {
  if (!has_events()) return {};
  BlockEvents events;
  const auto stored = [](const Change& change) { return change.stored; };
  if (std::all_of(changes_.begin(), changes_.end(), stored)) {
    // As mostly: no hash has two changes, because a removal would lie between them.
    events.stored.reserve(changes_.size());
    events.parents.reserve(changes_.size());
    for (const Change& change : changes_) {
      events.stored.push_back(change.hash);
      events.parents.push_back(change.parent);
    }
    changes_.clear();
    events.wrong = std::exchange(wrong_, {});
    return events;
  }
  // The changes of one hash alternate between stored and removed. So its first and last change tell
  // the net effect: when they are of one kind it is that kind, otherwise there is none.
  absl::flat_hash_map<BlockHash, bool> first_stored;
  absl::flat_hash_map<BlockHash, size_t> last;
  for (size_t i = 0; i < changes_.size(); ++i) {
    first_stored.try_emplace(changes_[i].hash, changes_[i].stored);
    last[changes_[i].hash] = i;
  }
  for (size_t i = 0; i < changes_.size(); ++i) {
    const Change& change = changes_[i];
    if (last[change.hash] != i || first_stored[change.hash] != change.stored) continue;
    (change.stored ? events.stored : events.removed).push_back(change.hash);
    if (change.stored) events.parents.push_back(change.parent);
  }
  changes_.clear();
  events.wrong = std::exchange(wrong_, {});
  return events;
}

std::vector<BlockHash> BlockPool::SealedHashes() const {
  std::vector<const Block*> sealed;
  for (const Block& b : blocks_) {
    if (b.findable()) sealed.push_back(&b);
  }
  std::sort(sealed.begin(), sealed.end(),
            [](const Block* a, const Block* b) { return a->sealed_order < b->sealed_order; });
  std::vector<BlockHash> hashes;
  hashes.reserve(sealed.size());
  for (const Block* b : sealed) hashes.push_back(b->hash);
  return hashes;
}

}  // namespace tandem::kv
