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
  std::string separator;
  if (bound.Get(0) != nullptr) {
    ASSIGN_OR_RETURN(separator, TextOf(runtime, *bound.Get(0)));
  }
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(runtime, input));
  const bool has_attribute = bound.Get(1) != nullptr && !bound.Get(1)->is_none();
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (has_attribute) {
      ASSIGN_OR_RETURN(item, AttributePath(runtime, item, *bound.Get(1)));
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
Result KeyOf(Runtime& runtime, const Value& item, const KeyOptions& options) {
  Value key = item;
  if (options.attribute != nullptr && !options.attribute->is_none()) {
    ASSIGN_OR_RETURN(key, AttributePath(runtime, item, *options.attribute));
  }
  if (options.case_sensitive) return key;
  return IgnoreCase(runtime, key);
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
        ASSIGN_OR_RETURN(Value key, KeyOf(runtime, item, {&part, options.case_sensitive}));
        parts.push_back(std::move(key));
      }
      keys.push_back(Value::MakeList(std::move(parts)));
      continue;
    }
    ASSIGN_OR_RETURN(Value key, KeyOf(runtime, item, options));
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
    ASSIGN_OR_RETURN(const Value key, KeyOf(runtime, item, {bound.Get(1), bound.Flag(0, false)}));
    if (!IsHashable(key)) return Expected("unique", "hashable items", key);
    RETURN_IF_ERROR(runtime.Charge(key.Size()));
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
    keys.push_back(part);
    if (bound.Flag(0, false)) continue;
    ASSIGN_OR_RETURN(keys.back(), IgnoreCase(runtime, part));
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
  ASSIGN_OR_RETURN(Value best_key, KeyOf(runtime, items[0], options));
  for (size_t i = 1; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(Value key, KeyOf(runtime, items[i], options));
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
      ASSIGN_OR_RETURN(part, AttributePath(runtime, item, *bound.Get(0)));
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

// Cuts the items into as many lists as asked for, the first ones an item longer if need be.
Result Slice(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("slice", arguments, {"slices", "fill_with"}));
  RETURN_IF_ERROR(bound.Required(0).status());
  ASSIGN_OR_RETURN(const int64_t slices, bound.Int(0, 0));
  if (slices < 1) return absl::InvalidArgumentError("slice: expected at least 1 slice");
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(runtime, input));
  RETURN_IF_ERROR(runtime.Charge(slices));
  const auto length = static_cast<int64_t>(items.size()) / slices;
  const auto longer = static_cast<int64_t>(items.size()) % slices;
  const bool fills = bound.Get(1) != nullptr && !bound.Get(1)->is_none();
  std::vector<Value> lists;
  auto next = items.begin();
  for (int64_t i = 0; i < slices; ++i) {
    std::vector<Value> list(next, next + length + (i < longer ? 1 : 0));
    next += static_cast<int64_t>(list.size());
    if (fills && i >= longer) list.push_back(*bound.Get(1));
    lists.push_back(Value::MakeList(std::move(list)));
  }
  return Value::MakeGenerator(std::move(lists));
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
    {"slice", Slice},
};

}  // namespace

absl::Span<const Filter> SequenceFilters() { return kSequenceFilters; }

absl::StatusOr<Value> Apply(Runtime& runtime, const Filter& filter, const Value& input,
                            const Arguments& arguments) {
  const bool has_items = input.is_list() || input.is_dict();
  if (filter.reads_items || !has_items) RETURN_IF_ERROR(runtime.Charge(input.Size()));
  RETURN_IF_ERROR(ChargeTexts(runtime, arguments));
  return filter.apply(runtime, input, arguments);
}

absl::Status ChargeTexts(Runtime& runtime, const Arguments& arguments) {
  for (const Value& value : arguments.positional) {
    if (value.is_text()) RETURN_IF_ERROR(runtime.Charge(value.Size()));
  }
  for (const auto& [name, value] : arguments.named) {
    if (value.is_text()) RETURN_IF_ERROR(runtime.Charge(value.Size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TextOf(Runtime& runtime, const Value& value) {
  std::string text = value.Str();
  // Takes longer than to read as much.
  if (!value.is_text()) RETURN_IF_ERROR(runtime.Charge(static_cast<int64_t>(text.size()) / 4));
  return text;
}

absl::StatusOr<Value> IgnoreCase(Runtime& runtime, const Value& value) {
  if (!value.is_text()) return value;
  RETURN_IF_ERROR(runtime.Charge(value.Size()));
  return Value(Lower(value.text()));
}

absl::StatusOr<Value> AttributePath(Runtime& runtime, const Value& item, const Value& attribute) {
  if (item.is_text()) RETURN_IF_ERROR(runtime.Charge(item.Size()));
  if (!attribute.is_text()) return GetItem(item, attribute);
  RETURN_IF_ERROR(runtime.Charge(attribute.Size()));
  Value value = item;
  for (const absl::string_view part : absl::StrSplit(attribute.text(), '.')) {
    RETURN_IF_ERROR(runtime.Charge(1));
    int64_t index;
    const bool numeric = part.find_first_not_of("0123456789") == absl::string_view::npos;
    if (numeric && absl::SimpleAtoi(part, &index)) {
      if (value.is_text()) RETURN_IF_ERROR(runtime.Charge(value.Size()));
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
