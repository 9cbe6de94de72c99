// Shell completion for `binary`, from the schemas of itself or of its subcommands ("binary sub").
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/config/schema.h"

namespace tandem::config {

// A script that the shell reads: subcommands, flags, and the choices of flags that have some; other
// words complete to files.
std::string BashCompletion(absl::string_view binary, absl::Span<const Schema* const> schemas);
std::string ZshCompletion(absl::string_view binary, absl::Span<const Schema* const> schemas);
std::string FishCompletion(absl::string_view binary, absl::Span<const Schema* const> schemas);

}  // namespace tandem::config
