// Reads W3C Trace Context's `traceparent`, so that a client's tracing finds a request in our logs.
// Thread safety: pure function.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem::router {

// The trace id (32 hex digits) of a header "00-TRACE-PARENT-FLAGS". Empty for a malformed header,
// which the specification says to ignore: one that is not lower-case hex, has an id of zeros or
// version ff, or has more fields than version 00.
std::string TraceIdOf(absl::string_view traceparent);

}  // namespace tandem::router
