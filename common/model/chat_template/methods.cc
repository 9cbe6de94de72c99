// Implements the methods of texts, lists and dicts (common/model/chat_template/filters.h).
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/filters.h"
#include "common/model/chat_template/operators.h"
#include "common/model/chat_template/text.h"

namespace tandem::model::chat_template {
namespace {

using Result = absl::StatusOr<Value>;

Result StripSides(Runtime& runtime, const Value& self, const Arguments& arguments,
                  StripOptions options) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("strip", arguments, {"chars"}));
  const Value* const chars = bound.Get(0);
  if (chars != nullptr && !chars->is_none()) {
    if (!chars->is_text()) return Expected("strip", "a string of characters", *chars);
    options.characters = &chars->text();
    return StripCharacters(runtime, self.text(), options);
  }
  return Value(Strip(self.text(), options));
}
Result StripMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return StripSides(runtime, self, arguments, {});
}
Result StripLeft(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return StripSides(runtime, self, arguments, {.right = false});
}
Result StripRight(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return StripSides(runtime, self, arguments, {.left = false});
}

Result UpperMethod(Runtime&, const Value& self, const Arguments&) {
  return Value(Upper(self.text()));
}
Result LowerMethod(Runtime&, const Value& self, const Arguments&) {
  return Value(Lower(self.text()));
}
Result TitleMethod(Runtime&, const Value& self, const Arguments&) {
  return Value(PythonTitle(self.text()));
}
Result CapitalizeMethod(Runtime&, const Value& self, const Arguments&) {
  return Value(Capitalize(self.text()));
}

// Bytes up to the first white space.
size_t FirstWordBytes(absl::string_view text) {
  size_t end = 0;
  while (end < text.size() && !IsSpace(DecodeCodePoint(text.substr(end))))
    end += CodePointBytes(text.substr(end));
  return end;
}
// Bytes behind the last one.
size_t LastWordBytes(absl::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    const size_t point = LastCodePointBytes(text.substr(0, begin));
    if (IsSpace(DecodeCodePoint(text.substr(begin - point, point)))) break;
    begin -= point;
  }
  return text.size() - begin;
}

// Splits at runs of white space, at most `limit` times when that is >= 0.
std::vector<Value> SplitAtSpace(absl::string_view text, int64_t limit, bool from_right) {
  std::vector<Value> parts;
  for (;;) {
    text = Strip(text, {.left = !from_right, .right = from_right});
    if (text.empty()) break;
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.emplace_back(text);
      break;
    }
    const size_t bytes = from_right ? LastWordBytes(text) : FirstWordBytes(text);
    parts.emplace_back(from_right ? text.substr(text.size() - bytes) : text.substr(0, bytes));
    from_right ? text.remove_suffix(bytes) : text.remove_prefix(bytes);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Value> SplitAt(absl::string_view text, const std::string& separator, int64_t limit,
                           bool from_right) {
  std::vector<Value> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = from_right ? text.rfind(separator) : FindText(text, separator);
    if (at == absl::string_view::npos) break;
    const size_t after = at + separator.size();
    parts.emplace_back(from_right ? text.substr(after) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(after);
  }
  parts.emplace_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Result SplitSides(Runtime& runtime, const Value& self, const Arguments& arguments,
                  bool from_right) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("split", arguments, {"sep", "maxsplit"}));
  ASSIGN_OR_RETURN(const int64_t limit, bound.Int(1, -1));
  RETURN_IF_ERROR(runtime.Charge(static_cast<int64_t>(self.text().size())));
  const Value* const separator = bound.Get(0);
  if (separator == nullptr || separator->is_none()) {
    return Value::MakeList(SplitAtSpace(self.text(), limit, from_right));
  }
  if (!separator->is_text() || separator->text().empty()) {
    return Expected("split", "a string that is not empty", *separator);
  }
  // The search from the right may compare the separator at every byte.
  if (from_right) {
    RETURN_IF_ERROR(
        runtime.Charge(static_cast<int64_t>(self.text().size() / 64 * separator->text().size())));
  }
  return Value::MakeList(SplitAt(self.text(), separator->text(), limit, from_right));
}
Result SplitMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return SplitSides(runtime, self, arguments, false);
}
Result SplitRight(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return SplitSides(runtime, self, arguments, true);
}

Result SplitLinesMethod(Runtime& runtime, const Value& self, const Arguments&) {
  RETURN_IF_ERROR(runtime.Charge(static_cast<int64_t>(self.text().size())));
  std::vector<Value> lines;
  for (const absl::string_view line : SplitLines(self.text())) lines.emplace_back(line);
  return Value::MakeList(std::move(lines));
}

