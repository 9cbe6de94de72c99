// The fast way to read JSON: simdjson's, for text that is well-formed and within its bounds. Text
// that is not gets no verdict here: ParseJsonBody's other parser finds the fault and names it.
// Thread safety: pure functions; each thread keeps a parser with buffers of its own.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "router/front_end/http/json_body.h"

namespace tandem::router {

// The value that `text` writes, just as the other parser would give it; nullopt: ask that one.
std::optional<Json> ReadJsonTape(absl::string_view text, const JsonLimits& limits);

}  // namespace tandem::router
