// A text that a client or a peer sent, as an error repeats it. A long text is not repeated: the
// error tells its length, or, of a path, the first keys. The sender chooses the length, and gRPC
// carries errors in headers, which are short.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Longer than any name that a person chooses.
inline constexpr size_t kShownBytesMax = 128;
// Of a path into JSON, or of a message that a chat template made: more than people write.
inline constexpr size_t kShownLongBytesMax = 1024;

// `text`, or "a text of N bytes" if it is longer than `bytes_max`.
inline std::string Shown(absl::string_view text, size_t bytes_max = kShownBytesMax) {
  return text.size() <= bytes_max ? std::string(text)
                                  : absl::StrCat("a text of ", text.size(), " bytes");
}

// The same, in quotes if it is shown.
inline std::string ShownInQuotes(absl::string_view text, size_t bytes_max = kShownBytesMax) {
  return text.size() <= bytes_max ? absl::StrCat("\"", text, "\"") : Shown(text, bytes_max);
}

// `path`; of one longer than kShownLongBytesMax the keys that fit, and "...". `separators`: the
// ASCII characters that may stand before a key. A key that is too long itself is left out.
inline std::string ShownPath(absl::string_view path, absl::string_view separators) {
  if (path.size() <= kShownLongBytesMax) return std::string(path);
  const size_t end = path.find_last_of(separators, kShownLongBytesMax);
  return absl::StrCat(path.substr(0, end == absl::string_view::npos ? 0 : end), "...");
}

}  // namespace tandem