// Whether `matches(self, affix)` for the one affix given, or any of a tuple of them.
Result AnyAffix(const Value& self, const Arguments& arguments,
                bool (*matches)(absl::string_view, absl::string_view)) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("startswith", arguments, {"affix"}));
  ASSIGN_OR_RETURN(const Value affix, bound.Required(0));
  const bool is_tuple = affix.is_list() && affix.list().is_tuple;
  const std::vector<Value> affixes = is_tuple ? affix.list().items : std::vector<Value>{affix};
  for (const Value& candidate : affixes) {
    if (!candidate.is_text()) return Expected("startswith", "a string", candidate);
    if (matches(self.text(), candidate.text())) return Value(true);
  }
  return Value(false);
}
Result StartsWithMethod(Runtime&, const Value& self, const Arguments& arguments) {
  return AnyAffix(self, arguments,
                  [](absl::string_view a, absl::string_view b) { return absl::StartsWith(a, b); });
}
Result EndsWithMethod(Runtime&, const Value& self, const Arguments& arguments) {
  return AnyAffix(self, arguments,
                  [](absl::string_view a, absl::string_view b) { return absl::EndsWith(a, b); });
}

Result RemovePrefix(Runtime&, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("removeprefix", arguments, {"prefix"}));
  ASSIGN_OR_RETURN(const std::string prefix, bound.Text(0, ""));
  absl::string_view text = self.text();
  absl::ConsumePrefix(&text, prefix);
  return Value(text);
}
Result RemoveSuffix(Runtime&, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("removesuffix", arguments, {"suffix"}));
  ASSIGN_OR_RETURN(const std::string suffix, bound.Text(0, ""));
  absl::string_view text = self.text();
  absl::ConsumeSuffix(&text, suffix);
  return Value(text);
}

Result ReplaceMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("replace", arguments, {"old", "new", "count"}));
  ASSIGN_OR_RETURN(const Value from, bound.Required(0));
  ASSIGN_OR_RETURN(const Value to, bound.Required(1));
  if (!from.is_text()) return Expected("replace", "a string", from);
  if (!to.is_text()) return Expected("replace", "a string", to);
  ASSIGN_OR_RETURN(const int64_t count, bound.Int(2, -1));
  return ReplaceText(runtime, self.text(), {from.text(), to.text(), count});
}

Result JoinMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("join", arguments, {"iterable"}));
  ASSIGN_OR_RETURN(const Value iterable, bound.Required(0));
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(runtime, iterable));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_text()) return Expected("join", "strings", items[i]);
    if (i > 0) out += self.text();
    out += items[i].text();
    RETURN_IF_ERROR(runtime.CheckBytes(static_cast<int64_t>(out.size())));
  }
  return Value(std::move(out));
}

Result FormatMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(std::string text, BraceFormat(runtime, self.text(), arguments));
  return Value(std::move(text));
}

// The code point index of `sub`; -1 when it is absent.
Result FindMethodOfText(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("find", arguments, {"sub"}));
  ASSIGN_OR_RETURN(const std::string sub, bound.Text(0, ""));
  RETURN_IF_ERROR(runtime.Charge(self.Size()));
  const size_t at = FindText(self.text(), sub);
  if (at == std::string::npos) return Value::MakeInteger(-1);
  return Value::MakeInteger(CodePointCount(absl::string_view(self.text()).substr(0, at)));
}

Result CountMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("count", arguments, {"value"}));
  ASSIGN_OR_RETURN(const Value value, bound.Required(0));
  int64_t count = 0;
  if (self.is_list()) {
    for (const Value& item : self.list().items) {
      ASSIGN_OR_RETURN(const bool same, Equals(runtime, item, value));
      count += same ? 1 : 0;
    }
    return Value::MakeInteger(count);
  }
  if (!value.is_text()) return Expected("count", "a string", value);
  RETURN_IF_ERROR(runtime.Charge(self.Size()));
  const std::string& sub = value.text();
  if (sub.empty()) return Value::MakeInteger(CodePointCount(self.text()) + 1);
  for (size_t at = FindText(self.text(), sub); at != std::string::npos;
       at = FindText(self.text(), sub, at + sub.size())) {
    ++count;
  }
  return Value::MakeInteger(count);
}

Result IndexMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("index", arguments, {"value"}));
  ASSIGN_OR_RETURN(const Value value, bound.Required(0));
  for (size_t i = 0; i < self.list().items.size(); ++i) {
    ASSIGN_OR_RETURN(const bool same, Equals(runtime, self.list().items[i], value));
    if (same) return Value::MakeInteger(static_cast<int64_t>(i));
  }
  return absl::InvalidArgumentError("index: the value is not in the list");
}

