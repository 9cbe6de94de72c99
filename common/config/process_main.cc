#include "common/config/process_main.h"

#include <cstdio>
#include <memory>

#include "common/base/version.h"
#include "common/runtime/descriptors.h"

namespace tandem::config {
namespace {

int Report(const Schema& schema, const absl::Status& status, int code) {
  std::fprintf(stderr, "%s: %s\n", schema.program().c_str(), std::string(status.message()).c_str());
  return code;
}

}  // namespace

int RunProcess(Schema& schema, const std::vector<std::string>& args,
               const std::map<std::string, std::string>& env,
               const std::function<absl::Status(StopSignal& stop)>& run) {
  const absl::StatusOr<Parsed> parsed = schema.Parse({.args = args, .env = env, .file = ""});
  if (!parsed.ok()) return Report(schema, parsed.status(), kExitUsage);
  if (parsed->help_requested) {
    std::fputs(schema.Help().c_str(), stdout);
    return kExitOk;
  }
  if (parsed->version_requested) {
    std::printf("%s %s\n", schema.program().c_str(), std::string(kVersion).c_str());
    return kExitOk;
  }
  if (parsed->print_requested) {
    std::fputs(schema.PrintEffective().c_str(), stdout);
    return kExitOk;
  }
  const absl::StatusOr<std::unique_ptr<StopSignal>> stop = StopSignal::Create();
  if (!stop.ok()) return Report(schema, stop.status(), kExitFailed);
  RaiseDescriptorLimit();
  const absl::Status status = run(**stop);
  return status.ok() ? kExitOk : Report(schema, status, kExitFailed);
}

}  // namespace tandem::config
