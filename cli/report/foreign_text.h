// Texts of servers and files, as tables on a terminal show them.
// Thread safety: a pure function.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem::cli {

// `text` on one line, without what could steer a terminal: control characters, U+0080 to U+009F
// included, are escaped as in C ("\n", "\x1b"), and bytes that are not UTF-8 are replaced.
std::string OneLine(absl::string_view text);

}  // namespace tandem::cli
