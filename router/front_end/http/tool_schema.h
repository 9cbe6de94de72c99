// The JSON Schemas that answers follow where a chat's tool_choice demands calls.
// Thread safety: pure functions. Errors: none; a schema that cannot be served is found out when it
// is compiled.
#pragma once

#include "router/front_end/json_body.h"

namespace tandem::router {

// A tool's parameters; without them, any object. Arguments are always an object, so a schema that
// other values satisfy too is narrowed to objects. REQUIRES: CheckTools accepts the tool.
Json ParametersOf(const Json& tool);

// A list of at least one call of any of the tools, of one where they are not `parallel`. Each
// tool's parameters are a definition of the schema named "tools[i]", so errors show which tool is
// meant. What a reference or an anchor means within a tool's parameters it means there too.
// REQUIRES: CheckTools accepts `tools`, and their depth is bounded.
Json SchemaOfCalls(const Json& tools, bool parallel);

}  // namespace tandem::router
