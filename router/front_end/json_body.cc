#include "router/front_end/json_body.h"

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "router/front_end/json_tape.h"

namespace tandem::router {
namespace {

// Objects with more members than this look names up in a set.
constexpr size_t kScannedMembersMax = 32;
// The subtype of binary values that are integers of more than 64 bits.
constexpr Json::binary_t::subtype_type kLargeInteger = 1;

// Builds a value from nlohmann's events. The path of open containers names the field at fault.
class Builder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() { return Add(nullptr); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(number_integer_t value) { return Add(value); }
  bool number_unsigned(number_unsigned_t value) { return Add(value); }
  bool number_float(number_float_t value, const string_t& text) {
    if (text.find_first_of(".eE") != text.npos) return Add(value);
    return Add(Json::binary({text.begin(), text.end()}, kLargeInteger));
  }
  bool string(string_t& value) { return Add(std::move(value)); }
  bool binary(binary_t&) { return false; }
  bool start_object(size_t) { return Open(Json::object()); }
  bool start_array(size_t) { return Open(Json::array()); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool key(string_t& name) {
    Frame& frame = open_.back();
    const bool is_new = IsNew(frame, name);
    frame.repeats |= !is_new;
    if (!is_new && !limits_.takes_last) {
      fault_ = absl::StrCat(Join(Path(), Shown(name)), ": given twice");
      return false;
    }
    frame.key = std::move(name);
    return true;
  }

  template <typename Exception>
  bool parse_error(size_t position, const std::string&, const Exception& exception) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing
    // value - what it is; last read: '…'"
    absl::string_view what = exception.what();
    for (const absl::string_view before : {"] ", " - "}) {
      const size_t found = what.find(before);
      if (found != absl::string_view::npos) what.remove_prefix(found + before.size());
    }
    what = what.substr(0, what.find("; last read"));
    const std::string path = Path();
    fault_ = absl::StrCat(path.empty() ? "body" : path, ": not valid JSON at byte ", position, ": ",
                          what);
    return false;
  }

  const std::string& fault() const { return fault_; }
  Json Take() { return std::move(root_); }

 private:
  struct Frame {
    Json* container = nullptr;
    std::string key;       // of the member being read
    bool repeats = false;  // a name was given twice
    // Bound: JsonLimits::values_max.
    absl::flat_hash_set<std::string> names;  // of a large object
  };

  static bool IsNew(Frame& frame, const std::string& name) {
    const Json& object = *frame.container;
    if (object.size() <= kScannedMembersMax) return !object.contains(name);
    if (frame.names.empty()) {
      for (const auto& [member, value] : object.items()) frame.names.insert(member);
    }
    return frame.names.insert(name).second;
  }

  static Json::object_t::Container& MembersOf(Json& object) {
    return object.get_ref<Json::object_t&>();
  }

  static void KeepLast(Json& object) {
    Json::object_t::Container& members = MembersOf(object);
    // Bound: the members.
    absl::flat_hash_map<absl::string_view, size_t> last;
    for (size_t i = 0; i < members.size(); ++i) last[members[i].first] = i;
    Json::object_t::Container kept;
    kept.reserve(last.size());
    for (size_t i = 0; i < members.size(); ++i)
      if (last.at(members[i].first) == i)
        kept.emplace_back(members[i].first, std::move(members[i].second));
    members.swap(kept);
  }

  static std::string Join(const std::string& path, absl::string_view name) {
    return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
  }

  std::string Path() const {
    std::string path;
    for (const Frame& frame : open_) {
      if (frame.container->is_array()) {
        // An open element is in the list already.
        const size_t open = &frame == &open_.back() ? 0 : 1;
        absl::StrAppend(&path, "[", frame.container->size() - open, "]");
      } else if (!frame.key.empty()) {
        path = Join(path, Shown(frame.key));
      }
    }
    return ShownPath(path, ".[");
  }

