#include "common/model/tokenizer/bpe_model.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::model::tokenizer_internal {
namespace {

// Words of up to this many symbols scan for the best pair, which needs no heap.
constexpr size_t kShortWordSymbols = 40;
// The symbols of a window of a long word: few enough that its symbols and heap stay in a core's L1
// and L2 caches.
constexpr size_t kWindowSymbols = 512;
// Longer left parts go first among merges of one score; beyond this they count as equal.
constexpr uint32_t kTieCharsMax = 255;

bool IsFallbackByte(const BpeSymbol& symbol) { return symbol.num_chars == 0; }

}  // namespace

void BpeModel::SetOptions(const Options& options) {
  options_ = options;
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    const bool is_character = options.byte_level || byte < 0x80;
    single_byte_ids_[byte] = is_character ? tokens_.Find(absl::string_view(&text, 1)) : kNoToken;
  }
}

void BpeModel::SetRanks(std::vector<uint32_t> ranks) {
  ranks_ = std::move(ranks);
  joins_.Enable();
  for (TokenId id = 0; id < static_cast<TokenId>(ranks_.size()); ++id) {
    if (ranks_[id] == kNoMerge) continue;
    const auto bytes = static_cast<uint32_t>(tokens_.Text(id).size());
    made_bytes_max_ = std::max(made_bytes_max_, bytes);
    joins_.Note(tokens_.Text(id));
  }
}

template <bool kByScore>
BpeModel::Merge BpeModel::Find(absl::string_view word, const BpeSymbol& left,
                               const BpeSymbol& right) const {
  if constexpr (kByScore) {
    if (!left.mergeable || !right.mergeable || right.end - left.begin > made_bytes_max_) return {};
    const TokenId id = tokens_.Find(word.substr(left.begin, right.end - left.begin));
    if (id == kNoToken || ranks_[id] == kNoMerge) return {};
    const uint32_t tie = kTieCharsMax - std::min<uint32_t>(left.num_chars, kTieCharsMax);
    return {ranks_[id] << 8 | tie, id};
  } else {
    const PairTable::Slot* slot = pairs_.Find(left.id, right.id);
    if (slot == nullptr) return {};
    return {slot->rank, slot->merged};
  }
}

bool BpeModel::SplitToBytes(absl::string_view character, uint32_t begin,
                            std::vector<BpeSymbol>* symbols) const {
  for (const char c : character) {
    if (options_.byte_ids[static_cast<uint8_t>(c)] == kNoToken) return false;
  }
  for (uint32_t i = 0; i < character.size(); ++i) {
    BpeSymbol symbol{};
    symbol.id = options_.byte_ids[static_cast<uint8_t>(character[i])];
    symbol.begin = begin + i;
    symbol.end = begin + i + 1;
    symbols->push_back(symbol);
  }
  return true;
}

// Makes one symbol per character. An unknown character becomes its bytes, or joins or starts a run
// of unknown ones, which is added when the next known character is met.
void BpeModel::Split(absl::string_view word, std::vector<BpeSymbol>* symbols) const {
  symbols->clear();
  BpeSymbol unknown{};
  unknown.id = kNoToken;
  uint32_t begin = 0;
  while (begin < word.size()) {
    const int length = options_.byte_level ? 1 : Utf8Length(word[begin]);
    const absl::string_view character = word.substr(begin, length);
    const TokenId id = length == 1 ? single_byte_ids_[static_cast<uint8_t>(character[0])]
                                   : tokens_.Find(character);
    BpeSymbol symbol{};
    symbol.id = id;
    symbol.begin = begin;
    begin += length;
    symbol.end = begin;
    symbol.num_chars = 1;
    if (id != kNoToken) {
      symbol.mergeable = ranks_.empty() || ranks_[id] != kNoMerge;
      if (unknown.id != kNoToken) symbols->push_back(unknown);
      unknown.id = kNoToken;
      symbols->push_back(symbol);
      continue;
    }
    if (options_.byte_fallback && SplitToBytes(character, symbol.begin, symbols)) continue;
    if (options_.unknown_id == kNoToken) continue;
    if (unknown.id != kNoToken && !options_.fuse_unknown) symbols->push_back(unknown);
    if (unknown.id == kNoToken || !options_.fuse_unknown) unknown = symbol;
    unknown.id = options_.unknown_id;
    unknown.end = symbol.end;
  }
  if (unknown.id != kNoToken) symbols->push_back(unknown);
}

size_t BpeModel::EndOfPart(absl::string_view word, const std::vector<BpeSymbol>& symbols,
                           size_t begin) const {
  size_t end = begin + 1;
  for (; end < symbols.size(); ++end) {
    const BpeSymbol& left = symbols[end - 1];
    const BpeSymbol& right = symbols[end];
    // Without merges of bytes' spellings, no merge takes a byte of an unknown character.
    if (joins_.enabled() && (IsFallbackByte(left) || IsFallbackByte(right))) break;
    // The unknown token also stands for strings other than its own.
    if (left.id == options_.unknown_id || right.id == options_.unknown_id) continue;
    if (!joins_.MayJoin(word[left.end - 1], word[right.begin])) break;
  }
  return end;
}

