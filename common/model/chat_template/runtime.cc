#include "common/model/chat_template/runtime.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace tandem::model::chat_template {

absl::Status Expected(absl::string_view function, absl::string_view expected, const Value& found) {
  if (found.is_undefined()) {
    return absl::InvalidArgumentError(absl::StrCat(function, ": ", found.undefined_reason()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(function, ": expected ", expected, ", found ", found.TypeName()));
}

absl::StatusOr<Bound> Bound::Make(absl::string_view function, const Arguments& arguments,
                                  std::initializer_list<absl::string_view> parameters) {
  Bound bound;
  bound.function_ = std::string(function);
  for (const absl::string_view name : parameters) bound.names_.emplace_back(name);
  bound.values_.assign(parameters.size(), nullptr);
  if (arguments.positional.size() > parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat(function, ": expected at most ",
                                                   parameters.size(), " arguments, found ",
                                                   arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    bound.values_[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(bound.names_.begin(), bound.names_.end(), name);
    if (found == bound.names_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(function, ": unknown argument '", name, "'"));
    }
    const Value*& slot = bound.values_[static_cast<size_t>(found - bound.names_.begin())];
    if (slot != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(function, ": argument '", name, "' given twice"));
    }
    slot = &value;
  }
  return bound;
}

absl::Status Bound::Wrong(size_t parameter, absl::string_view expected) const {
  return Expected(absl::StrCat(function_, ": argument '", names_[parameter], "'"), expected,
                  *values_[parameter]);
}

absl::StatusOr<Value> Bound::Required(size_t parameter) const {
  if (values_[parameter] != nullptr) return *values_[parameter];
  return absl::InvalidArgumentError(
      absl::StrCat(function_, ": argument '", names_[parameter], "' is missing"));
}

bool Bound::Flag(size_t parameter, bool otherwise) const {
  return values_[parameter] == nullptr ? otherwise : values_[parameter]->Truth();
}

absl::StatusOr<int64_t> Bound::Int(size_t parameter, int64_t otherwise) const {
  if (values_[parameter] == nullptr) return otherwise;
  if (!values_[parameter]->is_whole()) return Wrong(parameter, "an integer");
  const Integer value = values_[parameter]->integer();
  // Sums and differences of such values stay in range.
  constexpr Integer kMax = INT64_MAX / 4;
  return static_cast<int64_t>(std::clamp(value, -kMax, kMax));
}

absl::StatusOr<std::string> Bound::Text(size_t parameter, absl::string_view otherwise) const {
  if (values_[parameter] == nullptr) return std::string(otherwise);
  if (!values_[parameter]->is_text()) return Wrong(parameter, "a string");
  return values_[parameter]->text();
}

}  // namespace tandem::model::chat_template
