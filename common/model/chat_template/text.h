// Text with Python's view of it: a sequence of code points, stored as UTF-8. A byte that is not
// part of valid UTF-8 counts as one code point and passes through unchanged. Thread safety: pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::model::chat_template {

// Bytes of the code point that starts `text`. REQUIRES: !text.empty().
size_t CodePointBytes(absl::string_view text);
// Bytes of the one that ends `text`. REQUIRES: !text.empty().
size_t LastCodePointBytes(absl::string_view text);
// The value of the first; invalid bytes give 0xDC00 + byte, as Python's surrogateescape does.
char32_t DecodeCodePoint(absl::string_view text);
void AppendCodePoint(char32_t code_point, std::string* out);

int64_t CodePointCount(absl::string_view text);
// The bytes of the first `count` code points, or of all if there are fewer.
size_t BytesOfCodePoints(absl::string_view text, int64_t count);
// Views into `text`, which must outlive them: a temporary is refused.
std::vector<absl::string_view> CodePoints(absl::string_view text);
std::vector<absl::string_view> CodePoints(std::string&& text) = delete;

bool IsSpace(char32_t code_point);          // str.isspace's notion
bool IsLetter(char32_t code_point);         // str.isalpha's
bool HasDigitValue(char32_t code_point);    // str.isdigit's
bool HasNumericValue(char32_t code_point);  // str.isnumeric's
bool IsLowercase(char32_t code_point);
bool IsUppercase(char32_t code_point);
bool IsTitlecase(char32_t code_point);
// Removes white space (str.strip()) or any code point in `characters` from the ends chosen.
struct StripOptions {
  bool left = true;
  bool right = true;
  const std::string* characters = nullptr;
};
absl::string_view Strip(absl::string_view text, const StripOptions& options);

std::string Upper(absl::string_view text);
std::string Lower(absl::string_view text);
std::string Capitalize(absl::string_view text);   // first upper, the rest lower
std::string PythonTitle(absl::string_view text);  // str.title()
std::string JinjaTitle(absl::string_view text);   // the `title` filter

// str.splitlines(): views into `text`, which must outlive them.
std::vector<absl::string_view> SplitLines(absl::string_view text);
std::vector<absl::string_view> SplitLines(std::string&& text) = delete;
// Position of `needle` at or after `from`, npos when absent; linear in `text`.
size_t FindText(absl::string_view text, absl::string_view needle, size_t from = 0);

// repr() of a text, quotes included.
std::string ReprText(absl::string_view text);
// repr() of a number.
std::string ReprDouble(double value);

}  // namespace tandem::model::chat_template
