// Structured logs: one line per event, `key=value`, on standard error.
//   Log(LogLevel::kInfo, "lease installed", {{"request_id", id}, {"blocks", 3}});
//   → 2026-11-21T18:03:12.123Z INFO decode-0 lease installed request_id=r-17 blocks=3
// Values with spaces, quotes or control characters are quoted and escaped. No code logs per token.
// Thread safety: any thread may log; each line is one write(2).
#pragma once

#include <initializer_list>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// One `key=value` pair; a value is anything that absl::StrCat takes. Log() skips a field whose key
// is empty.
struct LogField {
  LogField(absl::string_view key_in, const absl::AlphaNum& value_in)
      : key(key_in), value(value_in.Piece()) {}
  absl::string_view key;
  std::string value;
};

void Log(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields = {});

// Drops lines below `level` (default kInfo).
void SetLogLevel(LogLevel level);
// "debug", "info", "warning" or "error"; kInvalidArgument otherwise.
absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name);
// Sets the process's name in every line, such as the node id. Call it once, before threads start.
void SetLogProcessName(absl::string_view name);

}  // namespace tandem
