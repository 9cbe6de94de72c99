// The tables of the functions that a template can call: filters, tests, methods of values and
// global functions. filters_text.cc, filters_sequence.cc, filters_selection.cc and filters_value.cc
// implement the filters; tests.cc, methods.cc and globals.cc the others.
// Thread safety: pure functions over constant tables; each call uses the runtime of one rendering.
// Errors: kInvalidArgument without a line; the evaluator adds it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/chat_template/runtime.h"
#include "common/model/chat_template/text.h"
#include "common/model/chat_template/value.h"

namespace tandem::model::chat_template {

// `input | name(arguments)`.
struct Filter {
  absl::string_view name;
  absl::StatusOr<Value> (*apply)(Runtime& runtime, const Value& input, const Arguments& arguments);
  // Whether it reads the items of a list or a dictionary, which then count as steps: a template may
  // ask for a conversation's length at each of its messages.
  bool reads_items = true;
};
// `input is name(arguments)`.
struct Test {
  absl::string_view name;
  absl::StatusOr<bool> (*apply)(Runtime& runtime, const Value& input, const Arguments& arguments);
};
// `self.name(arguments)`.
struct Method {
  absl::string_view name;
  absl::StatusOr<Value> (*apply)(Runtime& runtime, const Value& self, const Arguments& arguments);
};
// `name(arguments)`.
struct Global {
  absl::string_view name;
  absl::StatusOr<Value> (*apply)(Runtime& runtime, const Arguments& arguments);
};

// Null when there is none of that name.
const Filter* FindFilter(absl::string_view name);
const Test* FindTest(absl::string_view name);
const Method* FindMethod(const Value& self, absl::string_view name);
const Global* FindGlobal(absl::string_view name);
absl::Span<const Global> Globals();

// Whether Python has such an attribute but the sandbox refuses it: methods that change a value, and
// the interpreter's internal attributes.
bool IsUnsafeAttribute(const Value& self, absl::string_view name);

// The filters by what they work on; FindFilter looks through all.
absl::Span<const Filter> TextFilters();
absl::Span<const Filter> SequenceFilters();
absl::Span<const Filter> SelectionFilters();
absl::Span<const Filter> ValueFilters();

// Calls the filter, whose input and arguments count as steps: those that it may read.
absl::StatusOr<Value> Apply(Runtime& runtime, const Filter& filter, const Value& input,
                            const Arguments& arguments);
// Counts the texts among the arguments as steps: a function may copy or walk them.
absl::Status ChargeTexts(Runtime& runtime, const Arguments& arguments);
// str(value). A text that it makes counts as steps; one that `value` is has been counted.
absl::StatusOr<std::string> TextOf(Runtime& runtime, const Value& value);
// `value` with its case folded if it is a text: the sort key of case-insensitive filters.
absl::StatusOr<Value> IgnoreCase(Runtime& runtime, const Value& value);
// str.strip with `characters`, all of which may be compared with each character of `text`.
absl::StatusOr<Value> StripCharacters(Runtime& runtime, const std::string& text,
                                      const StripOptions& options);
// The part of `item` that the path `attribute` ("a.b", "0" or an integer) names.
absl::StatusOr<Value> AttributePath(Runtime& runtime, const Value& item, const Value& attribute);
// str.replace; `count` < 0 means all.
struct Replacement {
  std::string from;
  std::string to;
  int64_t count = -1;
};
absl::StatusOr<Value> ReplaceText(Runtime& runtime, const std::string& text,
                                  const Replacement& replacement);

}  // namespace tandem::model::chat_template
