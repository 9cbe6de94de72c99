// Implements PercentFormat and BraceFormat (common/model/chat_template/operators.h).
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/operators.h"
#include "common/model/chat_template/text.h"

namespace tandem::model::chat_template {
namespace {

// Wider than any prompt needs; keeps a hostile width from allocating.
constexpr int kWidthMax = 1000;

struct Conversion {
  bool left = false;
  bool zero = false;
  bool plus = false;
  int width = 0;
  int precision = -1;
  char type = '\0';
};

// Digits at the front of `text`, capped.
int TakeNumber(absl::string_view* text) {
  int value = 0;
  while (!text->empty() && absl::ascii_isdigit(static_cast<unsigned char>((*text)[0]))) {
    value = std::min(kWidthMax, value * 10 + ((*text)[0] - '0'));
    text->remove_prefix(1);
  }
  return value;
}

absl::StatusOr<Conversion> TakeConversion(absl::string_view* text) {
  Conversion result;
  for (; !text->empty(); text->remove_prefix(1)) {
    const char c = (*text)[0];
    if (c == '-') {
      result.left = true;
    } else if (c == '0') {
      result.zero = true;
    } else if (c == '+') {
      result.plus = true;
    } else {
      break;
    }
  }
  result.width = TakeNumber(text);
  if (!text->empty() && (*text)[0] == '.') {
    text->remove_prefix(1);
    result.precision = TakeNumber(text);
  }
  if (text->empty()) return absl::InvalidArgumentError("format: incomplete conversion");
  result.type = (*text)[0];
  text->remove_prefix(1);
  return result;
}

absl::StatusOr<std::string> Convert(Runtime& runtime, const Conversion& conversion,
                                    const Value& value) {
  std::string text;
  const int precision = conversion.precision < 0 ? 6 : conversion.precision;
  switch (conversion.type) {
    case 's':
    case 'r': {
      text = conversion.type == 's' ? value.Str() : value.Repr();
      // Also what the precision leaves out.
      RETURN_IF_ERROR(runtime.Charge(static_cast<int64_t>(text.size()) /
                                     (conversion.type == 's' && value.is_text() ? 16 : 4)));
      if (conversion.precision >= 0) text.resize(BytesOfCodePoints(text, conversion.precision));
      return text;
    }
    case 'd':
    case 'i':
      if (!value.is_number()) return Expected("format %d", "a number", value);
      if (value.is_double() && !(std::abs(value.real()) < 1e30)) {
        return Expected("format %d", "a number below 1e30", value);
      }
      text = IntegerText(value.is_double() ? static_cast<Integer>(value.real()) : value.integer());
      break;
    case 'f':
    case 'F':
      if (!value.is_number()) return Expected("format %f", "a number", value);
      text = absl::StrFormat("%.*f", precision, value.real());
      break;
    case 'x':
      if (!value.is_whole() || value.integer() < 0 || value.integer() > INT64_MAX) {
        return Expected("format %x", "a natural number", value);
      }
      text = absl::StrFormat("%x", static_cast<uint64_t>(value.integer()));
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("format: expected a conversion of s, r, d, i, f, x or %, found ",
                       ReprText(std::string(1, conversion.type))));
  }
  if (conversion.plus && text[0] != '-') text.insert(0, "+");
  return text;
}

std::string Pad(std::string text, const Conversion& conversion) {
  const auto count = static_cast<int>(std::min<int64_t>(CodePointCount(text), kWidthMax));
  if (count >= conversion.width) return text;
  const auto missing = static_cast<size_t>(conversion.width - count);
  if (conversion.left) return text + std::string(missing, ' ');
  const bool numeric = conversion.type != 's' && conversion.type != 'r';
  if (!conversion.zero || !numeric) return std::string(missing, ' ') + text;
  const size_t sign = text[0] == '-' || text[0] == '+' ? 1 : 0;
  return text.insert(sign, missing, '0');
}

}  // namespace

absl::StatusOr<std::string> PercentFormat(Runtime& runtime, absl::string_view format,
                                          const Value& arguments) {
  const bool is_tuple = arguments.is_list() && arguments.list().is_tuple;
  const std::vector<Value> values =
      is_tuple ? arguments.list().items : std::vector<Value>{arguments};
  RETURN_IF_ERROR(runtime.Charge(static_cast<int64_t>(format.size() / 16 + values.size())));
  size_t used = 0;
  bool named = false;
  std::string out;
  while (!format.empty()) {
    const size_t percent = std::min(format.find('%'), format.size());
    absl::StrAppend(&out, format.substr(0, percent));
    format.remove_prefix(percent);
    if (format.empty()) break;
    format.remove_prefix(1);
    const Value* value = nullptr;
    if (!format.empty() && format[0] == '(') {
      const size_t close = format.find(')');
      if (close == absl::string_view::npos) {
        return absl::InvalidArgumentError("format: expected ')' after '%('");
      }
      if (!arguments.is_dict()) return Expected("format", "a dict for %(name)", arguments);
      value = arguments.dict().FindText(format.substr(1, close - 1));
      if (value == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("format: no argument named '", format.substr(1, close - 1), "'"));
      }
      named = true;
      format.remove_prefix(close + 1);
    }
    ASSIGN_OR_RETURN(const Conversion conversion, TakeConversion(&format));
    if (conversion.type == '%') {
      out.push_back('%');
      continue;
    }
    if (value == nullptr) {
      if (used >= values.size()) return absl::InvalidArgumentError("format: too few arguments");
      value = &values[used++];
    }
    RETURN_IF_ERROR(runtime.Charge(1));
    ASSIGN_OR_RETURN(std::string text, Convert(runtime, conversion, *value));
    out += Pad(std::move(text), conversion);
    RETURN_IF_ERROR(runtime.CheckBytes(static_cast<int64_t>(out.size())));
  }
  if (used < values.size() && !named && !arguments.is_dict()) {
    return absl::InvalidArgumentError("format: too many arguments");
  }
  return out;
}

absl::StatusOr<std::string> BraceFormat(Runtime& runtime, absl::string_view format,
                                        const Arguments& arguments) {
  std::string out;
  size_t automatic = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if ((c == '{' || c == '}') && i + 1 < format.size() && format[i + 1] == c) {
      out.push_back(c);
      ++i;
      continue;
    }
    if (c == '}') return absl::InvalidArgumentError("format: single '}' in the format");
    if (c != '{') {
      out.push_back(c);
      continue;
    }
    const size_t close = format.find('}', i);
    if (close == absl::string_view::npos) {
      return absl::InvalidArgumentError("format: expected '}' after '{'");
    }
    const absl::string_view field = format.substr(i + 1, close - i - 1);
    const Value* value = nullptr;
    size_t position = automatic;
    if (field.empty() || absl::SimpleAtoi(field, &position)) {
      if (field.empty()) ++automatic;
      if (position < arguments.positional.size()) value = &arguments.positional[position];
    } else {
      for (const auto& [name, named] : arguments.named) {
        if (name == field) value = &named;
      }
    }
    if (value == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("format: expected an argument for '{", field,
                       "}' (a position or a name; conversions and attributes are not supported)"));
    }
    out += value->Str();
    RETURN_IF_ERROR(runtime.CheckBytes(static_cast<int64_t>(out.size())));
    i = close;
  }
  return out;
}

}  // namespace tandem::model::chat_template
