// W3C Trace Context's `traceparent`, by which a client's tracing finds a request in our logs.
// Thread safety: pure function.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem::router {

// The trace id (32 hex digits) of a header "00-TRACE-PARENT-FLAGS"; empty for what is none, which
// the specification wants ignored: not lower-case hex, an id of zeros, version ff, or more fields
// than version 00 has.
std::string TraceIdOf(absl::string_view traceparent);

}  // namespace tandem::router
