// Reads JSON bodies of clients and JSON that models wrote, and writes JSON text for replies.
// simdjson parses well-formed text; nlohmann's parser reads the rest and finds the fault. This
// layer bounds depth and size, refuses fields that are given twice, and names the field in which
// the text is broken. Thread safety: pure functions. Errors: kInvalidArgument naming field and
// byte.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::router {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  int depth_max = 64;
  int64_t values_max = 4'000'000;
  // Whether lists of token ids in the members "prompt" and "tokens" may be returned packed; see
  // IsPackedIds().
  bool packs_prompts = false;
  // Whether of an object's members with one name the last one counts, as for most readers.
  // Otherwise a name that is given twice is an error.
  bool takes_last = false;
};

// Parses a JSON object. kInvalidArgument "field: …" (or "body: …") gives the byte of the fault: not
// JSON, not UTF-8, a lone surrogate, a number that no double holds, a field given twice, too deep,
// too many values.
absl::StatusOr<Json> ParseJsonBody(absl::string_view body, const JsonLimits& limits = {});

// Parses a JSON object that a model wrote, such as the arguments of a call. A constraint allows
// more than clients' bodies may have: objects with a name given twice, of which the last one
// counts, and kModelDepthMax levels. Errors otherwise as ParseJsonBody.
inline constexpr int kModelDepthMax = 512;
absl::StatusOr<Json> ParseModelJson(absl::string_view text);

// Whether `value` is a packed list: at least one token id, none negative, stored as one binary
// value. Storing thousands of ids as JSON numbers would be most of a request's cost.
inline bool IsPackedIds(const Json& value) {
  return value.is_binary() && !value.get_binary().has_subtype();
}
// REQUIRES: IsPackedIds(packed).
std::vector<int32_t> UnpackIds(const Json& packed);
// Whether `value` is a list, packed or not.
inline bool IsList(const Json& value) { return value.is_array() || IsPackedIds(value); }

// Whether `value` is an integer that no 64 bits hold. Its digits are stored as one binary value, so
// that what is written again is the same number.
inline bool IsLargeInteger(const Json& value) {
  return value.is_binary() && value.get_binary().has_subtype();
}
// The digits, and the sign of a negative one. REQUIRES: IsLargeInteger(value).
absl::string_view LargeIntegerText(const Json& value);
// A number as the nearest double, a large integer too; nullopt for other values.
std::optional<double> NumberIn(const Json& value);
// What JSON calls the type of `value`, packed or not, for messages.
absl::string_view TypeName(const Json& value);

// `value` as compact JSON text; bytes that are not UTF-8 become U+FFFD.
std::string JsonText(const Json& value);
// Appends `text` as a JSON string.
void AppendJsonString(absl::string_view text, std::string& out);

}  // namespace tandem::router
