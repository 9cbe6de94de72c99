// Builds a router from its configuration, and the main function of the router process.
// Thread safety: call from the main thread.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "router/process/router_config.h"
#include "router/process/router_server.h"

namespace tandem::router {

// Loads tokenizer and template, binds the ports, starts. `env` resolves model names.
absl::StatusOr<std::unique_ptr<RouterServer>> StartRouter(
    const RouterConfig& config, const std::map<std::string, std::string>& env);

// The router's whole main. Returns the exit code.
int RouterMain(int argc, char** argv);

}  // namespace tandem::router
