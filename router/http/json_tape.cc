#include "router/http/json_tape.h"

#include <simdjson.h>

#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/match.h"

namespace tandem::router {
namespace {

namespace dom = simdjson::dom;

// Text longer than this is read with a parser of its own, so that what threads keep stays small.
constexpr size_t kKeptTextMax = size_t{64} << 10;
// What simdjson says of a longer list.
constexpr size_t kListSizeMax = 0xFFFFFF;
// Objects with more members than this are left to the parser that looks names up in a set.
constexpr size_t kScannedMembersMax = 32;

class Reader {
 public:
  explicit Reader(const JsonLimits& limits) : limits_(limits) {}

  // False: out of bounds, or a name twice.
  bool Read(const dom::element& element, int depth, Json& value) {
    if (++values_ > limits_.values_max) return false;
    switch (element.type()) {
      case dom::element_type::NULL_VALUE:
        return true;
      case dom::element_type::BOOL:
        value = element.get_bool().value_unsafe();
        return true;
      case dom::element_type::INT64: {
        const int64_t number = element.get_int64().value_unsafe();
        // The other parser has a type for each sign.
        value = number < 0 ? Json(number) : Json(static_cast<uint64_t>(number));
        return true;
      }
      case dom::element_type::UINT64:
        value = element.get_uint64().value_unsafe();
        return true;
      case dom::element_type::DOUBLE:
        value = element.get_double().value_unsafe();
        return true;
      case dom::element_type::STRING:
        value = std::string(element.get_string().value_unsafe());
        return true;
      case dom::element_type::ARRAY:
        return ReadArray(element.get_array().value_unsafe(), depth, value);
      case dom::element_type::OBJECT:
        return ReadObject(element.get_object().value_unsafe(), depth, value);
    }
    return false;
  }

 private:
  bool ReadArray(const dom::array& array, int depth, Json& value) {
    if (depth >= limits_.depth_max) return false;
    if (packing_ && PackTokenIds(array, value)) return true;
    Json::array_t list;
    list.reserve(array.size());
    for (const dom::element item : array) {
      if (!Read(item, depth + 1, list.emplace_back())) return false;
    }
    value = std::move(list);
    return true;
  }

  // False, and nothing read: the list is empty, or not all of it are token ids.
  bool PackTokenIds(const dom::array& array, Json& value) {
    const size_t count = array.size();
    if (count == 0 || count >= kListSizeMax) return false;
    if (static_cast<int64_t>(count) > limits_.values_max - values_) return false;
    Json::binary_t::container_type bytes(count * sizeof(int32_t));
    uint8_t* to = bytes.data();
    for (const dom::element item : array) {
      int64_t id = -1;
      if (item.get(id) != simdjson::SUCCESS || id < 0 || id > std::numeric_limits<int32_t>::max()) {
        return false;
      }
      const auto packed = static_cast<int32_t>(id);
      std::memcpy(to, &packed, sizeof packed);
      to += sizeof packed;
    }
    values_ += static_cast<int64_t>(count);
    value = Json::binary(std::move(bytes));
    return true;
  }

  bool ReadObject(const dom::object& object, int depth, Json& value) {
    if (depth >= limits_.depth_max || object.size() > kScannedMembersMax) return false;
    value = Json::object();
    auto& members = value.get_ref<Json::object_t&>();
    members.reserve(object.size());
    for (const dom::key_value_pair member : object) {
      for (const auto& [name, known] : members) {
        if (name == member.key) return false;
      }
      using Members = Json::object_t::Container;
      static_cast<Members&>(members).emplace_back(std::string(member.key), Json());
      if (depth == 0) {
        packing_ = limits_.packs_prompts && (member.key == "prompt" || member.key == "tokens");
      }
      if (!Read(member.value, depth + 1, members.back().second)) return false;
    }
    return true;
  }

  const JsonLimits limits_;
  int64_t values_ = 0;
  bool packing_ = false;  // within a member whose lists of token ids are packed
};

}  // namespace

std::optional<Json> ReadJsonTape(absl::string_view text, const JsonLimits& limits) {
  // simdjson lets half a surrogate pair through.
  if (absl::StrContains(text, "\\ud") || absl::StrContains(text, "\\uD")) return std::nullopt;
  // One a thread. What it keeps is in proportion to kKeptTextMax.
  thread_local dom::parser kept(kKeptTextMax);
  std::unique_ptr<dom::parser> own;
  if (text.size() > kKeptTextMax) own = std::make_unique<dom::parser>();
  dom::parser& parser = own == nullptr ? kept : *own;
  dom::element root;
  if (parser.parse(text.data(), text.size()).get(root) != simdjson::SUCCESS) return std::nullopt;
  std::optional<Json> value(std::in_place);
  if (!Reader(limits).Read(root, 0, *value)) return std::nullopt;
  return value;
}

}  // namespace tandem::router
