// Implements SequenceFilters (common/model/chat_template/filters.h): filters on lists, dicts and
// other iterables.
#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/filters.h"
#include "common/model/chat_template/operators.h"
#include "common/model/chat_template/text.h"

namespace tandem::model::chat_template {
namespace {

using Result = absl::StatusOr<Value>;

Result First(Runtime& runtime, const Value& input, const Arguments&) {
  if (input.is_list() && !input.list().items.empty()) return input.list().items[0];
  ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(runtime, input));
  if (items.empty()) return Value::MakeUndefined("first: the sequence is empty");
  return items.front();
}

Result Last(Runtime& runtime, const Value& input, const Arguments&) {
  if (input.is_generator()) return Expected("last", "a sequence", input);
  if (input.is_list() && !input.list().items.empty()) return input.list().items.back();
  ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(runtime, input));
  if (items.empty()) return Value::MakeUndefined("last: the sequence is empty");
  return items.back();
}

Result LengthFilter(Runtime& runtime, const Value& input, const Arguments&) {
  ASSIGN_OR_RETURN(const int64_t length, Length(runtime, input));
  return Value::MakeInteger(length);
}

Result Join(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("join", arguments, {"d", "attribute"}));
  const std::string separator = bound.Get(0) == nullptr ? "" : bound.Get(0)->Str();
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(runtime, input));
  const bool has_attribute = bound.Get(1) != nullptr && !bound.Get(1)->is_none();
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (has_attribute) {
      ASSIGN_OR_RETURN(item, AttributePath(item, *bound.Get(1)));
    }
    if (i > 0) out += separator;
    out += item.Str();
    RETURN_IF_ERROR(runtime.CheckBytes(static_cast<int64_t>(out.size())));
  }
  return Value(std::move(out));
}

Result ListFilter(Runtime& runtime, const Value& input, const Arguments&) {
  ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(runtime, input));
  return Value::MakeList(std::move(items));
}

Result Reverse(Runtime& runtime, const Value& input, const Arguments&) {
  ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(runtime, input));
  std::reverse(items.begin(), items.end());
  if (!input.is_text()) return Value::MakeGenerator(std::move(items));
  std::string text;
  for (const Value& point : items) text += point.text();
  return Value(std::move(text));
}

// What an item is ordered and compared by.
struct KeyOptions {
  const Value* attribute = nullptr;  // may be None
  bool case_sensitive = false;
};
Result KeyOf(const Value& item, const KeyOptions& options) {
  Value key = item;
  if (options.attribute != nullptr && !options.attribute->is_none()) {
    ASSIGN_OR_RETURN(key, AttributePath(item, *options.attribute));
  }
  return options.case_sensitive ? key : IgnoreCase(key);
}

// Sorts `items` by `keys`, stably; a comparison that fails ends it with its error.
absl::StatusOr<std::vector<Value>> SortBy(Runtime& runtime, const std::vector<Value>& items,
                                          const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  absl::Status error;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!error.ok()) return false;
    // Reversed, equal items keep their order too.
    absl::StatusOr<bool> less =
        reverse ? LessThan(runtime, keys[b], keys[a]) : LessThan(runtime, keys[a], keys[b]);
    if (!less.ok()) error = less.status();
    return less.value_or(false);
  });
  RETURN_IF_ERROR(error);
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

Result Sort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound,
                   Bound::Make("sort", arguments, {"reverse", "case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(runtime, input));
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> parts;
    const Value* const attribute = bound.Get(2);
    const KeyOptions options = {attribute, bound.Flag(1, false)};
    if (attribute != nullptr && attribute->is_text() &&
        attribute->text().find(',') != std::string::npos) {
      for (absl::string_view path : absl::StrSplit(attribute->text(), ',')) {
        const Value part(path);
        ASSIGN_OR_RETURN(Value key, KeyOf(item, {&part, options.case_sensitive}));
        parts.push_back(std::move(key));
      }
      keys.push_back(Value::MakeList(std::move(parts)));
      continue;
    }
    ASSIGN_OR_RETURN(Value key, KeyOf(item, options));
    keys.push_back(std::move(key));
  }
  ASSIGN_OR_RETURN(std::vector<Value> sorted, SortBy(runtime, items, keys, bound.Flag(0, false)));
  return Value::MakeList(std::move(sorted));
}

Result Unique(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound,
                   Bound::Make("unique", arguments, {"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(runtime, input));
  absl::flat_hash_set<std::string> seen;
  std::vector<Value> kept;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(const Value key, KeyOf(item, {bound.Get(1), bound.Flag(0, false)}));
    if (!IsHashable(key)) return Expected("unique", "hashable items", key);
    if (seen.insert(KeyText(key)).second) kept.push_back(item);
  }
  return Value::MakeGenerator(std::move(kept));
}

std::vector<Value> Pairs(const Dict& dict) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.entries) pairs.push_back(Value::MakeTuple({key, value}));
  return pairs;
}

Result Items(Runtime& runtime, const Value& input, const Arguments&) {
  if (input.is_undefined()) return Value::MakeGenerator({});
  if (!input.is_dict()) return Expected("items", "a dict", input);
  RETURN_IF_ERROR(runtime.Charge(input.Size()));
  return Value::MakeGenerator(Pairs(input.dict()));
}

