#include "common/model/chat_template/value.h"

#include <algorithm>
#include <cmath>

#include "absl/numeric/int128.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/text.h"

namespace tandem::model::chat_template {

std::string IntegerText(Integer value) {
  if (value == 0) return "0";
  std::string digits;
  // Negative digits, so that the smallest integer needs no special case.
  for (Integer rest = value; rest != 0; rest /= 10) {
    const int digit = static_cast<int>(rest % 10);
    digits.push_back(static_cast<char>('0' + (digit < 0 ? -digit : digit)));
  }
  if (value < 0) digits.push_back('-');
  std::reverse(digits.begin(), digits.end());
  return digits;
}

const Value* Dict::Find(const Value& key) const {
  if (!IsHashable(key)) return nullptr;
  const auto found = index.find(KeyText(key));
  return found == index.end() ? nullptr : &entries[found->second].second;
}

const Value* Dict::FindText(absl::string_view key) const {
  const auto found = index.find(absl::StrCat("s", key));
  return found == index.end() ? nullptr : &entries[found->second].second;
}

void Dict::Set(const Value& key, const Value& value) {
  depth = std::max({depth, value.Depth() + 1, key.Depth() + 1});
  const auto [place, added] = index.try_emplace(KeyText(key), entries.size());
  if (added) {
    entries.emplace_back(key, value);
  } else {
    entries[place->second].second = value;
  }
}

LoopState::LoopState(std::vector<Value> of) : items(std::move(of)) {
  for (const Value& item : items) depth = std::max(depth, item.Depth() + 1);
}

Value::Value(Dict dict) : data_(std::make_shared<const Dict>(std::move(dict))) {}

Value Value::MakeUndefined(std::string reason) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(reason))};
  return value;
}

Value Value::FromItems(std::vector<Value> items, bool is_tuple, bool is_generator) {
  List list;
  for (const Value& item : items) list.depth = std::max(list.depth, item.Depth() + 1);
  list.items = std::move(items);
  list.is_tuple = is_tuple;
  list.is_generator = is_generator;
  Value value;
  value.data_ = std::make_shared<const List>(std::move(list));
  return value;
}

Value Value::MakeList(std::vector<Value> items) {
  return FromItems(std::move(items), false, false);
}
Value Value::MakeTuple(std::vector<Value> items) {
  return FromItems(std::move(items), true, false);
}
Value Value::MakeGenerator(std::vector<Value> items) {
  return FromItems(std::move(items), false, true);
}

double Value::real() const {
  return is_double() ? std::get<double>(data_) : static_cast<double>(integer());
}

Integer Value::integer() const {
  return is_bool() ? static_cast<Integer>(boolean()) : std::get<Integer>(data_);
}

bool Value::Truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_double()) return real() != 0.0;
  if (is_whole()) return integer() != 0;
  if (is_text()) return !text().empty();
  if (is_list()) return is_generator() || !list().items.empty();
  if (is_dict()) return !dict().entries.empty();
  return true;
}

int32_t Value::Depth() const {
  if (is_list()) return list().depth;
  if (is_dict()) return dict().depth;
  if (is_loop()) return loop().depth;
  if (is_callable() && callable().self != nullptr) return callable().self->Depth() + 1;
  return 0;
}

int64_t Value::Size() const {
  if (is_text()) return static_cast<int64_t>(text().size()) / 16;
  if (is_list()) return static_cast<int64_t>(list().items.size());
  if (is_dict()) return static_cast<int64_t>(dict().entries.size());
  return 0;
}

absl::string_view Value::TypeName() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "None";
  if (is_bool()) return "bool";
  if (is_integer()) return "int";
  if (is_double()) return "float";
  if (is_text()) return "str";
  if (is_generator()) return "generator";
  if (is_list()) return list().is_tuple ? "tuple" : "list";
  if (is_dict()) return "dict";
  if (is_namespace()) return "namespace";
  if (is_loop()) return "loop";
  return "callable";
}

std::string Value::Str() const {
  if (is_text()) return text();
  return Repr();
}

std::string Value::Repr() const {
  std::string out;
  AppendRepr(&out);
  return out;
}

