// The operators of the language on values, with Python's rules. Thread safety: pure functions on
// values of one rendering. Errors: kInvalidArgument without a line; the evaluator adds it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/chat_template/runtime.h"
#include "common/model/chat_template/value.h"

namespace tandem::model::chat_template {

// op: + - * / // % **
absl::StatusOr<Value> Arithmetic(Runtime& runtime, absl::string_view op, const Value& left,
                                 const Value& right);
absl::StatusOr<Value> Negate(const Value& value);

absl::StatusOr<bool> Equals(Runtime& runtime, const Value& left, const Value& right);
absl::StatusOr<bool> LessThan(Runtime& runtime, const Value& left, const Value& right);
// op: == != < <= > >= in "not in"
absl::StatusOr<bool> Compare(Runtime& runtime, absl::string_view op, const Value& left,
                             const Value& right);
absl::StatusOr<bool> ContainsItem(Runtime& runtime, const Value& container, const Value& item);

// `object.name` and `object[key]`: undefined when the object has no such member.
absl::StatusOr<Value> GetAttribute(const Value& object, absl::string_view name);
absl::StatusOr<Value> GetItem(const Value& object, const Value& key);
struct SliceBounds {
  Value start, stop, step;  // None when left out
};
absl::StatusOr<Value> GetSlice(Runtime& runtime, const Value& object, const SliceBounds& bounds);

// What a loop over `value` sees: items, keys or code points.
absl::StatusOr<std::vector<Value>> Iterate(Runtime& runtime, const Value& value);
absl::StatusOr<int64_t> Length(Runtime& runtime, const Value& value);

// `format % arguments` and "{} {name}".format(...).
absl::StatusOr<std::string> PercentFormat(Runtime& runtime, absl::string_view format,
                                          const Value& arguments);
absl::StatusOr<std::string> BraceFormat(Runtime& runtime, absl::string_view format,
                                        const Arguments& arguments);

}  // namespace tandem::model::chat_template
