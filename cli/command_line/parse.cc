#include "cli/command_line/parse.h"

#include <cstdio>

#include "common/base/version.h"
#include "common/config/process_main.h"

namespace tandem::cli {

std::optional<int> ParseArguments(config::Schema& schema, const std::vector<std::string>& args,
                                  const Environment& env, std::vector<std::string>* positionals) {
  const absl::StatusOr<config::Parsed> parsed =
      schema.Parse({.args = args, .env = env, .file = ""});
  if (!parsed.ok()) {
    ReportError(schema, parsed.status());
    return config::kExitUsage;
  }
  if (parsed->help_requested) {
    std::fputs(schema.Help().c_str(), stdout);
    return config::kExitOk;
  }
  if (parsed->version_requested) {
    std::printf("tandem %s\n", std::string(kVersion).c_str());
    return config::kExitOk;
  }
  if (parsed->print_requested) {
    std::fputs(schema.PrintEffective().c_str(), stdout);
    return config::kExitOk;
  }
  if (positionals != nullptr) *positionals = parsed->positionals;
  return std::nullopt;
}

int ReportError(const config::Schema& schema, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", schema.program().c_str(), std::string(status.message()).c_str());
  return config::kExitFailed;
}

}  // namespace tandem::cli
