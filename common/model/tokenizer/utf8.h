// UTF-8 as the tokenizer needs it: classify a sequence, replace ill-formed parts, decode text that
// is known to be well-formed. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem::model::tokenizer_internal {

inline constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind {
  kValid,       // one well-formed sequence of `length` bytes
  kInvalid,     // a maximal ill-formed subpart of `length` bytes
  kIncomplete,  // the text ends inside a sequence that is well-formed so far; all `length` bytes
};
struct Utf8Step {
  Utf8Kind kind;
  int length;
};

// Classifies the first sequence of `bytes`. REQUIRES: not empty.
Utf8Step ScanUtf8(absl::string_view bytes);

// True when all of `bytes` is well-formed.
bool IsValidUtf8(absl::string_view bytes);

// Appends `bytes` with U+FFFD for each maximal ill-formed subpart.
void AppendLossyUtf8(absl::string_view bytes, std::string* out);

void AppendUtf8(char32_t code_point, std::string* out);

// Decodes the sequence at `p`, setting `*length`. REQUIRES: well-formed UTF-8.
inline char32_t DecodeUtf8(const char* p, int* length) {
  const auto* b = reinterpret_cast<const uint8_t*>(p);
  if (b[0] < 0x80) {
    *length = 1;
    return b[0];
  }
  if (b[0] < 0xE0) {
    *length = 2;
    return char32_t((b[0] & 0x1F) << 6 | (b[1] & 0x3F));
  }
  if (b[0] < 0xF0) {
    *length = 3;
    return char32_t((b[0] & 0x0F) << 12 | (b[1] & 0x3F) << 6 | (b[2] & 0x3F));
  }
  *length = 4;
  return char32_t((b[0] & 0x07) << 18 | (b[1] & 0x3F) << 12 | (b[2] & 0x3F) << 6 | (b[3] & 0x3F));
}

// The length of the sequence that starts with `lead`. REQUIRES: well-formed UTF-8.
inline int Utf8Length(char lead) {
  const auto b = static_cast<uint8_t>(lead);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

}  // namespace tandem::model::tokenizer_internal
