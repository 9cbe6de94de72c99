#include "router/front_end/http/json_fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"

namespace tandem::router {
namespace {

// How much of a wrong value a message repeats.
constexpr size_t kQuotedBytesMax = 64;

std::string Quoted(const Json& value) {
  if (IsList(value)) return "array";
  if (value.is_object()) return "object";
  std::string text = JsonText(value);
  // A cut inside a character is mended when the message is written out.
  if (text.size() > kQuotedBytesMax) text = absl::StrCat(text.substr(0, kQuotedBytesMax), "…");
  return text;
}

// A whole number that JSON may have written with a fraction of zero or an exponent.
std::optional<int64_t> WholeNumber(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  if (!(std::abs(number) <= 9007199254740992.0) || number != std::floor(number)) {
    return std::nullopt;
  }
  return static_cast<int64_t>(number);
}

bool AsksForNothing(const Json& value) {
  return value == false || value == "" || (value.is_structured() && value.empty());
}

}  // namespace

std::string Fields::PathOf(absl::string_view name) const {
  return path_.empty() ? std::string(name) : absl::StrCat(path_, ".", name);
}

void Fields::Fault(absl::string_view name, absl::string_view expected) {
  const auto found = object_.find(name);
  Keep(absl::InvalidArgumentError(absl::StrCat(PathOf(name), ": ",
                                               found == object_.end() ? "missing" : Quoted(*found),
                                               ", expected ", expected)));
}

const Json* Fields::Any(absl::string_view name) {
  // In the order they came in, which asked_for_ has too.
  const Json::object_t::Container& members = object_.get_ref<const Json::object_t&>();
  for (size_t i = 0; i < members.size(); ++i) {
    const auto& [member, value] = members[i];
    if (member != name) continue;
    asked_for_[i] = true;
    return value.is_null() ? nullptr : &value;
  }
  return nullptr;
}

std::optional<bool> Fields::Bool(absl::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Fault(name, "true or false");
  return std::nullopt;
}

std::optional<double> Fields::Number(absl::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = NumberIn(*value);
  if (number.has_value() && std::isfinite(*number)) return number;
  Fault(name, "a number");
  return std::nullopt;
}

std::optional<int64_t> Fields::Integer(absl::string_view name, IntegerRange range) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = WholeNumber(*value);
  if (number.has_value() && *number >= range.low && *number <= range.high) return number;
  const bool whole = number.has_value() || value->is_number_integer() || IsLargeInteger(*value);
  const bool unbounded = range.low == IntegerRange().low && range.high == IntegerRange().high;
  // The type's own bounds say nothing of the field, unless they are what was hit.
  Fault(name, unbounded && !whole
                  ? "a whole number"
                  : absl::StrCat("a whole number in [", range.low, ", ", range.high, "]"));
  return std::nullopt;
}

std::optional<std::string> Fields::String(absl::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Fault(name, "a string");
  return std::nullopt;
}

std::vector<std::string> Fields::Strings(absl::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  std::vector<std::string> strings;
  if (!value->is_array()) {
    Fault(name, "a string or a list of strings");
    return {};
  }
  for (size_t i = 0; i < value->size(); ++i) {
    if (!(*value)[i].is_string()) {
      Keep(absl::InvalidArgumentError(
          absl::StrCat(PathOf(name), "[", i, "]: ", Quoted((*value)[i]), ", expected a string")));
      return {};
    }
    strings.push_back((*value)[i].get<std::string>());
  }
  return strings;
}

std::vector<int32_t> Fields::TokenIds(absl::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr) return {};
  absl::StatusOr<std::vector<int32_t>> ids = ReadTokenIds(*value, PathOf(name));
  Keep(ids.status());
  return ids.ok() ? *std::move(ids) : std::vector<int32_t>();
}

const Json* Fields::Object(absl::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr || value->is_object()) return value;
  Fault(name, "an object");
  return nullptr;
}

void Fields::Ignore(std::initializer_list<absl::string_view> names) {
  for (const absl::string_view name : names) Any(name);
}

void Fields::Unserved(absl::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr || AsksForNothing(*value)) return;
  Keep(absl::UnimplementedError(absl::StrCat(PathOf(name), ": not served by this router")));
}

void Fields::Refuse(const request::RequestMember& member) {
  const Json* value = Any(member.name);
  if (value == nullptr) return;
  if (member.neutral.empty()) {
    if (AsksForNothing(*value)) return;
  } else {
    const Json neutral = Json::parse(member.neutral);
    if (std::find(neutral.begin(), neutral.end(), *value) != neutral.end()) return;
  }
  Keep(absl::UnimplementedError(absl::StrCat(PathOf(member.name), ": not served by this router",
                                             member.note.empty() ? "" : "; ", member.note)));
}

void Fields::Unserved(absl::string_view name, double neutral) {
  const Json* value = Any(name);
  if (value != nullptr && NumberIn(*value) == neutral) return;
  Unserved(name);
}

absl::Status Fields::Finish(bool strict) {
  if (!status_.ok() || !strict) return status_;
  size_t at = 0;
  for (const auto& [name, value] : object_.items()) {
    if (!asked_for_[at++]) {
      return absl::InvalidArgumentError(absl::StrCat(
          PathOf(Shown(name)), ": unknown field, expected only known ones: the request is strict"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const Json& list, const std::string& path) {
  if (IsPackedIds(list)) return UnpackIds(list);
  if (!list.is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", Quoted(list), ", expected a list of token ids"));
  }
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const std::optional<int64_t> id = WholeNumber(list[i]);
    if (!id.has_value() || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, "[", i, "]: ", Quoted(list[i]), ", expected a token id"));
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

absl::Status RenameField(const absl::Status& status, const FieldNames& names) {
  for (const auto& [chat, other] : names) {
    absl::string_view rest = status.message();
    if (!absl::ConsumePrefix(&rest, chat)) continue;
    if (!absl::StartsWith(rest, ":") && !absl::StartsWith(rest, "[")) continue;
    absl::Status renamed(status.code(), absl::StrCat(other, rest));
    status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
      renamed.SetPayload(url, payload);
    });
    return renamed;
  }
  return status;
}

}  // namespace tandem::router
