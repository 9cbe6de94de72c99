#include "common/model/tokenizer/word_scanner.h"

#include <array>
#include <cstdint>

#include "common/model/tokenizer/unicode_class.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::model::tokenizer_internal {

const absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const absl::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const absl::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

constexpr std::array<uint8_t, 128> MakeAsciiClasses() {
  std::array<uint8_t, 128> classes{};
  for (int c = 'a'; c <= 'z'; ++c) classes[c] = classes[c - 'a' + 'A'] = kLetter;
  for (int c = '0'; c <= '9'; ++c) classes[c] = kNumber;
  for (int c = 9; c <= 13; ++c) classes[c] = kSpace;
  classes[' '] = kSpace;
  return classes;
}
constexpr std::array<uint8_t, 128> kAsciiClasses = MakeAsciiClasses();

struct Character {
  uint8_t code_class;
  int length;
};

// The class as patterns define it. Digits that their Unicode lacks are neither letters nor numbers,
// unless the Digits pre-tokeniser runs first.
template <bool kDigitsFirst>
inline Character Look(const char* p) {
  const auto byte = static_cast<uint8_t>(*p);
  if (byte < 0x80) return {kAsciiClasses[byte], 1};
  int length = 0;
  const UnicodeClass code_class = ClassOf(DecodeUtf8(p, &length));
  if (code_class == kDigitsOnly) {
    return {static_cast<uint8_t>(kDigitsFirst ? kNumber : kOther), length};
  }
  return {code_class, length};
}

template <bool kDigitsFirst>
inline const char* SkipRun(const char* p, const char* end, uint8_t code_class) {
  while (p < end) {
    const Character c = Look<kDigitsFirst>(p);
    if (c.code_class != code_class) break;
    p += c.length;
  }
  return p;
}

inline bool IsNewline(char c) { return c == '\r' || c == '\n'; }

// \s+(?!\S)|\s+ : all of a run that ends the text, else the run less its last character, which
// belongs to the next word, unless it is the only one. `p` is at white space.
template <bool kDigitsFirst>
const char* SkipSpaces(const char* p, const char* end) {
  const char* last = p;
  const char* q = p;
  while (q < end) {
    const Character c = Look<kDigitsFirst>(q);
    if (c.code_class != kSpace) {
      // A number ends the piece when digits were split off before.
      if (kDigitsFirst && c.code_class == kNumber) return q;
      return last == p ? q : last;
    }
    last = q;
    q += c.length;
  }
  return q;
}

// The length of 's 't 'm 'd 're 've 'll at `p`, which is an apostrophe; 0 if none follows.
int ContractionLength(const char* p, const char* end) {
  if (end - p < 2) return 0;
  switch (p[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return end - p >= 3 && p[2] == 'e' ? 3 : 0;
    case 'l':
      return end - p >= 3 && p[2] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

inline char LowerAscii(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

// The same, ignoring case. The long s (U+017F) matches s.
int ContractionLengthAnyCase(const char* p, const char* end) {
  char lower[3] = {'\'', 0, 0};
  for (int i = 1; i < 3 && p + i < end; ++i) lower[i] = LowerAscii(p[i]);
  if (const int length = ContractionLength(lower, lower + 3); length > 0) return length;
  return end - p >= 3 && p[1] == '\xC5' && p[2] == '\xBF' ? 3 : 0;
}

template <bool kDigitsFirst>
const char* ScanGpt2(const char* p, const char* end) {
  if (*p == '\'') {
    if (const int length = ContractionLength(p, end); length > 0) return p + length;
  }
  const char* q = p;
  Character c = Look<kDigitsFirst>(q);
  if (kDigitsFirst && c.code_class == kNumber) return p + c.length;
  if (*p == ' ' && p + 1 < end) {
    c = Look<kDigitsFirst>(++q);
    if (kDigitsFirst && c.code_class == kNumber) return q;
  }
  if (c.code_class == kSpace) return SkipSpaces<kDigitsFirst>(p, end);
  return SkipRun<kDigitsFirst>(q + c.length, end, c.code_class);
}

// \s*[\r\n]+ : up to the last line end of the run of white space at `p`; nullptr if it has none.
const char* SkipToLastNewline(const char* p, const char* end) {
  const char* found = nullptr;
  while (p < end) {
    const Character c = Look<false>(p);
    if (c.code_class != kSpace) break;
    if (IsNewline(*p)) found = p + 1;
    p += c.length;
  }
  return found;
}

template <int kNumbersMax>
const char* ScanLlama3(const char* p, const char* end) {
  if (*p == '\'') {
    if (const int length = ContractionLengthAnyCase(p, end); length > 0) return p + length;
  }
  const Character first = Look<false>(p);
  const char* second = p + first.length;
  if (first.code_class == kLetter) return SkipRun<false>(second, end, kLetter);
  if (first.code_class == kNumber) {
    for (int i = 1; i < kNumbersMax && second < end; ++i) {
      const Character c = Look<false>(second);
      if (c.code_class != kNumber) break;
      second += c.length;
    }
    return second;
  }
  if (!IsNewline(*p) && second < end && Look<false>(second).code_class == kLetter) {
    return SkipRun<false>(second, end, kLetter);
  }
  const bool after_space = *p == ' ' && second < end && Look<false>(second).code_class == kOther;
  if (first.code_class == kOther || after_space) {
    const char* q = SkipRun<false>(second, end, kOther);
    while (q < end && IsNewline(*q)) ++q;
    return q;
  }
  if (const char* newline = SkipToLastNewline(p, end); newline != nullptr) return newline;
  return SkipSpaces<false>(p, end);
}

}  // namespace

ScanWordFn WordScannerOf(ScannerKind kind) {
  switch (kind) {
    case ScannerKind::kNone:
      return nullptr;
    case ScannerKind::kGpt2:
      return &ScanGpt2<false>;
    case ScannerKind::kSmollm:
      return &ScanGpt2<true>;
    case ScannerKind::kLlama3:
      return &ScanLlama3<3>;
    case ScannerKind::kQwen2:
      return &ScanLlama3<1>;
  }
  return nullptr;
}

}  // namespace tandem::model::tokenizer_internal
