// What client commands share: they parse flags and report errors with it.
// Thread safety: free functions; the main thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/command_line/commands.h"

namespace tandem::cli {

// Parses `args`. Returns an exit code when the command is over (help, version, or an error that was
// reported), else nullopt. `positionals` receives the arguments that are not flags.
std::optional<int> ParseArguments(config::Schema& schema, const std::vector<std::string>& args,
                                  const Environment& env, std::vector<std::string>* positionals);

// Prints "tandem generate: message" to standard error; returns the exit code of a failed command.
int ReportError(const config::Schema& schema, const absl::Status& status);

}  // namespace tandem::cli
