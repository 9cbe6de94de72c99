#include "cli/terminal/word_wrap.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

namespace tandem::cli {
namespace {

constexpr char kFenceMark[] = "```";
constexpr char kEscape = '\033';
constexpr int kTabColumns = 8;  // at most

// The length of the character or escape sequence that `text` begins with; 0 when it is not whole.
// Bytes that are no UTF-8 count alone.
size_t LengthOfFirst(absl::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (text[0] == kEscape) {
    if (text.size() < 2) return 0;
    if (text[1] != '[') return 1;
    for (size_t i = 2; i < text.size(); ++i) {
      if (text[i] >= 0x40 && text[i] <= 0x7E) return i + 1;
    }
    return 0;
  }
  const size_t length = first < 0xC2 || first > 0xF4 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return 0;
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 1;
  }
  return length;
}

int ColumnsOf(absl::string_view character) {
  if (character[0] == kEscape) return 0;
  const auto* bytes = reinterpret_cast<const uint8_t*>(character.data());
  int32_t at = 0;
  UChar32 code = 0;
  U8_NEXT(bytes, at, static_cast<int32_t>(character.size()), code);
  if (code < 0) return 1;
  if (u_getCombiningClass(code) != 0) return 0;
  const int8_t kind = u_charType(code);
  if (kind == U_NON_SPACING_MARK || kind == U_ENCLOSING_MARK || kind == U_FORMAT_CHAR ||
      kind == U_CONTROL_CHAR) {
    return 0;
  }
  const int width = u_getIntPropertyValue(code, UCHAR_EAST_ASIAN_WIDTH);
  return width == U_EA_WIDE || width == U_EA_FULLWIDTH ? 2 : 1;
}

}  // namespace

std::string WordWrap::Append(absl::string_view text) {
  if (columns_ < 1) return std::string(text);
  std::string out;
  partial_.append(text.data(), text.size());
  absl::string_view rest = partial_;
  while (!rest.empty()) {
    const size_t length = LengthOfFirst(rest);
    if (length == 0) break;
    Take(rest.substr(0, length), out);
    rest.remove_prefix(length);
  }
  partial_ = std::string(rest);
  return out;
}

std::string WordWrap::Flush() {
  std::string out;
  word_ += partial_;
  partial_.clear();
  EndWord(out);
  out += spaces_;
  spaces_.clear();
  line_start_.clear();
  line_columns_ = space_columns_ = 0;
  fence_ = false;
  return out;
}

void WordWrap::Take(absl::string_view character, std::string& out) {
  if (character == "\n") {
    EndWord(out);
    out += spaces_;
    EndLine(out);
    return;
  }
  const bool space = character == " " || character == "\t";
  if (!space && character[0] != kEscape && line_start_.size() < sizeof(kFenceMark) - 1) {
    line_start_.append(character.data(), character.size());
    if (line_start_ == kFenceMark) fence_ = !fence_;
  }
  if (space) {
    EndWord(out);
    spaces_.append(character.data(), character.size());
    space_columns_ += character == " " ? 1 : kTabColumns;
    return;
  }
  const int columns = ColumnsOf(character);
  if (overlong_) {
    out.append(character.data(), character.size());
    line_columns_ += columns;
    return;
  }
  // Scripts without spaces break between any two characters.
  if (columns == 2) EndWord(out);
  word_.append(character.data(), character.size());
  word_columns_ += columns;
  if (fence_ || columns == 2) {
    EndWord(out);
  } else if (word_columns_ > columns_) {
    EndWord(out);
    overlong_ = true;
  }
}

void WordWrap::EndWord(std::string& out) {
  if (overlong_) line_columns_ = (line_columns_ - 1) % columns_ + 1;
  overlong_ = false;
  if (word_.empty()) return;
  const int end = line_columns_ + space_columns_ + word_columns_;
  const bool fits = line_columns_ == 0 || end <= columns_ || fence_ || word_columns_ > columns_;
  if (fits) {
    out += spaces_;
    line_columns_ = end;
  } else {
    out += '\n';  // in place of the spaces
    line_columns_ = word_columns_;
  }
  out += word_;
  word_.clear();
  spaces_.clear();
  space_columns_ = word_columns_ = 0;
}

void WordWrap::EndLine(std::string& out) {
  out += '\n';
  spaces_.clear();
  line_start_.clear();
  line_columns_ = space_columns_ = word_columns_ = 0;
}

}  // namespace tandem::cli
