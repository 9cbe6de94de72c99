// Implements attributes, items and slices (common/model/chat_template/operators.h).
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/filters.h"
#include "common/model/chat_template/operators.h"
#include "common/model/chat_template/text.h"

namespace tandem::model::chat_template {
namespace {

Value Missing(const Value& object, absl::string_view name) {
  const std::string type = object.is_none() ? "None" : absl::StrCat(object.TypeName(), " object");
  return Value::MakeUndefined(absl::StrCat("'", type, "' has no attribute '", name, "'"));
}

Value LoopAttribute(const LoopState& loop, absl::string_view name, bool* found) {
  const auto index = static_cast<int64_t>(loop.index);
  const auto length = static_cast<int64_t>(loop.items.size());
  *found = true;
  if (name == "index") return Value::MakeInteger(index + 1);
  if (name == "index0") return Value::MakeInteger(index);
  if (name == "revindex") return Value::MakeInteger(length - index);
  if (name == "revindex0") return Value::MakeInteger(length - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == length);
  if (name == "length") return Value::MakeInteger(length);
  // Only recursive loops, which are not supported, go deeper.
  if (name == "depth") return Value::MakeInteger(1);
  if (name == "depth0") return Value::MakeInteger(0);
  if (name == "previtem") {
    return index > 0 ? loop.items[loop.index - 1]
                     : Value::MakeUndefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < length ? loop.items[loop.index + 1]
                              : Value::MakeUndefined("there is no next item");
  }
  *found = false;
  return Value();
}

// Index `at` of a sequence of `length`, counted from the end when negative.
bool Resolve(Integer at, int64_t length, int64_t* index) {
  if (at < 0) at += length;
  if (at < 0 || at >= length) return false;
  *index = static_cast<int64_t>(at);
  return true;
}

Value ItemAt(const Value& object, Integer at) {
  int64_t index;
  if (object.is_text()) {
    // Code points are found by walking; invalid bytes count one each.
    absl::string_view rest = object.text();
    if (Resolve(at, CodePointCount(rest), &index)) {
      rest.remove_prefix(BytesOfCodePoints(rest, index));
      return Value(rest.substr(0, CodePointBytes(rest)));
    }
  } else if (Resolve(at, object.Size(), &index)) {
    return object.list().items[static_cast<size_t>(index)];
  }
  return Value::MakeUndefined(
      absl::StrCat(object.TypeName(), " object has no element ", IntegerText(at)));
}

// The method or computed attribute `name` of `object`.
Value OwnAttribute(const Value& object, absl::string_view name, bool* found) {
  *found = true;
  if (object.is_namespace()) {
    if (const Value* value = object.name_space().attributes.FindText(name)) return *value;
  } else if (object.is_loop()) {
    Value value = LoopAttribute(object.loop(), name, found);
    if (*found) return value;
    *found = true;
  } else if (object.is_callable() && name == "name") {
    return Value(object.callable().name);
  }
  if (FindMethod(object, name) != nullptr) {
    return Value(Callable{Callable::Kind::kMethod, std::string(name), nullptr, nullptr,
                          std::make_shared<const Value>(object)});
  }
  if (IsUnsafeAttribute(object, name)) {
    return Value::MakeUndefined(absl::StrCat("access to attribute '", name, "' of '",
                                             object.TypeName(), "' object is unsafe"));
  }
  *found = false;
  return Value();
}

}  // namespace

absl::StatusOr<Value> GetAttribute(const Value& object, absl::string_view name) {
  if (object.is_undefined()) return absl::InvalidArgumentError(object.undefined_reason());
  bool found;
  Value value = OwnAttribute(object, name, &found);
  if (found) return value;
  if (object.is_dict()) {
    if (const Value* entry = object.dict().FindText(name)) return *entry;
  }
  return Missing(object, name);
}

absl::StatusOr<Value> GetItem(const Value& object, const Value& key) {
  if (object.is_undefined()) return absl::InvalidArgumentError(object.undefined_reason());
  if (object.is_dict()) {
    if (const Value* entry = object.dict().Find(key)) return *entry;
  } else if ((object.is_text() || (object.is_list() && !object.is_generator())) && key.is_whole()) {
    return ItemAt(object, key.integer());
  }
  if (key.is_text()) {
    bool found;
    Value value = OwnAttribute(object, key.text(), &found);
    if (found) return value;
    return Missing(object, key.text());
  }
  if (key.is_undefined()) return absl::InvalidArgumentError(key.undefined_reason());
  // The text of a list may be long.
  const bool is_short = key.is_number() || key.is_none();
  return Missing(object, is_short ? key.Str() : absl::StrCat("<", key.TypeName(), ">"));
}

absl::StatusOr<Value> GetSlice(Runtime& runtime, const Value& object, const SliceBounds& bounds) {
  if (object.is_undefined()) return absl::InvalidArgumentError(object.undefined_reason());
  if (!object.is_text() && !(object.is_list() && !object.is_generator())) {
    return Value::MakeUndefined(absl::StrCat(object.TypeName(), " object cannot be sliced"));
  }
  for (const Value* bound : {&bounds.start, &bounds.stop, &bounds.step}) {
    if (!bound->is_none() && !bound->is_whole()) return Expected("slice", "an integer", *bound);
  }
  const Integer step = bounds.step.is_none() ? Integer{1} : bounds.step.integer();
  if (step == 0) return absl::InvalidArgumentError("slice: expected a step other than zero");
  // Of a text, only a step other than 1 takes each code point by itself.
  const bool by_points = object.is_text() && step != 1;
  RETURN_IF_ERROR(
      runtime.Charge(by_points ? static_cast<int64_t>(object.text().size()) : object.Size()));
  const Integer length = object.is_text() ? CodePointCount(object.text()) : object.Size();
  const Integer lowest = step > 0 ? 0 : -1;
  const Integer highest = step > 0 ? length : length - 1;
  const auto clamp = [&](const Value& bound, Integer otherwise) {
    if (bound.is_none()) return otherwise;
    Integer at = bound.integer();
    if (at < 0) at += length;
    return std::clamp(at, lowest, highest);
  };
  const Integer start = clamp(bounds.start, step > 0 ? lowest : highest);
  const Integer stop = clamp(bounds.stop, step > 0 ? highest : lowest);
  if (object.is_text() && step == 1) {
    absl::string_view text = object.text();
    text.remove_prefix(BytesOfCodePoints(text, static_cast<int64_t>(start)));
    const auto count = static_cast<int64_t>(std::max(stop - start, Integer{0}));
    return Value(text.substr(0, BytesOfCodePoints(text, count)));
  }
  std::vector<absl::string_view> points;
  if (object.is_text()) points = CodePoints(object.text());
  // A longer step selects nothing more than a step just beyond the ends, which cannot overflow.
  const Integer stride = std::clamp(step, -length - 1, length + 1);
  std::string text;
  std::vector<Value> items;
  for (Integer i = start; stride > 0 ? i < stop : i > stop; i += stride) {
    const auto index = static_cast<size_t>(i);
    if (object.is_text()) {
      absl::StrAppend(&text, points[index]);
    } else {
      items.push_back(object.list().items[index]);
    }
  }
  if (object.is_text()) return Value(std::move(text));
  return object.list().is_tuple ? Value::MakeTuple(std::move(items))
                                : Value::MakeList(std::move(items));
}

}  // namespace tandem::model::chat_template
