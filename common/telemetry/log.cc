#include "common/telemetry/log.h"

#include <unistd.h>

#include <atomic>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tandem {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};

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

}  // namespace

void Log(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields) {
  if (level < g_level.load(std::memory_order_relaxed)) return;
  std::string line = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  absl::StrAppend(&line, " ", kLevelNames[static_cast<int>(level)], " ");
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

void SetLogProcessName(absl::string_view name) { ProcessName() = std::string(name); }

}  // namespace tandem
