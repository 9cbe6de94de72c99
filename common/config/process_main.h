// The common part of every process's main function: parses flags, prints help or the effective
// configuration, blocks signals, raises the limit of descriptors, runs the process, and reports its
// error. Thread safety: the main thread calls it, before other threads start.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/schema.h"
#include "common/runtime/stop_signal.h"

namespace tandem::config {

// Exit codes of all binaries.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // the work failed
inline constexpr int kExitUsage = 2;   // bad flags, environment or configuration file

// Parses `args` with `schema` (which fills its struct), then calls `run`. Errors go to standard
// error as `<program>: <message>`. Returns an exit code.
int RunProcess(Schema& schema, const std::vector<std::string>& args,
               const std::map<std::string, std::string>& env,
               const std::function<absl::Status(StopSignal& stop)>& run);

}  // namespace tandem::config
