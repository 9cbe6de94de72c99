// Reads the log lines of child processes. What stands in quotes may be a client's, such as a
// request id: none of it counts as a message or as a field. Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem::cli {

// The value of `key` in a structured log line, text or JSON; empty when it has none.
std::string LogField(absl::string_view line, absl::string_view key);

// Whether the line, text or JSON, has this message. `process`: the name that a line of text has
// between its level and its message; a line of a process that has no name yet counts, too.
bool HasLogMessage(absl::string_view line, absl::string_view process, absl::string_view message);

// What `tandem up --logs=brief` prints of a line of text from a process; empty = nothing.
std::string BriefLine(const std::string& process, const std::string& line);

}  // namespace tandem::cli
