#include "common/kv/window_slots.h"

#include <utility>

#include "common/base/check.h"

namespace tandem::kv {

WindowSlots::WindowSlots(std::shared_ptr<SlotTable> table)
    : table_(std::move(table)), blocks_(static_cast<size_t>(table_->num_blocks())) {
  free_.reserve(static_cast<size_t>(table_->num_slots()));
  for (int64_t i = table_->num_slots() - 1; i >= 0; --i) free_.push_back(static_cast<int32_t>(i));
}

WindowSlots::Block& WindowSlots::At(BlockId block) {
  TANDEM_CHECK(block.value() >= 0 && block.value() < std::ssize(blocks_), "block ", block.value(),
               " of ", blocks_.size());
  return blocks_[block.value()];
}

bool WindowSlots::Reserve(int64_t count) {
  if (count > counts().available()) return false;
  reserved_ += count;
  return true;
}

void WindowSlots::Release(int64_t count) {
  TANDEM_CHECK(count >= 0 && count <= reserved_, count, " of ", reserved_, " reserved slots");
  reserved_ -= count;
}

void WindowSlots::Add(absl::Span<const BlockId> blocks) {
  TANDEM_CHECK(std::ssize(blocks) <= std::ssize(free_) + std::ssize(lru_), blocks.size(),
               " window slots are taken, more than were reserved");
  for (const BlockId block : blocks) {
    if (free_.empty()) Free(lru_.front());
    Block& b = At(block);
    TANDEM_CHECK(!Has(block) && b.references == 0, "block ", block.value(), " gets a second slot");
    table_->Set(block, free_.back());
    free_.pop_back();
    b.references = 1;
  }
}

void WindowSlots::Ref(BlockId block) {
  Block& b = At(block);
  TANDEM_CHECK(Has(block), "block ", block.value(), " has no window slot");
  if (b.cached) {
    lru_.erase(b.lru);
    b.cached = false;
  }
  ++b.references;
}

void WindowSlots::Unref(BlockId block, bool findable) {
  Block& b = At(block);
  TANDEM_CHECK(Has(block) && b.references > 0, "block ", block.value(),
               ": its window slot is released by one who does not hold it");
  if (--b.references > 0) return;
  if (!findable) return Free(block);
  b.cached = true;
  b.lru = lru_.insert(lru_.end(), block);
}

void WindowSlots::Quarantine(BlockId block) {
  Block& b = At(block);
  TANDEM_CHECK(!b.cached, "block ", block.value(), ": a cached slot is quarantined");
  if (!Has(block)) return;
  b.references = 0;
  b.quarantined = true;
  ++quarantined_;
}

void WindowSlots::Drop(BlockId block) {
  TANDEM_CHECK(At(block).references == 0, "block ", block.value(), " is freed, its slot is held");
  if (Has(block)) Free(block);
}

void WindowSlots::Free(BlockId block) {
  Block& b = At(block);
  if (b.cached) lru_.erase(b.lru);
  if (b.quarantined) --quarantined_;
  b = Block();
  free_.push_back(table_->slot(block));
  table_->Set(block, SlotTable::kNone);
}

WindowSlots::Counts WindowSlots::counts() const {
  Counts counts{.total = table_->num_slots(),
                .free = static_cast<int64_t>(free_.size()),
                .cached = static_cast<int64_t>(lru_.size()),
                .quarantined = quarantined_,
                .reserved = reserved_};
  counts.held = counts.total - counts.free - counts.cached - counts.quarantined;
  return counts;
}

}  // namespace tandem::kv
