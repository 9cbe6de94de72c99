#include "cli/cluster_load/cluster_bench_command.h"

#include "cli/command_line/parse.h"
#include "common/config/process_main.h"

namespace tandem::cli {

ClusterBenchCommand::ClusterBenchCommand(const std::string& name, const std::string& summary)
    : schema_(name, summary) {
  up_.quiet = true;
}

void ClusterBenchCommand::RegisterUp(std::vector<std::string> except) {
  config::Schema up("up", "");
  RegisterUpConfig(up, up_);
  except.insert(except.end(), {"log-level", "log-format"});
  schema_.Embed(up, {.except = std::move(except)});
}

int ClusterBenchCommand::Run(const std::vector<std::string>& args, const Environment& env) {
  if (auto code = ParseArguments(schema_, args, env, nullptr)) return *code;
  if (absl::Status status = Plan(); !status.ok()) {
    ReportError(schema_, status);
    return config::kExitUsage;
  }
  const absl::Status status = Measure(env);
  return status.ok() ? config::kExitOk : ReportError(schema_, status);
}

}  // namespace tandem::cli
