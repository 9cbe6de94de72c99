// The router process's configuration. RegisterRouterConfig gives each field its flag, range and
// help text. Thread safety: a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/config/schema.h"
#include "common/rpc/tls.h"
#include "router/core/router_options.h"
#include "router/front_end/load_shedder.h"

namespace tandem::router {

struct RouterConfig {
  std::string id = "router-0";
  std::string grpc = "127.0.0.1:50051";
  std::string fleet = "127.0.0.1:50052";
  std::string http;  // empty = not served
  int32_t http_threads = 2;
  std::string api_keys;
  rpc::TlsFiles tls;
  std::vector<std::string> allowed_origins;  // "*" = any
  std::string fleet_secret_file;
  std::string model = "smollm2";
  std::vector<std::string> served_model_name;  // empty = as `model` says
  std::string engine = "cpu";
  int64_t responses_kept = 1024;
  int64_t traces = 1024;
  LoadShedder::Options overload;
  RouterOptions core;  // its fields are registered one by one
  absl::Duration drain_timeout = absl::Seconds(30);
  std::string log_level = "info";
};

// Registers the fields of `config`, which outlives `schema`.
void RegisterRouterConfig(config::Schema& schema, RouterConfig& config);

}  // namespace tandem::router