// Whether the text is not empty and every code point satisfies `predicate`.
Result AllPoints(const Value& self, bool (*predicate)(char32_t)) {
  for (absl::string_view rest = self.text(); !rest.empty();
       rest.remove_prefix(CodePointBytes(rest))) {
    if (!predicate(DecodeCodePoint(rest))) return Value(false);
  }
  return Value(!self.text().empty());
}
Result IsSpaceMethod(Runtime&, const Value& self, const Arguments&) {
  return AllPoints(self, IsSpace);
}
Result IsDigitMethod(Runtime&, const Value& self, const Arguments&) {
  return AllPoints(self, HasDigitValue);
}
Result IsAlphaMethod(Runtime&, const Value& self, const Arguments&) {
  return AllPoints(self, IsLetter);
}
Result IsAlnumMethod(Runtime&, const Value& self, const Arguments&) {
  return AllPoints(self, [](char32_t c) { return IsLetter(c) || HasNumericValue(c); });
}

// Whether some code points have a case and none of these has another one.
Result OneCase(const Value& self, bool (*has)(char32_t), bool (*has_other)(char32_t)) {
  bool found = false;
  for (absl::string_view rest = self.text(); !rest.empty();
       rest.remove_prefix(CodePointBytes(rest))) {
    const char32_t c = DecodeCodePoint(rest);
    if (has_other(c) || IsTitlecase(c)) return Value(false);
    found = found || has(c);
  }
  return Value(found);
}
Result IsLowerMethod(Runtime&, const Value& self, const Arguments&) {
  return OneCase(self, IsLowercase, IsUppercase);
}
Result IsUpperMethod(Runtime&, const Value& self, const Arguments&) {
  return OneCase(self, IsUppercase, IsLowercase);
}

// (before, separator, after), at the first or the last separator.
Result PartitionAt(Runtime& runtime, const Value& self, const Arguments& arguments, bool last) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("partition", arguments, {"sep"}));
  ASSIGN_OR_RETURN(const Value separator, bound.Required(0));
  if (!separator.is_text() || separator.text().empty()) {
    return Expected("partition", "a string that is not empty", separator);
  }
  const std::string& text = self.text();
  const std::string& mark = separator.text();
  // The search for the last one may compare the separator at every byte.
  if (last) RETURN_IF_ERROR(runtime.Charge(static_cast<int64_t>(text.size() / 64 * mark.size())));
  const size_t at = last ? text.rfind(mark) : FindText(text, mark);
  if (at == std::string::npos) {
    return last ? Value::MakeTuple({Value(""), Value(""), self})
                : Value::MakeTuple({self, Value(""), Value("")});
  }
  return Value::MakeTuple(
      {Value(text.substr(0, at)), separator, Value(text.substr(at + mark.size()))});
}
Result PartitionMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return PartitionAt(runtime, self, arguments, false);
}
Result PartitionRight(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return PartitionAt(runtime, self, arguments, true);
}

enum class Side { kLeft, kRight, kBoth };

// The text with fill characters on the side given, up to a width.
Result PadMethod(Runtime& runtime, const Value& self, const Arguments& arguments, Side side) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("center", arguments, {"width", "fillchar"}));
  RETURN_IF_ERROR(bound.Required(0).status());
  ASSIGN_OR_RETURN(const int64_t width, bound.Int(0, 0));
  ASSIGN_OR_RETURN(const std::string fill, bound.Text(1, " "));
  if (CodePointCount(fill) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("center: expected one character to fill with, found ", CodePointCount(fill)));
  }
  const int64_t missing = width - CodePointCount(self.text());
  if (missing <= 0) return self;
  RETURN_IF_ERROR(runtime.CheckBytes(width * static_cast<int64_t>(fill.size())));
  // The odd one is where CPython puts it.
  const int64_t centered = missing / 2 + (missing & width & 1);
  const int64_t left = side == Side::kLeft ? missing : side == Side::kRight ? 0 : centered;
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += self.text();
  for (int64_t i = left; i < missing; ++i) out += fill;
  return Value(std::move(out));
}
Result CenterMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return PadMethod(runtime, self, arguments, Side::kBoth);
}
Result JustifyLeft(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return PadMethod(runtime, self, arguments, Side::kRight);
}
Result JustifyRight(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return PadMethod(runtime, self, arguments, Side::kLeft);
}

