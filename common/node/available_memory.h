// How much memory this process may still take.
// Source: /proc/meminfo and the control groups' files (common/runtime/control_groups.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::node {

// The kernel's estimate of available memory, or what a control group of the process leaves where
// that is less. Pages of files that the kernel can drop at once (a model that was read) count as
// available in both. `root`: "" = this machine's files. Errors: kUnavailable where the kernel says
// nothing.
absl::StatusOr<int64_t> AvailableMemoryBytes(const std::string& root = "");

}  // namespace tandem::node
