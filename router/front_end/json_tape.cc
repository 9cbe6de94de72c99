#include "router/front_end/json_tape.h"

#include <simdjson.h>

#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem::router {
namespace {

namespace dom = simdjson::dom;

// Text longer than this is read with a parser of its own, so that what threads keep stays small.
constexpr size_t kKeptTextMax = size_t{64} << 10;
// What simdjson says of a longer list.
constexpr size_t kListSizeMax = 0xFFFFFF;
// Objects with more members than this are left to the parser that looks names up in a set.
constexpr size_t kTapeScannedMembersMax = 32;

// The list of token ids that is the body's "prompt", read apart: for the parser a thousand numbers
// are most of a body.
struct PromptIds {
  size_t begin = 0, end = 0;  // where the list is, brackets included
  std::vector<int32_t> ids;   // at least one
};

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

size_t SkipBlanks(absl::string_view text, size_t at) {
  while (at < text.size() && IsBlank(text[at])) ++at;
  return at;
}

// A number of up to seven digits read at once, without a branch for each: digits are at the low end
// of `bytes`, eight of text, the first in the lowest. Returns how many digits there are; 0: none,
// or more than seven, or a zero before others.
int ReadShortNumber(uint64_t bytes, uint32_t& number) {
  constexpr uint64_t kZeros = 0x3030303030303030, kHighBits = 0x8080808080808080;
  uint64_t digits = bytes ^ kZeros;  // 0 to 9 for a digit
  const uint64_t others = (digits | (digits + 0x7676767676767676)) & kHighBits;
  if (others == 0) return 0;
  const int count = std::countr_zero(others) / 8;
  if (count == 0 || (count > 1 && (digits & 0xff) == 0)) return 0;
  digits <<= 64 - 8 * count;  // zeros come first
  digits = digits * 10 + (digits >> 8);
  constexpr uint64_t kPairs = 0x000000ff000000ff;
  number = static_cast<uint32_t>(
      ((digits & kPairs) * 0x000f424000000064 + ((digits >> 16) & kPairs) * 0x0000271000000001) >>
      32);
  return count;
}

// A number of any length; false when there is none, or no token id.
bool ReadLongNumber(const char*& next, const char* end, uint32_t& number) {
  constexpr ptrdiff_t kDigitsMax = 10;
  const char* const first = next;
  uint64_t id = 0;  // may wrap around; then there were too many digits
  for (; next != end && *next >= '0' && *next <= '9'; ++next) {
    id = id * 10 + static_cast<uint64_t>(*next - '0');
  }
  const ptrdiff_t digits = next - first;
  if (digits == 0 || digits > kDigitsMax || (*first == '0' && digits > 1)) return false;
  if (id > std::numeric_limits<int32_t>::max()) return false;
  number = static_cast<uint32_t>(id);
  return true;
}

// Reads a list of token ids at text[at], "[" included; false when something else is there.
bool ReadIds(absl::string_view text, size_t at, PromptIds& list) {
  static_assert(std::endian::native == std::endian::little, "the first character is lowest");
  list.begin = at;
  const char* next = text.data() + at;
  const char* const end = text.data() + text.size();
  const auto skip_blanks = [&] {
    while (next != end && IsBlank(*next)) ++next;
  };
  do {
    ++next;
    if (next != end && *next <= ' ') skip_blanks();
    uint32_t id = 0;
    uint64_t bytes = 0;
    int digits = 0;
    if (end - next >= static_cast<ptrdiff_t>(sizeof bytes)) {
      std::memcpy(&bytes, next, sizeof bytes);
      digits = ReadShortNumber(bytes, id);
    }
    next += digits;
    if (digits == 0 && !ReadLongNumber(next, end, id)) return false;
    if (list.ids.empty()) list.ids.reserve(static_cast<size_t>(end - next) / 4 + 1);
    list.ids.push_back(static_cast<int32_t>(id));
    if (next != end && *next <= ' ') skip_blanks();
  } while (next != end && *next == ',');
  if (next == end || *next != ']') return false;
  list.end = static_cast<size_t>(next + 1 - text.data());
  return true;
}

// Finds it only where there can be no doubt that it is the body's own member, if the rest of the
// body is well-formed: no other list or object has begun before, and the name begins like a
// member's.
std::optional<PromptIds> FindPromptIds(absl::string_view text) {
  constexpr absl::string_view kName = "\"prompt\"";
  const size_t name = text.find(kName);
  if (name == absl::string_view::npos) return std::nullopt;
  size_t at = SkipBlanks(text, name + kName.size());
  if (at >= text.size() || text[at] != ':') return std::nullopt;
  at = SkipBlanks(text, at + 1);
  if (at >= text.size() || text[at] != '[') return std::nullopt;
  absl::string_view before = text.substr(0, name);
  if (absl::c_count(before, '{') != 1 || absl::StrContains(before, '[')) return std::nullopt;
  while (!before.empty() && IsBlank(before.back())) before.remove_suffix(1);
  if (before.empty() || (before.back() != '{' && before.back() != ',')) return std::nullopt;
  std::optional<PromptIds> list(std::in_place);
  if (!ReadIds(text, at, *list)) return std::nullopt;
  return list;
}

class Reader {
 public:
  // `prompt`: its list is empty in what is read, for it was read before; null: it was not.
  Reader(const JsonLimits& limits, const PromptIds* prompt) : limits_(limits), prompt_(prompt) {}

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
    if (depth >= limits_.depth_max || object.size() > kTapeScannedMembersMax) return false;
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
      if (depth == 0 && prompt_ != nullptr && member.key == "prompt") {
        if (!TakePrompt(members.back().second)) return false;
      } else if (!Read(member.value, depth + 1, members.back().second)) {
        return false;
      }
    }
    return true;
  }

  bool TakePrompt(Json& value) {
    values_ += 1 + static_cast<int64_t>(prompt_->ids.size());
    if (values_ > limits_.values_max || limits_.depth_max < 2) return false;
    const auto* const bytes = reinterpret_cast<const uint8_t*>(prompt_->ids.data());
    value = Json::binary(
        Json::binary_t::container_type(bytes, bytes + prompt_->ids.size() * sizeof(int32_t)));
    return true;
  }

  const JsonLimits limits_;
  const PromptIds* const prompt_;
  int64_t values_ = 0;
  bool packing_ = false;  // within a member whose lists of token ids are packed
};

}  // namespace

std::optional<Json> ReadJsonTape(absl::string_view text, const JsonLimits& limits) {
  // Half a surrogate pair is the other parser's to judge, whichever version of simdjson this is.
  if (absl::StrContains(text, "\\ud") || absl::StrContains(text, "\\uD")) return std::nullopt;
  const auto prompt = limits.packs_prompts ? FindPromptIds(text) : std::nullopt;
  std::string rest;
  if (prompt.has_value()) {
    rest = absl::StrCat(text.substr(0, prompt->begin), "[]", text.substr(prompt->end));
    text = rest;
  }
  // One a thread. What it keeps is in proportion to kKeptTextMax.
  thread_local dom::parser kept(kKeptTextMax);
  std::unique_ptr<dom::parser> own;
  if (text.size() > kKeptTextMax) own = std::make_unique<dom::parser>();
  dom::parser& parser = own == nullptr ? kept : *own;
  dom::element root;
  if (parser.parse(text.data(), text.size()).get(root) != simdjson::SUCCESS) return std::nullopt;
  std::optional<Json> value(std::in_place);
  Reader reader(limits, prompt.has_value() ? &*prompt : nullptr);
  if (!reader.Read(root, 0, *value)) return std::nullopt;
  return value;
}

}  // namespace tandem::router
