// The folders that hold the limits of a process's control groups (Linux cgroups, versions 1 and 2).
// The process's own group, any group above it, or the root of the mounted tree may set a limit. In
// a container that root is the container's own group, even where
// /proc/self/cgroup names another path.
// Source: /proc/self/cgroup and /sys/fs/cgroup.
// Thread safety: pure functions of the files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem {

struct ControlGroup {
  std::string folder;
  bool first_version = false;  // cgroup version 1, whose files have other names
};

// The groups that may limit `controller` ("cpu", "memory"). `root`: a prefix of all paths, "" for
// this machine. The folders need not exist.
std::vector<ControlGroup> ControlGroupsOf(const std::string& root, absl::string_view controller);

// The text of a file, without white space at its ends; empty when the file cannot be read.
std::string ReadSmallFile(const std::string& path);

// Bytes that the tightest group allows the process; nullopt without a limit.
std::optional<int64_t> MemoryLimitBytes(const std::string& root = "");

}  // namespace tandem
