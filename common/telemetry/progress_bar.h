// A bar of text that shows a share, for terminals: "[######              ]  30 %".
// Thread safety: a pure function.
#pragma once

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"

namespace tandem {

// `share` from 0 to 1; values beyond are cut.
inline std::string ProgressBar(double share) {
  constexpr int kColumns = 20;
  const double within = std::clamp(share, 0.0, 1.0);
  const auto filled = static_cast<size_t>(within * kColumns);
  return absl::StrFormat("[%s%s] %3.0f%%", std::string(filled, '#'),
                         std::string(kColumns - filled, ' '), 100 * within);
}

}  // namespace tandem
