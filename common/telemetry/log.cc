#include "common/telemetry/log.h"

#include <unistd.h>

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

bool NeedsQuotes(absl::string_view value) {
  if (value.empty()) return true;
  for (const unsigned char c : value) {
    if (c <= ' ' || c == '"' || c == '\\' || c == '=' || c == 0x7f) return true;
  }
  return false;
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
      absl::StrAppend(&line, "\"", absl::Utf8SafeCEscape(field.value), "\"");
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
