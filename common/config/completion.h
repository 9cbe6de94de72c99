// Shell completion for `binary`, from the schemas of itself or of its subcommands ("binary sub").
// Thread safety: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/config/schema.h"

namespace tandem::config {

// For a first word after the binary's name, second words that no schema names, such as verbs. A
// first word need not be a schema's, nor have second words.
using SecondWords = std::map<std::string, std::vector<std::string>>;

// A script that the shell reads: subcommands and their second words, flags, and the choices of
// flags that have some; other words complete to files.
std::string BashCompletion(absl::string_view binary, absl::Span<const Schema* const> schemas,
                           const SecondWords& words = {});
std::string ZshCompletion(absl::string_view binary, absl::Span<const Schema* const> schemas,
                          const SecondWords& words = {});
std::string FishCompletion(absl::string_view binary, absl::Span<const Schema* const> schemas,
                           const SecondWords& words = {});

}  // namespace tandem::config
