// Remembers the token ids of short words. Direct-mapped: a lookup is one hash and one compare, a
// newer word replaces an older one, and the size never changes. An entry is exactly what BPE would
// compute again, so the cache never changes a result.
// Thread safety: one call at a time. Owner: an EncodeScratch.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace tandem::model::tokenizer_internal {

// 2 MiB: 32,768 words of up to 30 bytes. This exceeds the distinct words of most texts and fits
// into a server core's L2.
inline constexpr size_t kWordCacheBytes = size_t{2} << 20;

class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 30;
  static constexpr size_t kMaxIds = 8;

  WordCache() : entries_(kWordCacheBytes / sizeof(Entry)) {}

  struct Entry {
    uint8_t word_bytes = 0;  // 0: empty; words are not
    uint8_t num_ids = 0;
    char word[kMaxWordBytes];
    TokenId ids[kMaxIds];

    bool Holds(absl::string_view text) const {
      return word_bytes == text.size() && std::memcmp(word, text.data(), text.size()) == 0;
    }
  };
  static_assert(sizeof(Entry) == 64, "one entry is one cache line");

  // Where a word with this hash lives.
  Entry& At(uint64_t hash) { return entries_[hash & (entries_.size() - 1)]; }

  // REQUIRES: text has 1 to kMaxWordBytes bytes. More than kMaxIds ids are not remembered.
  static void Store(absl::string_view text, absl::Span<const TokenId> ids, Entry* entry) {
    if (ids.size() > kMaxIds) return;
    entry->word_bytes = static_cast<uint8_t>(text.size());
    entry->num_ids = static_cast<uint8_t>(ids.size());
    std::memcpy(entry->word, text.data(), text.size());
    for (size_t i = 0; i < ids.size(); ++i) entry->ids[i] = ids[i];
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace tandem::model::tokenizer_internal
