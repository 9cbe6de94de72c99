// Implements SelectionFilters (common/model/chat_template/filters.h): filters that apply another
// filter or test to every item.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/filters.h"
#include "common/model/chat_template/operators.h"

namespace tandem::model::chat_template {
namespace {

using Result = absl::StatusOr<Value>;

// A test and its arguments, named by a filter's own arguments from `first` on.
struct ItemTest {
  const Test* test = nullptr;  // null: the item's truth
  Arguments arguments;

  static absl::StatusOr<ItemTest> Make(const Arguments& arguments, size_t first) {
    ItemTest result;
    if (arguments.positional.size() <= first) return result;
    const Value& name = arguments.positional[first];
    if (!name.is_text()) return Expected("select", "a test's name", name);
    result.test = FindTest(name.text());
    if (result.test == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("there is no test named '", name.text(), "'"));
    }
    result.arguments.positional.assign(
        arguments.positional.begin() + static_cast<ptrdiff_t>(first) + 1,
        arguments.positional.end());
    result.arguments.named = arguments.named;
    return result;
  }

  absl::StatusOr<bool> Passes(Runtime& runtime, const Value& item) const {
    RETURN_IF_ERROR(runtime.Charge(1));
    if (test == nullptr) return item.Truth();
    return test->apply(runtime, item, arguments);
  }
};

struct Selection {
  bool by_attribute;
  bool keep;
};

Result SelectItems(Runtime& runtime, const Value& input, const Arguments& arguments,
                   const Selection& selection) {
  if (selection.by_attribute && arguments.positional.empty()) {
    return absl::InvalidArgumentError("selectattr: expected an attribute's name");
  }
  ASSIGN_OR_RETURN(const ItemTest test, ItemTest::Make(arguments, selection.by_attribute ? 1 : 0));
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(runtime, input));
  std::vector<Value> kept;
  for (const Value& item : items) {
    Value tested = item;
    if (selection.by_attribute) {
      ASSIGN_OR_RETURN(tested, AttributePath(runtime, item, arguments.positional[0]));
    }
    ASSIGN_OR_RETURN(const bool passes, test.Passes(runtime, tested));
    if (passes == selection.keep) kept.push_back(item);
  }
  return Value::MakeGenerator(std::move(kept));
}

Result Select(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return SelectItems(runtime, input, arguments, {.by_attribute = false, .keep = true});
}
Result Reject(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return SelectItems(runtime, input, arguments, {.by_attribute = false, .keep = false});
}
Result SelectAttr(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return SelectItems(runtime, input, arguments, {.by_attribute = true, .keep = true});
}
Result RejectAttr(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return SelectItems(runtime, input, arguments, {.by_attribute = true, .keep = false});
}

Result MapAttribute(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("map", arguments, {"attribute", "default"}));
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(runtime, input));
  std::vector<Value> mapped;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value value, AttributePath(runtime, item, *bound.Get(0)));
    if (value.is_undefined() && bound.Get(1) != nullptr) value = *bound.Get(1);
    mapped.push_back(std::move(value));
  }
  return Value::MakeGenerator(std::move(mapped));
}

Result Map(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const bool by_attribute =
      std::any_of(arguments.named.begin(), arguments.named.end(),
                  [](const auto& argument) { return argument.first == "attribute"; });
  if (by_attribute && arguments.positional.empty()) return MapAttribute(runtime, input, arguments);
  if (arguments.positional.empty() || !arguments.positional[0].is_text()) {
    return absl::InvalidArgumentError("map: expected a filter's name or attribute=…");
  }
  const Filter* const filter = FindFilter(arguments.positional[0].text());
  if (filter == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no filter named '", arguments.positional[0].text(), "'"));
  }
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
  rest.named = arguments.named;
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(runtime, input));
  std::vector<Value> mapped;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value value, Apply(runtime, *filter, item, rest));
    RETURN_IF_ERROR(runtime.Charge(1 + value.Size()));
    mapped.push_back(std::move(value));
  }
  return Value::MakeGenerator(std::move(mapped));
}

constexpr Filter kSelectionFilters[] = {{"map", Map},
                                        {"select", Select},
                                        {"reject", Reject},
                                        {"selectattr", SelectAttr},
                                        {"rejectattr", RejectAttr}};

}  // namespace

absl::Span<const Filter> SelectionFilters() { return kSelectionFilters; }

}  // namespace tandem::model::chat_template
