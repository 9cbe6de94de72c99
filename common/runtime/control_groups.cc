#include "common/runtime/control_groups.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tandem {

std::string ReadSmallFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  if (file) text << file.rdbuf();
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

std::vector<ControlGroup> ControlGroupsOf(const std::string& root, absl::string_view controller) {
  const std::string second = root + "/sys/fs/cgroup";
  const std::string first = absl::StrCat(second, "/", controller);
  std::vector<ControlGroup> groups = {{second, false}, {first, true}};
  // Lines "0::/a/b" of the second version, "4:cpu,cpuacct:/a/b" of the first.
  for (const absl::string_view line :
       absl::StrSplit(ReadSmallFile(root + "/proc/self/cgroup"), '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    const bool is_second = fields[1].empty();
    if (!is_second &&
        std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) {
      continue;
    }
    for (std::string path(fields[2]); path.size() > 1; path.resize(path.rfind('/'))) {
      if (path[0] != '/') break;
      groups.push_back({absl::StrCat(is_second ? second : first, path), !is_second});
    }
  }
  return groups;
}

std::optional<int64_t> MemoryLimitBytes(const std::string& root) {
  // Version 1 writes "no limit" as a number that is larger than any machine's memory.
  constexpr int64_t kNone = int64_t{1} << 60;
  int64_t least = kNone;
  for (const ControlGroup& group : ControlGroupsOf(root, "memory")) {
    const char* file = group.first_version ? "/memory.limit_in_bytes" : "/memory.max";
    int64_t limit = 0;
    if (absl::SimpleAtoi(ReadSmallFile(group.folder + file), &limit))
      least = std::min(least, limit);
  }
  return least < kNone ? std::optional(least) : std::nullopt;
}

}  // namespace tandem
