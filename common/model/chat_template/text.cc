#include "common/model/chat_template/text.h"

#include <string.h>
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::model::chat_template {
namespace {

bool IsContinuation(absl::string_view text, size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
}

uint32_t Byte(absl::string_view text, size_t at) { return static_cast<unsigned char>(text[at]); }

struct Decoded {
  char32_t code_point;
  size_t bytes;
};

Decoded Decode(absl::string_view text) {
  const uint32_t lead = Byte(text, 0);
  if (lead < 0x80) return {lead, 1};
  if (lead >= 0xc2 && lead < 0xe0 && IsContinuation(text, 1)) {
    return {(lead & 0x1f) << 6 | (Byte(text, 1) & 0x3f), 2};
  }
  if (lead >= 0xe0 && lead < 0xf0 && IsContinuation(text, 1) && IsContinuation(text, 2)) {
    const uint32_t value =
        (lead & 0x0f) << 12 | (Byte(text, 1) & 0x3f) << 6 | (Byte(text, 2) & 0x3f);
    if (value >= 0x800 && (value < 0xd800 || value > 0xdfff)) return {value, 3};
  }
  if (lead >= 0xf0 && lead < 0xf5 && IsContinuation(text, 1) && IsContinuation(text, 2) &&
      IsContinuation(text, 3)) {
    const uint32_t value = (lead & 0x07) << 18 | (Byte(text, 1) & 0x3f) << 12 |
                           (Byte(text, 2) & 0x3f) << 6 | (Byte(text, 3) & 0x3f);
    if (value >= 0x10000 && value <= 0x10ffff) return {value, 4};
  }
  return {0xdc00 + lead, 1};
}

// Applies ICU's full case mapping to `text`, leaving invalid bytes where they are.
template <typename Map>
std::string MapCase(absl::string_view text, Map map) {
  std::string out;
  while (!text.empty()) {
    size_t valid = 0;
    while (valid < text.size()) {
      const Decoded next = Decode(text.substr(valid));
      if (next.bytes == 1 && next.code_point >= 0x80) break;
      valid += next.bytes;
    }
    icu::UnicodeString piece =
        icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(valid)));
    map(piece);
    piece.toUTF8String(out);
    text.remove_prefix(valid);
    if (!text.empty()) {
      out.push_back(text[0]);
      text.remove_prefix(1);
    }
  }
  return out;
}

bool IsPrintable(char32_t code_point) {
  if (code_point == ' ') return true;
  switch (u_charType(static_cast<UChar32>(code_point))) {
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_SURROGATE:
    case U_PRIVATE_USE_CHAR:
    case U_UNASSIGNED:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR:
    case U_SPACE_SEPARATOR:
      return false;
    default:
      return true;
  }
}

bool Contains(absl::string_view characters, absl::string_view code_point) {
  return characters.find(code_point) != absl::string_view::npos;
}

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool IsLineBreak(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

}  // namespace

size_t CodePointBytes(absl::string_view text) { return Decode(text).bytes; }

size_t LastCodePointBytes(absl::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && text.size() - start < 4 && IsContinuation(text, start)) --start;
  return CodePointBytes(text.substr(start)) == text.size() - start ? text.size() - start : 1;
}

char32_t DecodeCodePoint(absl::string_view text) { return Decode(text).code_point; }

void AppendCodePoint(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xc0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xe0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else {
    out->push_back(static_cast<char>(0xf0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3f)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  }
}

int64_t CodePointCount(absl::string_view text) {
  int64_t count = 0;
  for (; !text.empty(); ++count) text.remove_prefix(CodePointBytes(text));
  return count;
}

size_t BytesOfCodePoints(absl::string_view text, int64_t count) {
  size_t bytes = 0;
  for (; count > 0 && bytes < text.size(); --count) bytes += CodePointBytes(text.substr(bytes));
  return bytes;
}

std::vector<absl::string_view> CodePoints(absl::string_view text) {
  std::vector<absl::string_view> points;
  while (!text.empty()) {
    points.push_back(text.substr(0, CodePointBytes(text)));
    text.remove_prefix(points.back().size());
  }
  return points;
}

bool IsSpace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool IsLetter(char32_t c) { return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0; }
bool HasDigitValue(char32_t c) {
  const int32_t type = u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE);
  return type == U_NT_DECIMAL || type == U_NT_DIGIT;
}
bool HasNumericValue(char32_t c) {
  return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}
bool IsLowercase(char32_t c) { return u_isULowercase(static_cast<UChar32>(c)) != 0; }
bool IsUppercase(char32_t c) { return u_isUUppercase(static_cast<UChar32>(c)) != 0; }
bool IsTitlecase(char32_t c) { return u_istitle(static_cast<UChar32>(c)) != 0; }

