// How much memory this process can still allocate, from /proc/meminfo and the control groups' files
// (common/runtime/control_groups.h). Thread safety: a function, from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::node {

// Bytes: the kernel's estimate of available memory, or what a control group of the process leaves,
// if that is less. File pages that the kernel can drop at once (a model that was read) count as
// available in both. `root`: "" = this machine's files; tests give a folder. Errors: kUnavailable
// when the kernel's files do not say.
absl::StatusOr<int64_t> AvailableMemoryBytes(const std::string& root = "");

}  // namespace tandem::node
