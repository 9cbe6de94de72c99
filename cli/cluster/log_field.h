// Reads fields of the log lines of child processes. Thread safety: a pure function.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem::cli {

// The value of `key` in a structured log line, text or JSON; empty when it has none.
std::string LogField(absl::string_view line, absl::string_view key);

}  // namespace tandem::cli
