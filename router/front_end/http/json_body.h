// JSON that strangers sent, and JSON text for them. Parsing is simdjson's, and nlohmann's for text
// that is not in order; this adds bounds on depth and size, refuses fields given twice, and says in
// which field the text is broken. Thread safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::router {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  int depth_max = 64;
  int64_t values_max = 4'000'000;
  // Lists of token ids in the body's members "prompt" and "tokens" may come packed: IsPackedIds().
  bool packs_prompts = false;
};

// A JSON object. kInvalidArgument "field: …" (or "body: …") with the byte where it went wrong: not
// JSON, not UTF-8, a lone surrogate, a number no double holds, a field twice, too deep, too much.
absl::StatusOr<Json> ParseJsonBody(absl::string_view body, const JsonLimits& limits = {});

// A list of token ids, none negative and at least one, as one value: thousands of numbers would be
// most of what a request costs.
inline bool IsPackedIds(const Json& value) { return value.is_binary(); }
// REQUIRES: IsPackedIds(packed).
std::vector<int32_t> UnpackIds(const Json& packed);
// A list, packed or not.
inline bool IsList(const Json& value) { return value.is_array() || IsPackedIds(value); }

// `value` as compact JSON text; bytes that are not UTF-8 become U+FFFD.
std::string JsonText(const Json& value);
// Appends `text` as a JSON string.
void AppendJsonString(absl::string_view text, std::string& out);

}  // namespace tandem::router
