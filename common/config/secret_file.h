// Secrets of flags that name a file. Thread safety: a pure function of the file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::config {

// The file's contents without the white space around them; "" for an empty `path`. Errors as
// ReadFile (common/base/read_file.h), and kInvalidArgument for a file without contents.
absl::StatusOr<std::string> ReadSecretFile(absl::string_view flag, const std::string& path);

}  // namespace tandem::config
