// One line of text for a terminal, in one style.
// Thread safety: values.
#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

struct StyledLine {
  enum class Style {
    kPlain,
    kHeading,
    kHot,  // something is wrong, or full
    kDim,  // old, or of little interest
  };
  std::string text;  // printable ASCII
  Style style = Style::kPlain;

  friend bool operator==(const StyledLine&, const StyledLine&) = default;
};

using StyledLines = std::vector<StyledLine>;

}  // namespace tandem::cli