  // Where the value went; null when a bound was hit.
  Json* Place(Json value) {
    if (++values_ > limits_.values_max) {
      fault_ = absl::StrCat("body: more than ", limits_.values_max, " values");
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Frame& frame = open_.back();
    if (frame.container->is_array()) {
      frame.container->push_back(std::move(value));
      return &frame.container->back();
    }
    // The name is new, or Close keeps the last one: no need to look for it again.
    Json::object_t::Container& members = MembersOf(*frame.container);
    members.emplace_back(frame.key, std::move(value));
    return &members.back().second;
  }

  bool Add(Json value) {
    if (Place(std::move(value)) == nullptr) return false;
    if (!open_.empty()) open_.back().key.clear();
    return true;
  }

  bool Open(Json container) {
    if (static_cast<int>(open_.size()) >= limits_.depth_max) {
      fault_ = absl::StrCat(Path(), ": nested deeper than ", limits_.depth_max, " levels");
      return false;
    }
    Json* placed = Place(std::move(container));
    if (placed == nullptr) return false;
    open_.emplace_back().container = placed;
    return true;
  }

  bool Close() {
    if (open_.back().repeats) KeepLast(*open_.back().container);
    open_.pop_back();
    if (!open_.empty()) open_.back().key.clear();
    return true;
  }

  const JsonLimits limits_;
  Json root_;
  // Bound: JsonLimits::depth_max.
  std::vector<Frame> open_;
  int64_t values_ = 0;
  std::string fault_;
};

bool HasLargeInteger(const Json& value) {
  if (!value.is_structured()) return IsLargeInteger(value);
  for (const Json& item : value) {
    if (HasLargeInteger(item)) return true;
  }
  return false;
}

// As the library's dump, which cannot write large integers.
void AppendValue(const Json& value, std::string& out) {
  if (IsLargeInteger(value)) {
    absl::StrAppend(&out, LargeIntegerText(value));
  } else if (value.is_structured()) {
    const char* separator = "";
    out += value.is_object() ? '{' : '[';
    for (const auto& [name, item] : value.items()) {
      absl::StrAppend(&out, std::exchange(separator, ","));
      if (value.is_object()) {
        AppendJsonString(name, out);
        out += ':';
      }
      AppendValue(item, out);
    }
    out += value.is_object() ? '}' : ']';
  } else {
    out += JsonText(value);
  }
}

}  // namespace

absl::StatusOr<Json> ParseJsonBody(absl::string_view body, const JsonLimits& limits) {
  if (body.empty()) return absl::InvalidArgumentError("body: empty, expected a JSON object");
  Json value;
  if (std::optional<Json> read = ReadJsonTape(body, limits); read.has_value()) {
    value = *std::move(read);
  } else {
    Builder builder(limits);
    if (!Json::sax_parse(body.begin(), body.end(), &builder)) {
      return absl::InvalidArgumentError(builder.fault());
    }
    value = builder.Take();
  }
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("body: ", TypeName(value), ", expected a JSON object"));
  }
  return value;
}

absl::StatusOr<Json> ParseModelJson(absl::string_view text) {
  return ParseJsonBody(text, {.depth_max = kModelDepthMax, .takes_last = true});
}

std::vector<int32_t> UnpackIds(const Json& packed) {
  const Json::binary_t& bytes = packed.get_binary();
  std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
  std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(int32_t));
  return ids;
}

absl::string_view LargeIntegerText(const Json& value) {
  const Json::binary_t& bytes = value.get_binary();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::optional<double> NumberIn(const Json& value) {
  if (value.is_number()) return value.get<double>();
  double number = 0;
  if (!IsLargeInteger(value) || !absl::SimpleAtod(LargeIntegerText(value), &number)) {
    return std::nullopt;
  }
  return number;
}

absl::string_view TypeName(const Json& value) {
  if (value.is_binary()) return IsLargeInteger(value) ? "number" : "array";
  return value.type_name();
}

std::string JsonText(const Json& value) {
  if (HasLargeInteger(value)) {
    std::string text;
    AppendValue(value, text);
    return text;
  }
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void AppendJsonString(absl::string_view text, std::string& out) {
  // ASCII needs no library. The escapes are the library's, so that a text's bytes do not depend on
  // what stands beside it.
  const size_t begin = out.size();
  out += '"';
  size_t plain = 0;  // text before it is out
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) {
      out.resize(begin);
      out += JsonText(Json(std::string(text)));
      return;
    }
    if (byte >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text.data() + plain, i - plain);
    plain = i + 1;
    constexpr absl::string_view kNamed = "\"\\\b\f\n\r\t";
    const size_t named = kNamed.find(c);
    if (named != absl::string_view::npos) {
      out += '\\';
      out += "\"\\bfnrt"[named];
    } else {
      absl::StrAppend(&out, "\\u", absl::Hex(byte, absl::kZeroPad4));
    }
  }
  out.append(text.data() + plain, text.size() - plain);
  out += '"';
}

}  // namespace tandem::router
