#include "common/model/tokenizer/added_tokens.h"

#include <unicode/uchar.h>

#include "common/model/tokenizer/token_table.h"
#include "common/model/tokenizer/unicode_class.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::model::tokenizer_internal {
namespace {

// The start of the last character of text[0, end).
size_t PreviousCharacter(absl::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
  return begin;
}

UnicodeClass ClassAt(absl::string_view text, size_t begin) {
  int length = 0;
  return ClassOf(DecodeUtf8(text.data() + begin, &length));
}

// \w as Unicode's regular expressions define it (UTS 18, annex C).
bool IsWordCharacter(absl::string_view text, size_t begin) {
  int length = 0;
  const auto c = static_cast<UChar32>(DecodeUtf8(text.data() + begin, &length));
  return u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) ||
         (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

bool IsSingleWord(absl::string_view text, size_t begin, size_t end) {
  if (begin > 0 && IsWordCharacter(text, PreviousCharacter(text, begin))) return false;
  return end == text.size() || !IsWordCharacter(text, end);
}

// Where the white space that ends at `end` begins, at `limit` or later.
size_t StripLeft(absl::string_view text, size_t limit, size_t end) {
  while (end > limit) {
    const size_t previous = PreviousCharacter(text, end);
    if (ClassAt(text, previous) != kSpace) break;
    end = previous;
  }
  return end;
}

size_t StripRight(absl::string_view text, size_t begin) {
  while (begin < text.size() && ClassAt(text, begin) == kSpace) begin += Utf8Length(text[begin]);
  return begin;
}

}  // namespace

void AddedTokenMatcher::Add(const AddedToken& token, absl::string_view content) {
  // The input is well-formed UTF-8; a token that is not could match only inside a character.
  if (content.empty() || !IsValidUtf8(content)) return;
  is_first_byte_[static_cast<uint8_t>(content[0])] = true;
  int32_t node = 0;
  for (const char c : content) {
    const uint64_t edge = uint64_t{static_cast<uint32_t>(node)} << 8 | static_cast<uint8_t>(c);
    const auto [it, is_new] = edges_.try_emplace(edge, static_cast<int32_t>(token_at_node_.size()));
    if (is_new) token_at_node_.push_back(-1);
    node = it->second;
  }
  if (token_at_node_[node] != -1) return;
  token_at_node_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back({token.id, token.special, token.single_word, token.lstrip, token.rstrip});
}

int AddedTokenMatcher::LongestAt(absl::string_view text, size_t begin, size_t* length) const {
  int best = -1;
  int32_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    const auto it =
        edges_.find(uint64_t{static_cast<uint32_t>(node)} << 8 | static_cast<uint8_t>(text[i]));
    if (it == edges_.end()) break;
    node = it->second;
    if (token_at_node_[node] == -1) continue;
    best = token_at_node_[node];
    *length = i + 1 - begin;
  }
  return best;
}

bool AddedTokenMatcher::Walk::Next(Piece* piece) {
  if (has_held_) {
    has_held_ = false;
    *piece = held_;
    return true;
  }
  while (search_ < text_.size()) {
    size_t length = 0;
    const size_t found = search_;
    const bool may_match = matcher_->is_first_byte_[static_cast<uint8_t>(text_[found])];
    const int index = may_match ? matcher_->LongestAt(text_, found, &length) : -1;
    if (index < 0) {
      ++search_;
      continue;
    }
    search_ = found + length;
    const Entry& token = matcher_->tokens_[index];
    if (token.special && !parse_special_) continue;
    if (token.single_word && !IsSingleWord(text_, found, search_)) continue;
    const size_t begin = token.lstrip ? StripLeft(text_, position_, found) : found;
    if (token.rstrip) search_ = StripRight(text_, search_);
    held_ = {token.id, begin, search_};
    const size_t text_begin = position_;
    position_ = search_;
    if (begin > text_begin) {
      *piece = {kNoToken, text_begin, begin};
      has_held_ = true;
    } else {
      *piece = held_;
    }
    return true;
  }
  if (position_ == text_.size()) return false;
  *piece = {kNoToken, position_, text_.size()};
  position_ = text_.size();
  return true;
}

}  // namespace tandem::model::tokenizer_internal
