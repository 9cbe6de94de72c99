#include "common/model/json_reading.h"

#include <limits>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_text.h"
#include "common/base/status_macros.h"

namespace tandem::model {
namespace {

using nlohmann::json;

absl::Status WrongType(absl::string_view key, absl::string_view expected, const json& found) {
  return absl::InvalidArgumentError(
      absl::StrCat("key \"", key, "\" is a ", found.type_name(), ", expected ", expected));
}

}  // namespace

bool NestsTooDeep(absl::string_view text) {
  int64_t depth = 0;
  VisitOutsideStrings(text, [&](size_t, char c) {
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    return depth <= kJsonDepthMax;
  });
  return depth > kJsonDepthMax;
}

absl::StatusOr<json> ParseJsonObject(absl::string_view text, absl::string_view what) {
  if (NestsTooDeep(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": nests deeper than ", kJsonDepthMax, " levels"));
  }
  absl::flat_hash_set<std::string> keys;
  std::string twice;
  const json::parser_callback_t watch_keys = [&](int depth, json::parse_event_t event,
                                                 json& parsed) {
    if (event == json::parse_event_t::key && depth == 1 && parsed.is_string() &&
        !keys.insert(parsed.get_ref<const std::string&>()).second) {
      twice = parsed.get_ref<const std::string&>();
    }
    return true;
  };
  json value = json::parse(text.begin(), text.end(), watch_keys, /*allow_exceptions=*/false);
  if (value.is_discarded() || !value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " (", text.size(), " bytes) is not a JSON object"));
  }
  if (!twice.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": key \"", twice, "\" occurs twice"));
  }
  return value;
}

const json* JsonMembers::Find(absl::string_view key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<std::optional<int64_t>> JsonMembers::Integer(absl::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::optional<int64_t>();
  if (!value->is_number_integer() ||
      (value->is_number_unsigned() &&
       value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
    return WrongType(key, "an integer below 2^63", *value);
  }
  return std::optional<int64_t>(value->get<int64_t>());
}

absl::StatusOr<std::optional<double>> JsonMembers::Number(absl::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::optional<double>();
  if (!value->is_number()) return WrongType(key, "a number", *value);
  return std::optional<double>(value->get<double>());
}

absl::StatusOr<std::optional<bool>> JsonMembers::Bool(absl::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::optional<bool>();
  if (!value->is_boolean()) return WrongType(key, "a boolean", *value);
  return std::optional<bool>(value->get<bool>());
}

absl::StatusOr<std::optional<std::string>> JsonMembers::String(absl::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return WrongType(key, "a string", *value);
  return std::optional<std::string>(value->get_ref<const std::string&>());
}

absl::StatusOr<std::optional<int32_t>> JsonMembers::Count(absl::string_view key) const {
  ASSIGN_OR_RETURN(const std::optional<int64_t> value, Integer(key));
  if (!value.has_value()) return std::optional<int32_t>();
  if (*value < 0 || *value > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("key \"", key, "\" is ", *value, ", expected 0 to 2147483647"));
  }
  return std::optional<int32_t>(static_cast<int32_t>(*value));
}

absl::StatusOr<int32_t> JsonMembers::RequiredCount(absl::string_view key) const {
  ASSIGN_OR_RETURN(const std::optional<int32_t> value, Count(key));
  if (!value.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("key \"", key, "\" is missing"));
  }
  return *value;
}

}  // namespace tandem::model
