// Says in plain words why a call to a router failed.
// Thread safety: a pure function.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tandem::cli {

// `plain`: the call's status, as gRPC gives it. The result has the same code. Errors that are not
// about the request get the address `router`; where no router answers, the port is not a gRPC one,
// TLS is not spoken, the router has shut down or a key is missing, the message says so.
// `has_key`: whether the call sent a key.
absl::Status ExplainCallError(const std::string& router, bool has_key, const absl::Status& plain);

}  // namespace tandem::cli
