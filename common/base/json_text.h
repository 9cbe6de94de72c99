// What is found in the text of JSON before a parser runs. Thread safety: pure functions.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace tandem {

// Calls visit(char) for each character of `text` that lies outside strings, quotes excepted, until
// it returns false. `text` need not be JSON.
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
    } else if (!visit(c)) {
      return;
    }
  }
}

}  // namespace tandem
