// Reads JSON by simdjson: the fast way, for text that is well-formed and within its bounds. Of
// other text it says nothing: ParseJsonBody's second parser finds the fault and names it. Thread
// safety: pure functions; each thread has a parser with its own buffers.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "router/front_end/json_body.h"

namespace tandem::router {

// The value of `text`, equal to what the second parser would return; nullopt: use that parser.
std::optional<Json> ReadJsonTape(absl::string_view text, const JsonLimits& limits);

}  // namespace tandem::router
