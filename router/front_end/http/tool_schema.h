// The JSON Schemas that answers follow where a chat's tool_choice demands calls, and the grammar of
// answers that may be calls or have a form.
// Thread safety: pure functions. Errors: none; a schema that cannot be served is found out when it
// is compiled.
#pragma once

#include <cstddef>
#include <string>

#include "router/front_end/json_body.h"

namespace tandem::router {

// The most tools that a constraint may have as its alternatives.
inline constexpr size_t kConstrainingToolsMax = 256;

// A tool's parameters; without them, any object. Arguments are always an object, so a schema that
// other values satisfy too is narrowed to objects. REQUIRES: CheckTools accepts the tool.
Json ParametersOf(const Json& tool);

// A list of at least one call of any of the tools, of one where they are not `parallel`. Each
// tool's parameters are a definition of the schema named "tools[i]", so errors show which tool is
// meant. What a reference or an anchor means within a tool's parameters it means there too.
// REQUIRES: CheckTools accepts `tools`, which are kConstrainingToolsMax at most, and their depth is
// bounded.
Json SchemaOfCalls(const Json& tools, bool parallel);

// The grammar of an answer that is a value of `schema`, or one or more calls of the tools as
// ToolCallFinder finds them, in marks; one where they are not `parallel`. REQUIRES: as
// SchemaOfCalls; `schema`, a JSON Schema, is an object's text (JsonObjectSize).
std::string GrammarOfValueOrCalls(const std::string& schema, const Json& tools, bool parallel);

}  // namespace tandem::router
