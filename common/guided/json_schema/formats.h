// The values of `format` that are enforced, as patterns of the whole string.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::guided::json_schema {

// kInvalidArgument names the format and those that are known.
absl::StatusOr<std::string> FormatPattern(absl::string_view format);

}  // namespace tandem::guided::json_schema
