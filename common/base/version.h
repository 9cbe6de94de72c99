// The release that this tree becomes.
// Thread safety: constants.
#pragma once

#include "absl/strings/string_view.h"

namespace tandem {

inline constexpr absl::string_view kVersion = "0.1.0";

}  // namespace tandem
