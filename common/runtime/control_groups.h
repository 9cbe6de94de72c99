// Where the files of a process's control groups lie: of the group itself, of those above it, whose
// limits hold too, and of the root of what is mounted, which in a container is the container's own
// group whatever the process's is called outside.
// Source: /proc/self/cgroup and /sys/fs/cgroup, both versions. Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem {

struct ControlGroup {
  std::string folder;
  bool first_version = false;  // whose files have other names
};

// Those that `controller` ("cpu", "memory") may have files for, below `root` ("" = this machine's).
// The folders need not exist.
std::vector<ControlGroup> ControlGroupsOf(const std::string& root, absl::string_view controller);

// The text of a file, without white space around it; empty where there is none.
std::string ReadSmallFile(const std::string& path);

}  // namespace tandem
