// Structured logs: one line per event, `key=value`, on standard error.
//   Log(LogLevel::kInfo, "lease installed", {{"request_id", id}, {"blocks", 3}});
//   → 2026-11-21T18:03:12.123Z INFO decode-0 lease installed request_id=r-17 blocks=3
// Values with spaces, quotes or control characters are quoted and escaped. No code logs per token.
// As JSON the same line is one object: "time", "level", "process", "message", then the fields;
// numbers are numbers. No field has one of the four names.
// Thread safety: any thread may log; each line is one write(2).
#pragma once

#include <cmath>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

enum class LogFormat {
  kText,     // as above
  kColours,  // for a terminal: the time without its date; warnings and errors in colour
  kJson,     // one JSON object a line
};

// One `key=value` pair; a value is anything that absl::StrCat takes. Log() skips a field whose key
// is empty.
struct LogField {
  LogField(absl::string_view key_in, const absl::AlphaNum& value_in)
      : key(key_in), value(value_in.Piece()) {}
  template <typename Number, std::enable_if_t<std::is_arithmetic_v<Number>, bool> = true>
  LogField(absl::string_view key_in, Number value_in)
      : key(key_in), value(absl::StrCat(value_in)), is_number(std::isfinite(value_in)) {}
  absl::string_view key;
  std::string value;
  bool is_number = false;
};

void Log(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields = {});

// Drops lines below `level` (default kInfo).
void SetLogLevel(LogLevel level);
// "debug", "info", "warning" or "error"; kInvalidArgument otherwise.
absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name);
// How lines look (default kText). Call it once, before threads start.
void SetLogFormat(LogFormat format);
// Sets the process's name in every line, such as the node id. Call it once, before threads start.
void SetLogProcessName(absl::string_view name);

}  // namespace tandem
