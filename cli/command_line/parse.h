// What client commands share: reading flags, reporting errors, showing a summary.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/command_line/commands.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

// Parses `args`. An exit code when the command is over (help, version, an error, already reported),
// else nullopt; `positionals` receives arguments that are no flags.
std::optional<int> ParseArguments(config::Schema& schema, const std::vector<std::string>& args,
                                  const Environment& env, std::vector<std::string>* positionals);

// "tandem generate: message" on standard error; the exit code of a failed command.
int ReportError(const config::Schema& schema, const absl::Status& status);

// Everything on standard input.
std::string ReadStandardInput();

// The paragraph that --summary prints: which nodes served the request, tokens, times, KV moved.
std::string FormatSummary(const v1::Finished& finished);

}  // namespace tandem::cli