absl::string_view Strip(absl::string_view text, const StripOptions& options) {
  const auto strips = [&](absl::string_view point) {
    return options.characters == nullptr ? IsSpace(DecodeCodePoint(point))
                                         : Contains(*options.characters, point);
  };
  while (options.left && !text.empty()) {
    const absl::string_view point = text.substr(0, CodePointBytes(text));
    if (!strips(point)) break;
    text.remove_prefix(point.size());
  }
  while (options.right && !text.empty()) {
    const size_t bytes = LastCodePointBytes(text);
    if (!strips(text.substr(text.size() - bytes))) break;
    text.remove_suffix(bytes);
  }
  return text;
}

std::string Upper(absl::string_view text) {
  if (IsAscii(text)) return absl::AsciiStrToUpper(text);
  return MapCase(text, [](icu::UnicodeString& piece) { piece.toUpper(icu::Locale::getRoot()); });
}
std::string Lower(absl::string_view text) {
  if (IsAscii(text)) return absl::AsciiStrToLower(text);
  return MapCase(text, [](icu::UnicodeString& piece) { piece.toLower(icu::Locale::getRoot()); });
}

std::string Capitalize(absl::string_view text) {
  if (text.empty()) return "";
  const size_t first = CodePointBytes(text);
  return Upper(text.substr(0, first)) + Lower(text.substr(first));
}

std::string PythonTitle(absl::string_view text) {
  std::string out;
  bool in_word = false;
  for (; !text.empty(); text.remove_prefix(CodePointBytes(text))) {
    const absl::string_view point = text.substr(0, CodePointBytes(text));
    const auto c = static_cast<UChar32>(DecodeCodePoint(point));
    const bool invalid = point.size() == 1 && c >= 0x80;
    if (invalid) {
      absl::StrAppend(&out, point);
    } else {
      AppendCodePoint(static_cast<char32_t>(in_word ? u_tolower(c) : u_totitle(c)), &out);
    }
    in_word = !invalid && (u_isULowercase(c) || u_isUUppercase(c) || u_istitle(c));
  }
  return out;
}

std::string JinjaTitle(absl::string_view text) {
  const auto separates = [](absl::string_view point) {
    return Contains("-({[<", point) || IsSpace(DecodeCodePoint(point));
  };
  std::string out;
  while (!text.empty()) {
    size_t end = 0;
    while (end < text.size()) {
      const absl::string_view point = text.substr(end, CodePointBytes(text.substr(end)));
      if (separates(point)) break;
      end += point.size();
    }
    const size_t first = CodePointBytes(text);
    if (end == 0) {
      absl::StrAppend(&out, text.substr(0, first));
      text.remove_prefix(first);
      continue;
    }
    absl::StrAppend(&out, Upper(text.substr(0, first)), Lower(text.substr(first, end - first)));
    text.remove_prefix(end);
  }
  return out;
}

std::vector<absl::string_view> SplitLines(absl::string_view text) {
  std::vector<absl::string_view> lines;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const Decoded next = Decode(text.substr(at));
    if (!IsLineBreak(next.code_point)) {
      at += next.bytes;
      continue;
    }
    lines.push_back(text.substr(start, at - start));
    at += next.bytes;
    if (next.code_point == '\r' && at < text.size() && text[at] == '\n') ++at;
    start = at;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

size_t FindText(absl::string_view text, absl::string_view needle, size_t from) {
  if (from > text.size()) return absl::string_view::npos;
  if (needle.empty()) return from;
  // glibc's memmem is linear (two-way); std::string_view::find is not.
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return absl::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::string ReprText(absl::string_view text) {
  const bool has_single = text.find('\'') != absl::string_view::npos;
  const char quote = has_single && text.find('"') == absl::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (; !text.empty(); text.remove_prefix(CodePointBytes(text))) {
    const absl::string_view point = text.substr(0, CodePointBytes(text));
    const char32_t c = DecodeCodePoint(point);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.push_back('\\');
      absl::StrAppend(&out, point);
    } else if (c == '\n') {
      absl::StrAppend(&out, "\\n");
    } else if (c == '\r') {
      absl::StrAppend(&out, "\\r");
    } else if (c == '\t') {
      absl::StrAppend(&out, "\\t");
    } else if (IsPrintable(c)) {
      absl::StrAppend(&out, point);
    } else if (c < 0x100) {
      absl::StrAppend(&out, absl::StrFormat("\\x%02x", c));
    } else if (c < 0x10000) {
      absl::StrAppend(&out, absl::StrFormat("\\u%04x", c));
    } else {
      absl::StrAppend(&out, absl::StrFormat("\\U%08x", c));
    }
  }
  out.push_back(quote);
  return out;
}

std::string ReprDouble(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto written =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string digits(buffer, written.ptr);
  const size_t mark = digits.find('e');
  const int exponent = std::atoi(digits.c_str() + mark + 1);
  if (exponent < -4 || exponent >= 16) return digits;
  char fixed[64];
  const auto end = std::to_chars(fixed, fixed + sizeof(fixed), value, std::chars_format::fixed);
  std::string text(fixed, end.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

}  // namespace tandem::model::chat_template
