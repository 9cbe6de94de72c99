#include "common/node/available_memory.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/runtime/control_groups.h"

namespace tandem::node {
namespace {

// The number in a file; nullopt when the file is missing or contains "max".
std::optional<int64_t> ReadNumber(const std::string& path) {
  int64_t value = 0;
  if (absl::SimpleAtoi(ReadSmallFile(path), &value)) return value;
  return std::nullopt;
}

// The number behind `key` in a file of lines "key number" or "key: number kB".
std::optional<int64_t> ReadField(const std::string& path, const std::string& key) {
  std::istringstream lines(ReadSmallFile(path));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

// How much of its limit a control group has left; nullopt without a limit. Version 1 writes "no
// limit" as a number that is larger than any machine's memory, which needs no special case.
std::optional<int64_t> LeftBy(const ControlGroup& group) {
  const bool first = group.first_version;
  const auto limit = ReadNumber(group.folder + (first ? "/memory.limit_in_bytes" : "/memory.max"));
  const auto used =
      ReadNumber(group.folder + (first ? "/memory.usage_in_bytes" : "/memory.current"));
  if (!limit.has_value() || !used.has_value()) return std::nullopt;
  const int64_t droppable =
      ReadField(group.folder + "/memory.stat", first ? "total_inactive_file" : "inactive_file")
          .value_or(0);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - droppable));
}

}  // namespace

absl::StatusOr<int64_t> AvailableMemoryBytes(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  const std::optional<int64_t> kib = ReadField(meminfo, "MemAvailable:");
  if (!kib.has_value()) {
    return absl::UnavailableError(
        absl::StrCat(meminfo, " has no MemAvailable: set kv-blocks instead"));
  }
  int64_t available = *kib * 1024;
  for (const ControlGroup& group : ControlGroupsOf(root, "memory")) {
    available = std::min(available, LeftBy(group).value_or(available));
  }
  return available;
}

}  // namespace tandem::node