Result DictSort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound,
                   Bound::Make("dictsort", arguments, {"case_sensitive", "by", "reverse"}));
  if (!input.is_dict()) return Expected("dictsort", "a dict", input);
  ASSIGN_OR_RETURN(const std::string by, bound.Text(1, "key"));
  if (by != "key" && by != "value") {
    return absl::InvalidArgumentError("dictsort: expected 'by' to be 'key' or 'value'");
  }
  RETURN_IF_ERROR(runtime.Charge(input.Size()));
  const std::vector<Value> pairs = Pairs(input.dict());
  std::vector<Value> keys;
  for (const Value& pair : pairs) {
    const Value& part = pair.list().items[by == "key" ? 0 : 1];
    keys.push_back(bound.Flag(0, false) ? part : IgnoreCase(part));
  }
  ASSIGN_OR_RETURN(std::vector<Value> sorted, SortBy(runtime, pairs, keys, bound.Flag(2, false)));
  return Value::MakeList(std::move(sorted));
}

Result Extreme(Runtime& runtime, const Value& input, const Arguments& arguments, bool largest) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make(largest ? "max" : "min", arguments,
                                                  {"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(runtime, input));
  if (items.empty()) return Value::MakeUndefined("the sequence is empty");
  const KeyOptions options = {bound.Get(1), bound.Flag(0, false)};
  size_t best = 0;
  ASSIGN_OR_RETURN(Value best_key, KeyOf(items[0], options));
  for (size_t i = 1; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(Value key, KeyOf(items[i], options));
    ASSIGN_OR_RETURN(const bool better,
                     largest ? LessThan(runtime, best_key, key) : LessThan(runtime, key, best_key));
    if (!better) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}
Result Min(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return Extreme(runtime, input, arguments, false);
}
Result Max(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return Extreme(runtime, input, arguments, true);
}

Result Sum(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("sum", arguments, {"attribute", "start"}));
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(runtime, input));
  Value total = bound.Get(1) == nullptr ? Value::MakeInteger(0) : *bound.Get(1);
  for (const Value& item : items) {
    Value part = item;
    if (bound.Get(0) != nullptr && !bound.Get(0)->is_none()) {
      ASSIGN_OR_RETURN(part, AttributePath(item, *bound.Get(0)));
    }
    ASSIGN_OR_RETURN(total, Arithmetic(runtime, "+", total, part));
    RETURN_IF_ERROR(runtime.Charge(total.Size()));
  }
  return total;
}

Result Batch(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("batch", arguments, {"linecount", "fill_with"}));
  ASSIGN_OR_RETURN(const int64_t size, bound.Int(0, 0));
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(runtime, input));
  if (size < 1) return absl::InvalidArgumentError("batch: expected a line count of at least 1");
  std::vector<Value> batches, line;
  for (const Value& item : items) {
    line.push_back(item);
    if (static_cast<int64_t>(line.size()) < size) continue;
    batches.push_back(Value::MakeList(std::move(line)));
    line.clear();
  }
  if (!line.empty()) {
    if (bound.Get(1) != nullptr && !bound.Get(1)->is_none()) {
      RETURN_IF_ERROR(runtime.Charge(size));
      line.resize(static_cast<size_t>(size), *bound.Get(1));
    }
    batches.push_back(Value::MakeList(std::move(line)));
  }
  return Value::MakeGenerator(std::move(batches));
}

constexpr Filter kSequenceFilters[] = {
    {"first", First},
    {"last", Last},
    {"length", LengthFilter, /*reads_items=*/false},
    {"count", LengthFilter, /*reads_items=*/false},
    {"join", Join},
    {"list", ListFilter},
    {"reverse", Reverse},
    {"sort", Sort},
    {"unique", Unique},
    {"items", Items},
    {"dictsort", DictSort},
    {"min", Min},
    {"max", Max},
    {"sum", Sum},
    {"batch", Batch},
};

}  // namespace

absl::Span<const Filter> SequenceFilters() { return kSequenceFilters; }

Value IgnoreCase(const Value& value) {
  return value.is_text() ? Value(Lower(value.text())) : value;
}

absl::StatusOr<Value> AttributePath(const Value& item, const Value& attribute) {
  if (!attribute.is_text()) return GetItem(item, attribute);
  Value value = item;
  for (const absl::string_view part : absl::StrSplit(attribute.text(), '.')) {
    int64_t index;
    const bool numeric = part.find_first_not_of("0123456789") == absl::string_view::npos;
    if (numeric && absl::SimpleAtoi(part, &index)) {
      ASSIGN_OR_RETURN(value, GetItem(value, Value::MakeInteger(index)));
    } else {
      ASSIGN_OR_RETURN(value, GetItem(value, Value(part)));
    }
  }
  return value;
}

const Filter* FindFilter(absl::string_view name) {
  for (const auto& filters :
       {TextFilters(), SequenceFilters(), SelectionFilters(), ValueFilters()}) {
    for (const Filter& filter : filters) {
      if (filter.name == name) return &filter;
    }
  }
  return nullptr;
}

}  // namespace tandem::model::chat_template
