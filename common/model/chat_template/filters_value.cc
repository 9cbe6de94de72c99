// Implements ValueFilters (common/model/chat_template/filters.h): filters on any value, such as
// defaults, numbers and JSON.
#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/filters.h"
#include "common/model/chat_template/operators.h"
#include "common/model/chat_template/text.h"

namespace tandem::model::chat_template {
namespace {

using Result = absl::StatusOr<Value>;

Result Default(Runtime&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound,
                   Bound::Make("default", arguments, {"default_value", "boolean"}));
  const bool replace = input.is_undefined() || (bound.Flag(1, false) && !input.Truth());
  if (!replace) return input;
  return bound.Get(0) == nullptr ? Value("") : *bound.Get(0);
}

// Python's int(text, base), without underscores; false if `text` is not such a number.
bool ReadInteger(absl::string_view text, int64_t base, Integer* result) {
  text = Strip(text, {});
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  const auto has_prefix = [&](char letter) {
    return text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == letter;
  };
  if ((base == 16 && has_prefix('x')) || (base == 8 && has_prefix('o')) ||
      (base == 2 && has_prefix('b'))) {
    text.remove_prefix(2);
  }
  if (text.empty()) return false;
  Integer value = 0;
  for (const char c : text) {
    const char lower = static_cast<char>(c | 0x20);
    const int digit = c >= '0' && c <= '9'           ? c - '0'
                      : lower >= 'a' && lower <= 'z' ? lower - 'a' + 10
                                                     : 99;
    if (digit >= base || __builtin_mul_overflow(value, static_cast<Integer>(base), &value) ||
        __builtin_add_overflow(value, static_cast<Integer>(digit), &value)) {
      return false;
    }
  }
  *result = negative ? -value : value;
  return true;
}

bool ReadDouble(absl::string_view text, double* result) {
  text = Strip(text, {});
  // Python's float() does not accept hexadecimal numbers.
  if (text.find_first_of("xX") != absl::string_view::npos) return false;
  return absl::SimpleAtod(text, result);
}

Result Int(Runtime&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("int", arguments, {"default", "base"}));
  ASSIGN_OR_RETURN(const int64_t base, bound.Int(1, 10));
  if (base < 2 || base > 36) return absl::InvalidArgumentError("int: expected a base from 2 to 36");
  const Value otherwise = bound.Get(0) == nullptr ? Value::MakeInteger(0) : *bound.Get(0);
  if (input.is_whole()) return Value(input.integer());
  Integer whole;
  double real;
  if (input.is_text() && ReadInteger(input.text(), base, &whole)) return Value(whole);
  if (input.is_double()) {
    real = input.real();
  } else if (!input.is_text() || !ReadDouble(input.text(), &real)) {
    return otherwise;
  }
  if (!(std::fabs(real) < 1e38)) return otherwise;
  return Value(static_cast<Integer>(real));
}

Result Float(Runtime&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("float", arguments, {"default"}));
  double real;
  if (input.is_number()) return Value(input.real());
  if (input.is_text() && ReadDouble(input.text(), &real)) return Value(real);
  return bound.Get(0) == nullptr ? Value(0.0) : *bound.Get(0);
}

Result Abs(Runtime&, const Value& input, const Arguments&) {
  if (input.is_double()) return Value(std::fabs(input.real()));
  if (!input.is_whole()) return Expected("abs", "a number", input);
  if (input.integer() < 0) return Negate(input);
  return Value(input.integer());
}

Result Round(Runtime&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("round", arguments, {"precision", "method"}));
  if (!input.is_number()) return Expected("round", "a number", input);
  ASSIGN_OR_RETURN(int64_t precision, bound.Int(0, 0));
  ASSIGN_OR_RETURN(const std::string method, bound.Text(1, "common"));
  if (method != "common" && method != "ceil" && method != "floor") {
    return absl::InvalidArgumentError("round: expected the method common, ceil or floor");
  }
  precision = std::clamp<int64_t>(precision, -300, 300);
  if (method == "common") {
    if (input.is_whole() && precision >= 0) return Value(input.integer());
    if (precision >= 0 && std::isfinite(input.real())) {
      // Correct rounding of the decimal digits, ties to even, as CPython's round().
      double result;
      char text[700];
      std::snprintf(text, sizeof(text), "%.*f", static_cast<int>(precision), input.real());
      if (absl::SimpleAtod(text, &result)) return Value(result);
    }
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double rounded = std::nearbyint(input.real() * scale) / scale;
    if (!input.is_whole()) return Value(rounded);
    constexpr double kWholeMax = 1.7e38;  // Integer holds it
    if (!(std::fabs(rounded) < kWholeMax)) return absl::InvalidArgumentError("integer too large");
    return Value(static_cast<Integer>(rounded));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = input.real() * scale;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Result ToJsonFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Make("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonFormat format;
  format.ensure_ascii = bound.Flag(0, false);
  format.sort_keys = bound.Flag(3, false);
  const Value* const indent = bound.Get(1);
  if (indent != nullptr && !indent->is_none()) {
    format.has_indent = true;
    format.item_separator.assign(1, ',');
    if (indent->is_text()) {
      format.indent = indent->text();
    } else {
      ASSIGN_OR_RETURN(const int64_t width, bound.Int(1, 0));
      // A larger indentation is not useful for formatting.
      constexpr int64_t kIndentMax = 64;
      if (width > kIndentMax) {
        return absl::InvalidArgumentError(
            absl::StrCat("tojson: expected an indent of at most ", kIndentMax));
      }
      format.indent.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  const Value* const separators = bound.Get(2);
  if (separators != nullptr && !separators->is_none()) {
    if (!separators->is_list() || separators->list().items.size() != 2 ||
        !separators->list().items[0].is_text() || !separators->list().items[1].is_text()) {
      return Expected("tojson", "two strings as separators", *separators);
    }
    format.item_separator = separators->list().items[0].text();
    format.key_separator = separators->list().items[1].text();
  }
  ASSIGN_OR_RETURN(std::string text, ToJson(input, format));
  RETURN_IF_ERROR(runtime.CheckBytes(static_cast<int64_t>(text.size())));
  return Value(std::move(text));
}

// An attribute that the value has itself: no member of a dict.
Result Attr(Runtime&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("attr", arguments, {"name"}));
  ASSIGN_OR_RETURN(const Value name, bound.Required(0));
  if (!name.is_text()) return Expected("attr", "a string", name);
  if (input.is_dict() && FindMethod(input, name.text()) == nullptr) {
    return Value::MakeUndefined(absl::StrCat("'dict object' has no attribute '", name.text(), "'"));
  }
  return GetAttribute(input, name.text());
}

constexpr Filter kValueFilters[] = {
    {"default", Default}, {"d", Default},           {"int", Int},   {"float", Float}, {"abs", Abs},
    {"round", Round},     {"tojson", ToJsonFilter}, {"attr", Attr},
};

}  // namespace

absl::Span<const Filter> ValueFilters() { return kValueFilters; }

}  // namespace tandem::model::chat_template
