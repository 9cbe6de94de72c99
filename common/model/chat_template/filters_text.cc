// Implements TextFilters (common/model/chat_template/filters.h): filters that read their input as
// text.
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/filters.h"
#include "common/model/chat_template/operators.h"
#include "common/model/chat_template/text.h"

namespace tandem::model::chat_template {
namespace {

using Result = absl::StatusOr<Value>;

Result Trim(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("trim", arguments, {"chars"}));
  const Value* chars = bound.Get(0);
  ASSIGN_OR_RETURN(const std::string text, TextOf(runtime, input));
  if (chars == nullptr || chars->is_none()) return Value(Strip(text, {}));
  if (!chars->is_text()) return Expected("trim", "a string of characters", *chars);
  return StripCharacters(runtime, text, {.characters = &chars->text()});
}

Result UpperFilter(Runtime& runtime, const Value& input, const Arguments&) {
  ASSIGN_OR_RETURN(const std::string text, TextOf(runtime, input));
  return Value(Upper(text));
}
Result LowerFilter(Runtime& runtime, const Value& input, const Arguments&) {
  ASSIGN_OR_RETURN(const std::string text, TextOf(runtime, input));
  return Value(Lower(text));
}
Result TitleFilter(Runtime& runtime, const Value& input, const Arguments&) {
  ASSIGN_OR_RETURN(const std::string text, TextOf(runtime, input));
  return Value(JinjaTitle(text));
}
Result CapitalizeFilter(Runtime& runtime, const Value& input, const Arguments&) {
  ASSIGN_OR_RETURN(const std::string text, TextOf(runtime, input));
  return Value(Capitalize(text));
}

Result Replace(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("replace", arguments, {"old", "new", "count"}));
  ASSIGN_OR_RETURN(const Value from, bound.Required(0));
  ASSIGN_OR_RETURN(const Value to, bound.Required(1));
  int64_t count = -1;
  if (bound.Get(2) != nullptr && !bound.Get(2)->is_none()) {
    ASSIGN_OR_RETURN(count, bound.Int(2, -1));
  }
  ASSIGN_OR_RETURN(const std::string text, TextOf(runtime, input));
  ASSIGN_OR_RETURN(std::string old_text, TextOf(runtime, from));
  ASSIGN_OR_RETURN(std::string new_text, TextOf(runtime, to));
  return ReplaceText(runtime, text, {std::move(old_text), std::move(new_text), count});
}

Result Indent(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound,
                   Bound::Make("indent", arguments, {"width", "first", "blank"}));
  if (!input.is_text()) return Expected("indent", "a string", input);
  std::string indention(4, ' ');
  if (bound.Get(0) != nullptr && bound.Get(0)->is_text()) {
    indention = bound.Get(0)->text();
  } else {
    ASSIGN_OR_RETURN(const int64_t width, bound.Int(0, 4));
    RETURN_IF_ERROR(runtime.CheckBytes(width));
    indention.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const bool blank = bound.Flag(2, false);
  const std::string text = absl::StrCat(input.text(), "\n");
  std::string out = bound.Flag(1, false) ? indention : "";
  bool first = true;
  for (const absl::string_view line : SplitLines(text)) {
    if (!first) out.push_back('\n');
    if (!first && (blank || !line.empty())) out += indention;
    absl::StrAppend(&out, line);
    first = false;
    RETURN_IF_ERROR(runtime.CheckBytes(static_cast<int64_t>(out.size())));
  }
  return Value(std::move(out));
}

Result Center(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("center", arguments, {"width"}));
  ASSIGN_OR_RETURN(const int64_t width, bound.Int(0, 80));
  RETURN_IF_ERROR(runtime.CheckBytes(width));
  ASSIGN_OR_RETURN(const std::string text, TextOf(runtime, input));
  const int64_t missing = width - CodePointCount(text);
  if (missing <= 0) return Value(text);
  // Put the odd space on the side where CPython puts it.
  const int64_t left = missing / 2 + (missing & width & 1);
  return Value(absl::StrCat(std::string(static_cast<size_t>(left), ' '), text,
                            std::string(static_cast<size_t>(missing - left), ' ')));
}

Result Escape(Runtime& runtime, const Value& input, const Arguments&) {
  ASSIGN_OR_RETURN(const std::string text, TextOf(runtime, input));
  RETURN_IF_ERROR(runtime.CheckBytes(static_cast<int64_t>(text.size()) * 5));
  return Value(absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}}));
}

Result Format(Runtime& runtime, const Value& input, const Arguments& arguments) {
  Value values = Value::MakeTuple(arguments.positional);
  if (!arguments.named.empty()) {
    if (!arguments.positional.empty()) {
      return absl::InvalidArgumentError("format: expected positional or named arguments, not both");
    }
    Dict dict;
    for (const auto& [name, value] : arguments.named) dict.Set(Value(name), value);
    values = Value(std::move(dict));
  }
  ASSIGN_OR_RETURN(const std::string format, TextOf(runtime, input));
  ASSIGN_OR_RETURN(std::string text, PercentFormat(runtime, format, values));
  return Value(std::move(text));
}

