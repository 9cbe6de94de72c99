// The options that every process of a fleet takes: routers, prefill nodes and decode nodes. Each is
// described here once. RouterConfig and NodeConfig hold a CommonOptions, and `tandem up` sets one
// for the whole fleet.
//
// Thread safety: a value. Owner: the configuration that holds it.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/config/schema.h"

namespace tandem::config {

struct CommonOptions {
  std::string model = "smollm2";
  std::string engine = "cpu";
  std::string fleet_secret_file;
  absl::Duration drain_timeout = absl::Seconds(30);
  std::string log_level = "info";
};

// Registers all five. `options` outlives `schema`.
void RegisterCommonOptions(Schema& schema, CommonOptions& options);

}  // namespace tandem::config
