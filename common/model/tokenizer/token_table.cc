#include "common/model/tokenizer/token_table.h"

#include "absl/numeric/bits.h"
#include "common/model/tokenizer/hash.h"

namespace tandem::model::tokenizer_internal {

void TokenTable::Reserve(size_t num_tokens, size_t text_bytes) {
  pool_.reserve(text_bytes);
  spans_.reserve(num_tokens);
  const size_t num_slots = absl::bit_ceil(2 * num_tokens + 2);
  slots_.assign(num_slots, Slot());
  mask_ = num_slots - 1;
}

void TokenTable::Add(absl::string_view text, TokenId id) {
  if (static_cast<size_t>(id) >= spans_.size()) spans_.resize(id + 1);
  spans_[id] = {pool_.size(), static_cast<uint32_t>(text.size())};
  pool_.append(text.data(), text.size());
  const uint64_t hash = HashBytes(text);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  size_t i = hash & mask_;
  for (; slots_[i].id != kNoToken; i = (i + 1) & mask_) {
    if (slots_[i].tag == tag && Text(slots_[i].id) == text) return;
  }
  slots_[i] = {tag, id};
}

TokenId TokenTable::Find(absl::string_view text) const {
  if (slots_.empty()) return kNoToken;
  const uint64_t hash = HashBytes(text);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t i = hash & mask_; slots_[i].id != kNoToken; i = (i + 1) & mask_) {
    if (slots_[i].tag == tag && Text(slots_[i].id) == text) return slots_[i].id;
  }
  return kNoToken;
}

}  // namespace tandem::model::tokenizer_internal