Result Truncate(Runtime&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound,
                   Bound::Make("truncate", arguments, {"length", "killwords", "end", "leeway"}));
  if (!input.is_text()) return Expected("truncate", "a string", input);
  ASSIGN_OR_RETURN(const int64_t length, bound.Int(0, 255));
  ASSIGN_OR_RETURN(const std::string end, bound.Text(2, "..."));
  ASSIGN_OR_RETURN(const int64_t leeway, bound.Int(3, 5));
  const int64_t points = CodePointCount(input.text());
  const int64_t end_length = CodePointCount(end);
  if (length < end_length || leeway < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("truncate: expected a length of at least ", end_length, " and a leeway >= 0"));
  }
  if (points <= length + leeway) return input;
  std::string text = input.text().substr(0, BytesOfCodePoints(input.text(), length - end_length));
  if (!bound.Flag(1, false)) text.resize(std::min(text.rfind(' '), text.size()));
  return Value(text + end);
}

Result WordCount(Runtime& runtime, const Value& input, const Arguments&) {
  int64_t count = 0;
  bool in_word = false;
  ASSIGN_OR_RETURN(const std::string text, TextOf(runtime, input));
  for (absl::string_view rest = text; !rest.empty(); rest.remove_prefix(CodePointBytes(rest))) {
    const bool space = IsSpace(DecodeCodePoint(rest));
    if (!space && !in_word) ++count;
    in_word = !space;
  }
  return Value::MakeInteger(count);
}

// Percent-encodes the bytes of `text` that are not unreserved. In a query a slash is encoded, and a
// space becomes "+".
void AppendUrlEncoded(absl::string_view text, bool in_query, std::string* out) {
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
        absl::string_view("_.-~").find(c) != absl::string_view::npos || (c == '/' && !in_query)) {
      out->push_back(c);
    } else if (c == ' ' && in_query) {
      out->push_back('+');
    } else {
      absl::StrAppendFormat(out, "%%%02X", static_cast<uint8_t>(c));
    }
  }
}

// A text, or the parts of a query: a dict or pairs.
Result UrlEncode(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(Bound::Make("urlencode", arguments, {}).status());
  std::string out;
  if (!input.is_dict() && !input.is_list() && !input.is_undefined()) {
    ASSIGN_OR_RETURN(const std::string text, TextOf(runtime, input));
    RETURN_IF_ERROR(runtime.CheckBytes(3 * static_cast<int64_t>(text.size())));
    AppendUrlEncoded(text, false, &out);
    return Value(std::move(out));
  }
  std::vector<std::vector<Value>> pairs;
  if (input.is_dict()) {
    for (const auto& [key, value] : input.dict().entries) pairs.push_back({key, value});
  } else {
    ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(runtime, input));
    for (const Value& item : items) {
      ASSIGN_OR_RETURN(pairs.emplace_back(), Iterate(runtime, item));
      if (pairs.back().size() != 2) return Expected("urlencode", "pairs", item);
    }
  }
  for (size_t i = 0; i < 2 * pairs.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string text, TextOf(runtime, pairs[i / 2][i % 2]));
    RETURN_IF_ERROR(runtime.CheckBytes(static_cast<int64_t>(out.size() + 3 * text.size() + 1)));
    if (i > 0) out.push_back(i % 2 == 0 ? '&' : '=');
    AppendUrlEncoded(text, true, &out);
  }
  return Value(std::move(out));
}

Result StringFilter(Runtime& runtime, const Value& input, const Arguments&) {
  ASSIGN_OR_RETURN(std::string text, TextOf(runtime, input));
  return Value(std::move(text));
}

// The evaluator escapes nothing on output, so "safe" returns its input.
Result Safe(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return StringFilter(runtime, input, arguments);
}

constexpr Filter kTextFilters[] = {
    {"trim", Trim},
    {"upper", UpperFilter},
    {"lower", LowerFilter},
    {"title", TitleFilter},
    {"capitalize", CapitalizeFilter},
    {"replace", Replace},
    {"indent", Indent},
    {"center", Center},
    {"escape", Escape},
    {"e", Escape},
    {"format", Format},
    {"truncate", Truncate},
    {"wordcount", WordCount},
    {"string", StringFilter},
    {"safe", Safe},
    {"urlencode", UrlEncode},
};

}  // namespace

absl::Span<const Filter> TextFilters() { return kTextFilters; }

absl::StatusOr<Value> StripCharacters(Runtime& runtime, const std::string& text,
                                      const StripOptions& options) {
  RETURN_IF_ERROR(
      runtime.Charge(static_cast<int64_t>(text.size() / 64 * options.characters->size())));
  return Value(Strip(text, options));
}

absl::StatusOr<Value> ReplaceText(Runtime& runtime, const std::string& text,
                                  const Replacement& replacement) {
  std::string out;
  absl::string_view rest = text;
  int64_t left = replacement.count < 0 ? INT64_MAX : replacement.count;
  if (replacement.from.empty()) {
    // Between every two code points, and at both ends.
    for (; left > 0; --left) {
      RETURN_IF_ERROR(runtime.CheckBytes(static_cast<int64_t>(out.size() + replacement.to.size())));
      out += replacement.to;
      if (rest.empty()) break;
      const size_t bytes = CodePointBytes(rest);
      absl::StrAppend(&out, rest.substr(0, bytes));
      rest.remove_prefix(bytes);
    }
    return Value(absl::StrCat(out, rest));
  }
  for (; left > 0; --left) {
    const size_t at = FindText(rest, replacement.from);
    if (at == std::string::npos) break;
    RETURN_IF_ERROR(
        runtime.CheckBytes(static_cast<int64_t>(out.size() + at + replacement.to.size())));
    absl::StrAppend(&out, rest.substr(0, at));
    out += replacement.to;
    rest.remove_prefix(at + replacement.from.size());
  }
  return Value(absl::StrCat(out, rest));
}

}  // namespace tandem::model::chat_template
