// The values of the keyword `format` that are enforced, as patterns of the whole string.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::guided::json_schema {

// The pattern of `format`. Errors: kInvalidArgument names the format and lists the known ones.
absl::StatusOr<std::string> FormatPattern(absl::string_view format);

}  // namespace tandem::guided::json_schema
