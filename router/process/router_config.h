// Configuration of the router process. Each field's flag, range and help text is described once, by
// RegisterRouterConfig; `tandem up` takes them over from there.
//
// Thread safety: a value. Owner: the process's main, or `tandem up` with --single-process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/common_options.h"
#include "common/config/schema.h"
#include "common/rpc/tls.h"
#include "router/core/router_options.h"
#include "router/front_end/api_keys.h"
#include "router/front_end/load_shedder.h"

namespace tandem::router {

struct RouterConfig {
  config::CommonOptions common;
  std::string id = "router-0";
  std::string grpc = "127.0.0.1:50051";
  std::string fleet = "127.0.0.1:50052";
  std::string http;   // empty = not served
  std::string admin;  // empty = no port of its own
  int32_t http_threads = 2;
  int64_t http_buffer_bytes = int64_t{512} << 20;
  bool open_fleet = false;
  bool reflection = true;
  std::string api_keys;
  int64_t wrong_keys = kWrongKeysInARow;
  rpc::TlsFiles tls;
  std::vector<std::string> allowed_origins;    // "*" = any
  std::vector<std::string> served_model_name;  // empty = as `model` says
  std::string chat_template;                   // a file; empty = the model's own
  int64_t stored_responses_max = 1024;
  int64_t traces = 1024;
  bool access_log = false;
  std::string audit_log;                                // empty = none
  absl::Duration throughput_every = absl::Seconds(10);  // 0 = no line
  LoadShedder::Options overload;
  std::vector<std::string> service_tiers;  // router/core/service_tiers.h has their form
  RouterOptions core;                      // its fields are registered one by one
};

// Registers the fields of `config`, which outlives `schema`.
void RegisterRouterConfig(config::Schema& schema, RouterConfig& config);

// Bytes that clients may come to make the router hold, beside what it needs for itself.
int64_t MemoryBoundBytes(const RouterConfig& config);
// What to tell an operator whose control group allows fewer bytes than that; empty otherwise.
std::string MemoryWarning(const RouterConfig& config, std::optional<int64_t> limit_bytes);

}  // namespace tandem::router