template <bool kByScore>
void BpeModel::MergeShort(absl::string_view word, absl::Span<BpeSymbol> s) const {
  Merge merges[kShortWordSymbols];
  size_t n = s.size();
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = Find<kByScore>(word, s[i], s[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merges[i].key < merges[best].key) best = i;
    }
    if (merges[best].key == kNoMerge) break;
    s[best].id = merges[best].id;
    s[best].end = s[best + 1].end;
    s[best].num_chars = static_cast<uint16_t>(s[best].num_chars + s[best + 1].num_chars);
    std::copy(s.begin() + best + 2, s.begin() + n, s.begin() + best + 1);
    if (best + 2 < n) std::copy(merges + best + 2, merges + n - 1, merges + best + 1);
    --n;
    if (best > 0) merges[best - 1] = Find<kByScore>(word, s[best - 1], s[best]);
    if (best + 1 < n) merges[best] = Find<kByScore>(word, s[best], s[best + 1]);
  }
  for (; n < s.size(); ++n) s[n].dead = true;
}

template <bool kByScore>
void BpeModel::MergeLong(absl::string_view word, absl::Span<BpeSymbol> s,
                         std::vector<uint64_t>* heap_scratch) const {
  std::vector<uint64_t>& heap = *heap_scratch;
  heap.clear();
  const auto n = static_cast<int32_t>(s.size());
  const auto entry = [](uint32_t key, int32_t index) {
    return uint64_t{key} << 32 | uint32_t(index);
  };
  for (int32_t i = 0; i < n; ++i) {
    s[i].previous = i - 1;
    s[i].next = i + 1 < n ? i + 1 : -1;
    const Merge merge = i + 1 < n ? Find<kByScore>(word, s[i], s[i + 1]) : Merge();
    s[i].key = merge.key;
    s[i].merged = merge.id;
    if (s[i].key != kNoMerge) heap.push_back(entry(s[i].key, i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto update = [&](int32_t i) {
    const Merge merge = s[i].next == -1 ? Merge() : Find<kByScore>(word, s[i], s[s[i].next]);
    s[i].key = merge.key;
    s[i].merged = merge.id;
    if (s[i].key == kNoMerge) return;
    heap.push_back(entry(s[i].key, i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto i = static_cast<int32_t>(top & 0xFFFFFFFFu);
    BpeSymbol& left = s[i];
    // A pair that changed since it was pushed has another key, because a key at one place stands
    // for one text.
    if (left.dead || left.key != top >> 32) continue;
    BpeSymbol& right = s[left.next];
    left.id = left.merged;
    left.end = right.end;
    left.num_chars = static_cast<uint16_t>(
        std::min<uint32_t>(uint32_t{left.num_chars} + right.num_chars, 0xFFFF));
    left.next = right.next;
    right.dead = true;
    if (left.next != -1) s[left.next].previous = i;
    update(i);
    if (left.previous != -1) update(left.previous);
  }
}

void BpeModel::MergePart(absl::string_view word, absl::Span<BpeSymbol> part,
                         std::vector<uint64_t>* heap) const {
  if (part.size() < 2) return;
  const bool by_score = !ranks_.empty();
  if (part.size() <= kShortWordSymbols) {
    by_score ? MergeShort<true>(word, part) : MergeShort<false>(word, part);
  } else {
    by_score ? MergeLong<true>(word, part, heap) : MergeLong<false>(word, part, heap);
  }
}

bool BpeModel::EncodeWindows(absl::string_view word, absl::Span<BpeSymbol> part,
                             BpeScratch* scratch, std::vector<TokenId>* out) const {
  const auto collect = [](absl::Span<const BpeSymbol> merged, uint32_t offset, BpePieces* pieces) {
    pieces->clear();
    for (const BpeSymbol& symbol : merged) {
      if (!symbol.dead) pieces->push_back({symbol.id, offset + symbol.begin, offset + symbol.end});
    }
  };
  const auto encode = [&](uint32_t begin, uint32_t end, BpePieces* pieces) {
    const absl::string_view text = word.substr(begin, end - begin);
    Split(text, &scratch->seam_symbols);
    MergePart(text, absl::MakeSpan(scratch->seam_symbols), &scratch->heap);
    collect(scratch->seam_symbols, begin, pieces);
  };
  WindowJoin join(encode);
  for (size_t begin = 0; begin < part.size(); begin += kWindowSymbols) {
    const auto window = part.subspan(begin, kWindowSymbols);
    MergePart(word, window, &scratch->heap);
    collect(window, 0, &scratch->window);
    if (!join.Append(scratch->window)) return false;
  }
  for (const BpePiece& piece : join.pieces()) out->push_back(piece.id);
  return true;
}

void BpeModel::Encode(absl::string_view word, BpeScratch* scratch,
                      std::vector<TokenId>* out) const {
  if (options_.ignore_merges) {
    if (const TokenId id = tokens_.Find(word); id != kNoToken) {
      out->push_back(id);
      return;
    }
  }
  Split(word, &scratch->symbols);
  std::vector<BpeSymbol>& symbols = scratch->symbols;
  for (size_t begin = 0, end = 0; begin < symbols.size(); begin = end) {
    end = EndOfPart(word, symbols, begin);
    const auto part = absl::MakeSpan(symbols).subspan(begin, end - begin);
    // Windows are encoded again from their text, so they must begin and end between characters.
    const auto is_unknown = [&](const BpeSymbol& symbol) {
      return symbol.id == options_.unknown_id || IsFallbackByte(symbol);
    };
    if (part.size() > 2 * kWindowSymbols && absl::c_none_of(part, is_unknown)) {
      const std::vector<BpeSymbol> spare(part.begin(), part.end());
      if (EncodeWindows(word, part, scratch, out)) continue;
      std::copy(spare.begin(), spare.end(), part.begin());
    }
    MergePart(word, part, &scratch->heap);
    for (const BpeSymbol& symbol : part) {
      if (!symbol.dead) out->push_back(symbol.id);
    }
  }
}

}  // namespace tandem::model::tokenizer_internal
