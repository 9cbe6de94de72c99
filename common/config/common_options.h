// The options that every process of a fleet takes: routers, prefill nodes and decode nodes. Each is
// described here once. RouterConfig and NodeConfig hold a CommonOptions, and `tandem up` sets one
// for the whole fleet.
//
// Thread safety: a value. Owner: the configuration that holds it.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/config/schema.h"

namespace tandem::config {

struct CommonOptions {
  std::string model = "smollm2";
  std::string engine = "cpu";
  std::string fleet_secret_file;
  std::string fleet_tls;
  absl::Duration drain_timeout = absl::Seconds(30);
  std::string log_level = "info";
  std::string log_format = "auto";
};

// Registers all seven. `options` outlives `schema`.
void RegisterCommonOptions(Schema& schema, CommonOptions& options);

// Sets the level and the format of this process's log. "auto" is colours where standard error is a
// terminal and `env` has no NO_COLOR, else text. Call it before threads start.
absl::Status ConfigureLog(const CommonOptions& options,
                          const std::map<std::string, std::string>& env);

// Logs in one line what `schema` got that differs from the defaults, and where from.
void LogConfiguration(const Schema& schema);

}  // namespace tandem::config
