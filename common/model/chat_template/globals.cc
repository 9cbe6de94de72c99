// Implements the global functions (common/model/chat_template/filters.h). Every template can call
// them.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/filters.h"
#include "common/model/chat_template/operators.h"

namespace tandem::model::chat_template {
namespace {

using Result = absl::StatusOr<Value>;

Result Range(Runtime& runtime, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("range", arguments, {"start", "stop", "step"}));
  RETURN_IF_ERROR(bound.Required(0).status());
  ASSIGN_OR_RETURN(int64_t start, bound.Int(0, 0));
  ASSIGN_OR_RETURN(int64_t stop, bound.Int(1, 0));
  ASSIGN_OR_RETURN(const int64_t step, bound.Int(2, 1));
  if (bound.Get(1) == nullptr) {
    stop = start;
    start = 0;
  }
  if (step == 0) return absl::InvalidArgumentError("range: expected a step other than zero");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    RETURN_IF_ERROR(runtime.Charge(1));
    items.push_back(Value::MakeInteger(i));
  }
  return Value::MakeList(std::move(items));
}

// dict(other, key=value, …); `function` for messages.
absl::StatusOr<Dict> BuildDict(Runtime& runtime, const Arguments& arguments,
                               absl::string_view function) {
  Dict dict;
  if (arguments.positional.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(function, ": expected at most 1 argument"));
  }
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is_dict()) {
      for (const auto& [key, value] : source.dict().entries) {
        RETURN_IF_ERROR(runtime.Charge(1 + key.Size()));
      }
      dict = source.dict();
    } else {
      ASSIGN_OR_RETURN(const std::vector<Value> pairs, Iterate(runtime, source));
      for (const Value& pair : pairs) {
        ASSIGN_OR_RETURN(const std::vector<Value> parts, Iterate(runtime, pair));
        if (parts.size() != 2 || !IsHashable(parts[0])) {
          return Expected(function, "pairs of a hashable key and a value", pair);
        }
        RETURN_IF_ERROR(runtime.Charge(parts[0].Size()));
        dict.Set(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict.Set(Value(name), value);
  return dict;
}

Result DictFunction(Runtime& runtime, const Arguments& arguments) {
  ASSIGN_OR_RETURN(Dict dict, BuildDict(runtime, arguments, "dict"));
  return Value(std::move(dict));
}

Result NamespaceFunction(Runtime& runtime, const Arguments& arguments) {
  auto result = std::make_shared<Namespace>();
  ASSIGN_OR_RETURN(result->attributes, BuildDict(runtime, arguments, "namespace"));
  for (const auto& [key, value] : result->attributes.entries) {
    if (key.is_text() && absl::StartsWith(key.text(), "_")) {
      return absl::InvalidArgumentError(absl::StrCat(
          "namespace: expected no attribute with a leading underscore, found '", key.text(), "'"));
    }
  }
  runtime.Own(result);
  return Value(std::move(result));
}

Result RaiseException(Runtime&, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("raise_exception", arguments, {"message"}));
  ASSIGN_OR_RETURN(const Value message, bound.Required(0));
  return absl::InvalidArgumentError(Shown(message.Str(), kShownLongBytesMax));
}

Result StrftimeNow(Runtime& runtime, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("strftime_now", arguments, {"format"}));
  RETURN_IF_ERROR(bound.Required(0).status());
  ASSIGN_OR_RETURN(const std::string format, bound.Text(0, ""));
  // Formats are a few conversions long; a conversion may expand to a hundred bytes.
  constexpr size_t kFormatBytesMax = 1000;
  if (format.size() > kFormatBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("strftime_now: expected a format of at most ", kFormatBytesMax, " bytes"));
  }
  return Value(absl::FormatTime(format, runtime.Now(), absl::UTCTimeZone()));
}

constexpr Global kGlobals[] = {{"range", Range},
                               {"dict", DictFunction},
                               {"namespace", NamespaceFunction},
                               {"raise_exception", RaiseException},
                               {"strftime_now", StrftimeNow}};

}  // namespace

const Global* FindGlobal(absl::string_view name) {
  for (const Global& global : kGlobals) {
    if (global.name == name) return &global;
  }
  return nullptr;
}

absl::Span<const Global> Globals() { return kGlobals; }

}  // namespace tandem::model::chat_template
