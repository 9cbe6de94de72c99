#include "common/node/memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace tandem::node {
namespace {

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // missing, or "max"
}

}  // namespace

absl::StatusOr<int64_t> AvailableMemoryBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0;
  std::optional<int64_t> available;
  while (meminfo >> key >> kib) {
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") available = kib * 1024;
  }
  if (!available.has_value()) {
    return absl::UnavailableError("/proc/meminfo has no MemAvailable: set kv-blocks instead");
  }
  const auto limit = ReadNumber("/sys/fs/cgroup/memory.max");
  const auto used = ReadNumber("/sys/fs/cgroup/memory.current");
  if (limit.has_value() && used.has_value()) {
    available = std::min(*available, std::max<int64_t>(0, *limit - *used));
  }
  return *available;
}

}  // namespace tandem::node
