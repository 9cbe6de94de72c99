// Describes the HTTP API as an OpenAPI 3.1 document, for /openapi.json. Paths come from the route
// table (http_routes.cc), sampling and stop parameters from common/request/parameter_table.h, and
// the status and the traces from the descriptors of their protobuf messages. Written by hand are
// only fields that no table has (openapi_schemas.cc).
// Thread safety: pure functions. Owner: the caller of what they return.
#pragma once

#include "absl/types/span.h"
#include "router/front_end/json_body.h"

namespace tandem::router {

// What a route is for, beside its path and methods. Strings are constants.
struct RouteNote {
  const char* group = "";    // the heading that it stands under
  const char* summary = "";  // one sentence
  // Names of schemas of the document; empty: no body. A reply may also be "text", "html" or
  // "file", and "VersionOrPage" where the accept header decides.
  const char* body = "";
  const char* reply = "";
  bool streams = false;             // "stream": true makes the reply server-sent events
  const char* delete_summary = "";  // of the method DELETE, where the route has it
};

struct DescribedRoute {
  const char* path;     // as in the route table: names in capitals stand for any text
  const char* methods;  // "GET, HEAD"
  bool needs_key;       // on a router with API keys
  bool may_shed;        // an overloaded router refuses it
  RouteNote note;
};

// The document. `keys`: this router knows API keys.
Json OpenApiDocument(absl::Span<const DescribedRoute> routes, bool keys);

// The component schemas by name. A route's `body` and `reply` name them.
Json OpenApiSchemas();

}  // namespace tandem::router
