#include "common/telemetry/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tandem {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::atomic<LogFormat> g_format{LogFormat::kText};

std::string& ProcessName() {
  static std::string name;
  return name;
}

constexpr absl::string_view kLevelNames[] = {"DEBUG", "INFO", "WARNING", "ERROR"};

// How many bytes the character at the beginning of `text` has if it is one beyond ASCII that a
// terminal obeys, or that hides or moves the text around it: U+0080 to U+009F, U+2028 to U+202E
// and U+2066 to U+2069. 0 for any other.
size_t ControlBytes(absl::string_view text) {
  const auto is_between = [text](size_t at, unsigned char least, unsigned char most) {
    if (at >= text.size()) return false;
    const auto byte = static_cast<unsigned char>(text[at]);
    return least <= byte && byte <= most;
  };
  if (is_between(0, 0xc2, 0xc2)) return is_between(1, 0x80, 0x9f) ? 2 : 0;
  if (!is_between(0, 0xe2, 0xe2)) return 0;
  if (is_between(1, 0x80, 0x80)) return is_between(2, 0xa8, 0xae) ? 3 : 0;
  return is_between(1, 0x81, 0x81) && is_between(2, 0xa6, 0xa9) ? 3 : 0;
}

bool NeedsQuotes(absl::string_view value) {
  if (value.empty()) return true;
  for (size_t i = 0; i < value.size(); ++i) {
    const auto c = static_cast<unsigned char>(value[i]);
    if (c <= ' ' || c == '"' || c == '\\' || c == '=' || c == 0x7f) return true;
    if (ControlBytes(value.substr(i)) > 0) return true;
  }
  return false;
}

std::string Escaped(absl::string_view value) {
  std::string escaped;
  size_t begin = 0;  // of what is not escaped yet
  for (size_t i = 0; i < value.size();) {
    const size_t bytes = ControlBytes(value.substr(i));
    if (bytes > 0) {
      absl::StrAppend(&escaped, absl::Utf8SafeCEscape(value.substr(begin, i - begin)),
                      absl::CEscape(value.substr(i, bytes)));
      begin = i + bytes;
    }
    i += std::max<size_t>(bytes, 1);
  }
  return escaped + absl::Utf8SafeCEscape(value.substr(begin));
}

std::string TextLine(absl::Time now, LogLevel level, absl::string_view message,
                     std::initializer_list<LogField> fields, bool colours) {
  const char* colour = "";
  if (colours && level == LogLevel::kWarning) colour = "\033[33m";
  if (colours && level == LogLevel::kError) colour = "\033[31m";
  std::string line = absl::FormatTime(colours ? "%H:%M:%E3S" : "%Y-%m-%dT%H:%M:%E3SZ", now,
                                      colours ? absl::LocalTimeZone() : absl::UTCTimeZone());
  absl::StrAppend(&line, " ", colour, kLevelNames[static_cast<int>(level)],
                  *colour == 0 ? "" : "\033[0m", " ");
  if (!ProcessName().empty()) absl::StrAppend(&line, ProcessName(), " ");
  absl::StrAppend(&line, message);
  for (const LogField& field : fields) {
    if (field.key.empty()) continue;
    absl::StrAppend(&line, " ", field.key, "=");
    if (NeedsQuotes(field.value)) {
      absl::StrAppend(&line, "\"", Escaped(field.value), "\"");
    } else {
      absl::StrAppend(&line, field.value);
    }
  }
  return line;
}

std::string JsonLine(absl::Time now, LogLevel level, absl::string_view message,
                     std::initializer_list<LogField> fields) {
  nlohmann::ordered_json line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", now, absl::UTCTimeZone());
  line["level"] = kLevelNames[static_cast<int>(level)];
  if (!ProcessName().empty()) line["process"] = ProcessName();
  line["message"] = std::string(message);
  for (const LogField& field : fields) {
    if (field.key.empty()) continue;
    const std::string key(field.key);
    line[key] = field.is_number ? nlohmann::ordered_json::parse(field.value)
                                : nlohmann::ordered_json(field.value);
  }
  // Bytes that are no UTF-8 become U+FFFD.
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

void Log(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields) {
  if (level < g_level.load(std::memory_order_relaxed)) return;
  const LogFormat format = g_format.load(std::memory_order_relaxed);
  std::string line = format == LogFormat::kJson
                         ? JsonLine(absl::Now(), level, message, fields)
                         : TextLine(absl::Now(), level, message, fields,
                                    /*colours=*/format == LogFormat::kColours);
  line.push_back('\n');
  // Ignore a failed write: there is no other place to report it.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

void SetLogLevel(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return absl::InvalidArgumentError(
      absl::StrCat("log level '", name, "': expected debug, info, warning or error"));
}

void SetLogFormat(LogFormat format) { g_format.store(format, std::memory_order_relaxed); }

void SetLogProcessName(absl::string_view name) { ProcessName() = std::string(name); }

}  // namespace tandem
