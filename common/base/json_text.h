// What is found in the text of JSON before a parser runs. Thread safety: pure functions.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace tandem {

// Calls visit(at, char) for each character of `text` that lies outside strings, quotes excepted,
// until it returns false. `at`: where it stands. `text` need not be JSON.
template <typename Visit>
void VisitOutsideStrings(absl::string_view text, Visit visit) {
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (!visit(i, c)) {
      return;
    }
  }
}

// The bytes of the object that `text` begins with, up to the bracket that closes it; 0 when it
// begins with none, or with one that has no end. What lies within need not be JSON.
inline size_t JsonObjectSize(absl::string_view text) {
  if (text.empty() || text[0] != '{') return 0;
  size_t depth = 0, size = 0;
  VisitOutsideStrings(text, [&](size_t at, char c) {
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) size = at + 1;
    return size == 0;
  });
  return size;
}

}  // namespace tandem