// Zeros between a sign and the rest, up to a width.
Result FillWithZeros(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("zfill", arguments, {"width"}));
  RETURN_IF_ERROR(bound.Required(0).status());
  ASSIGN_OR_RETURN(const int64_t width, bound.Int(0, 0));
  const int64_t missing = width - CodePointCount(self.text());
  if (missing <= 0) return self;
  RETURN_IF_ERROR(runtime.CheckBytes(width));
  std::string out = self.text();
  const bool is_signed = !out.empty() && (out[0] == '-' || out[0] == '+');
  out.insert(is_signed ? 1 : 0, static_cast<size_t>(missing), '0');
  return Value(std::move(out));
}

Result Keys(Runtime& runtime, const Value& self, const Arguments&) {
  ASSIGN_OR_RETURN(std::vector<Value> keys, Iterate(runtime, self));
  return Value::MakeList(std::move(keys));
}
Result Values(Runtime& runtime, const Value& self, const Arguments&) {
  RETURN_IF_ERROR(runtime.Charge(self.Size()));
  std::vector<Value> values;
  for (const auto& [key, value] : self.dict().entries) values.push_back(value);
  return Value::MakeList(std::move(values));
}
Result ItemsMethod(Runtime& runtime, const Value& self, const Arguments&) {
  RETURN_IF_ERROR(runtime.Charge(self.Size()));
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.dict().entries) {
    pairs.push_back(Value::MakeTuple({key, value}));
  }
  return Value::MakeList(std::move(pairs));
}
Result Get(Runtime&, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("get", arguments, {"key", "default"}));
  ASSIGN_OR_RETURN(const Value key, bound.Required(0));
  if (!IsHashable(key)) return Expected("get", "a hashable key", key);
  if (const Value* value = self.dict().Find(key)) return *value;
  return bound.Get(1) == nullptr ? Value() : *bound.Get(1);
}
// Returns the argument for the loop's current round; starts over after the last one.
Result Cycle(Runtime&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) {
    return absl::InvalidArgumentError("cycle: expected at least one value");
  }
  return arguments.positional[self.loop().index % arguments.positional.size()];
}
Result Copy(Runtime&, const Value& self, const Arguments&) { return self; }

constexpr Method kTextMethods[] = {
    {"strip", StripMethod},           {"lstrip", StripLeft},
    {"rstrip", StripRight},           {"split", SplitMethod},
    {"rsplit", SplitRight},           {"splitlines", SplitLinesMethod},
    {"startswith", StartsWithMethod}, {"endswith", EndsWithMethod},
    {"removeprefix", RemovePrefix},   {"removesuffix", RemoveSuffix},
    {"replace", ReplaceMethod},       {"join", JoinMethod},
    {"format", FormatMethod},         {"find", FindMethodOfText},
    {"count", CountMethod},           {"upper", UpperMethod},
    {"lower", LowerMethod},           {"title", TitleMethod},
    {"capitalize", CapitalizeMethod}, {"isspace", IsSpaceMethod},
    {"isdigit", IsDigitMethod},       {"isalpha", IsAlphaMethod},
    {"isalnum", IsAlnumMethod},       {"islower", IsLowerMethod},
    {"isupper", IsUpperMethod},       {"partition", PartitionMethod},
    {"rpartition", PartitionRight},   {"center", CenterMethod},
    {"ljust", JustifyLeft},           {"rjust", JustifyRight},
    {"zfill", FillWithZeros},
};
constexpr Method kListMethods[] = {{"index", IndexMethod}, {"count", CountMethod}, {"copy", Copy}};
constexpr Method kLoopMethods[] = {{"cycle", Cycle}};
constexpr Method kDictMethods[] = {
    {"keys", Keys}, {"values", Values}, {"items", ItemsMethod}, {"get", Get}, {"copy", Copy}};
constexpr absl::string_view kUnsafeListAttributes[] = {"append", "clear",  "extend",  "insert",
                                                       "pop",    "remove", "reverse", "sort"};
constexpr absl::string_view kUnsafeDictAttributes[] = {"clear", "pop", "popitem", "setdefault",
                                                       "update"};

template <typename Names>
bool Holds(const Names& names, absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

const Method* FindMethod(const Value& self, absl::string_view name) {
  absl::Span<const Method> methods;
  if (self.is_text()) methods = kTextMethods;
  if (self.is_list() && !self.is_generator()) methods = kListMethods;
  if (self.is_dict()) methods = kDictMethods;
  if (self.is_loop()) methods = kLoopMethods;
  for (const Method& method : methods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

bool IsUnsafeAttribute(const Value& self, absl::string_view name) {
  if (absl::StartsWith(name, "__")) return !self.is_dict() || self.dict().FindText(name) == nullptr;
  if (self.is_list() && !self.list().is_tuple) return Holds(kUnsafeListAttributes, name);
  return self.is_dict() && Holds(kUnsafeDictAttributes, name);
}

}  // namespace tandem::model::chat_template
