// Reads a file that a flag names. Thread safety: a pure function of the file.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// The whole file. kNotFound for one that cannot be read, such as a folder, kInvalidArgument for one
// of more than `bytes_max`; both name `flag`, the path and what was expected.
absl::StatusOr<std::string> ReadFile(absl::string_view flag, const std::string& path,
                                     size_t bytes_max);

}  // namespace tandem
