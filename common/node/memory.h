// How much memory this process may still take.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace tandem::node {

// The kernel's estimate of available memory, or what the cgroup leaves when that is less.
absl::StatusOr<int64_t> AvailableMemoryBytes();

}  // namespace tandem::node