void Value::AppendRepr(std::string* out) const {
  if (is_undefined() || static_cast<int64_t>(out->size()) > kTextBytesMax) return;
  if (is_none()) {
    absl::StrAppend(out, "None");
  } else if (is_bool()) {
    absl::StrAppend(out, boolean() ? "True" : "False");
  } else if (is_integer()) {
    absl::StrAppend(out, IntegerText(integer()));
  } else if (is_double()) {
    absl::StrAppend(out, ReprDouble(real()));
  } else if (is_text()) {
    absl::StrAppend(out, ReprText(text()));
  } else if (is_generator() || is_namespace() || is_loop() || is_callable()) {
    absl::StrAppend(out, "<", TypeName(), ">");
  } else if (is_list()) {
    const bool tuple = list().is_tuple;
    out->push_back(tuple ? '(' : '[');
    absl::string_view separator = "";
    for (const Value& item : list().items) {
      absl::StrAppend(out, separator);
      if (item.is_undefined()) absl::StrAppend(out, "Undefined");
      item.AppendRepr(out);
      if (static_cast<int64_t>(out->size()) > kTextBytesMax) return;
      separator = ", ";
    }
    if (tuple && list().items.size() == 1) out->push_back(',');
    out->push_back(tuple ? ')' : ']');
  } else {
    out->push_back('{');
    absl::string_view separator = "";
    for (const auto& [key, value] : dict().entries) {
      absl::StrAppend(out, separator);
      key.AppendRepr(out);
      absl::StrAppend(out, ": ");
      if (value.is_undefined()) absl::StrAppend(out, "Undefined");
      value.AppendRepr(out);
      if (static_cast<int64_t>(out->size()) > kTextBytesMax) return;
      separator = ", ";
    }
    out->push_back('}');
  }
}

bool SameObject(const Value& a, const Value& b) {
  if (a.data_.index() != b.data_.index()) return false;
  if (a.is_namespace()) return &a.name_space() == &b.name_space();
  if (a.is_loop()) return &a.loop() == &b.loop();
  if (a.is_callable()) return &a.callable() == &b.callable();
  if (a.is_list()) return &a.list() == &b.list();
  if (a.is_dict()) return &a.dict() == &b.dict();
  return false;
}

bool IsHashable(const Value& value) {
  return value.is_text() || value.is_number() || value.is_none();
}

std::string KeyText(const Value& value) {
  if (value.is_text()) return absl::StrCat("s", value.text());
  if (value.is_none()) return "n";
  if (value.is_whole()) return absl::StrCat("i", IntegerText(value.integer()));
  const double number = value.real();
  // A whole double is the same key as the integer.
  if (number == std::floor(number) && std::fabs(number) < 1e30) {
    return absl::StrCat("i", IntegerText(static_cast<Integer>(number)));
  }
  return absl::StrCat("d", ReprDouble(number));
}

Value FromDigits(absl::string_view digits) {
  absl::int128 whole = 0;
  if (absl::SimpleAtoi(digits, &whole)) return Value(static_cast<Integer>(whole));
  double nearest = 0;
  return absl::SimpleAtod(digits, &nearest) ? Value(nearest) : Value();
}

absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, int32_t depth_max) {
  if (depth_max < 0) return absl::InvalidArgumentError("input JSON nests too deeply");
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value(static_cast<Integer>(json.get<int64_t>()));
    case nlohmann::ordered_json::value_t::number_unsigned:
      return Value(static_cast<Integer>(json.get<uint64_t>()));
    case nlohmann::ordered_json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::ordered_json::value_t::binary: {
      const nlohmann::ordered_json::binary_t& bytes = json.get_binary();
      return FromDigits({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
    case nlohmann::ordered_json::value_t::string:
      return Value(json.get_ref<const std::string&>());
    case nlohmann::ordered_json::value_t::array: {
      std::vector<Value> items;
      for (const auto& element : json) {
        ASSIGN_OR_RETURN(Value item, FromJson(element, depth_max - 1));
        items.push_back(std::move(item));
      }
      return Value::MakeList(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict dict;
      for (const auto& [key, element] : json.items()) {
        ASSIGN_OR_RETURN(const Value item, FromJson(element, depth_max - 1));
        dict.Set(Value(key), item);
      }
      return Value(std::move(dict));
    }
    default:
      return Value();
  }
}

}  // namespace tandem::model::chat_template
