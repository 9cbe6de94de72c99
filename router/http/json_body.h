// JSON that strangers sent, and JSON text for them. Parsing is nlohmann's; this adds bounds on
// depth and size, refuses fields given twice, and says in which field the text is broken. Thread
// safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::router {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  int depth_max = 64;
  int64_t values_max = 4'000'000;
};

// A JSON object. kInvalidArgument "field: …" (or "body: …") with the byte where it went wrong: not
// JSON, not UTF-8, a lone surrogate, a number no double holds, a field twice, too deep, too much.
absl::StatusOr<Json> ParseJsonBody(absl::string_view body, const JsonLimits& limits = {});

// `value` as compact JSON text; bytes that are not UTF-8 become U+FFFD.
std::string JsonText(const Json& value);
// Appends `text` as a JSON string.
void AppendJsonString(absl::string_view text, std::string& out);

}  // namespace tandem::router
