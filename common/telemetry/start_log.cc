#include "common/telemetry/start_log.h"

#include <atomic>

namespace tandem {
namespace {

std::atomic<bool> g_brief{false};

}  // namespace

void LogStart(absl::string_view message, std::initializer_list<LogField> fields) {
  if (!g_brief.load(std::memory_order_relaxed)) Log(LogLevel::kInfo, message, fields);
}

void SetBriefStart(bool brief) { g_brief.store(brief, std::memory_order_relaxed); }

}  // namespace tandem
