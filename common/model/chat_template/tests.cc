// Implements the tests, which templates call with `is` (common/model/chat_template/filters.h).
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/filters.h"
#include "common/model/chat_template/operators.h"
#include "common/model/chat_template/text.h"

namespace tandem::model::chat_template {
namespace {

using Answer = absl::StatusOr<bool>;

template <bool (Value::*predicate)() const>
Answer Holds(Runtime&, const Value& input, const Arguments&) {
  return (input.*predicate)();
}

Answer IsDefined(Runtime&, const Value& input, const Arguments&) { return !input.is_undefined(); }
Answer IsNumber(Runtime&, const Value& input, const Arguments&) { return input.is_number(); }
Answer IsTrue(Runtime&, const Value& input, const Arguments&) {
  return input.is_bool() && input.boolean();
}
Answer IsFalse(Runtime&, const Value& input, const Arguments&) {
  return input.is_bool() && !input.boolean();
}
// Has a length and items by key, as jinja2 asks: true for dicts and text too.
Answer IsSequence(Runtime&, const Value& input, const Arguments&) {
  return input.is_text() || input.is_dict() || (input.is_list() && !input.is_generator()) ||
         input.is_undefined();
}
Answer IsIterable(Runtime&, const Value& input, const Arguments&) {
  return input.is_text() || input.is_dict() || input.is_list() || input.is_undefined() ||
         input.is_loop();
}

// `operator` between the input and the one argument.
Answer Against(Runtime& runtime, absl::string_view op, const Value& input,
               const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make(absl::StrCat("test ", op), arguments, {"other"}));
  ASSIGN_OR_RETURN(const Value other, bound.Required(0));
  return Compare(runtime, op, input, other);
}
Answer IsEqual(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return Against(runtime, "==", input, arguments);
}
Answer IsNotEqual(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return Against(runtime, "!=", input, arguments);
}
Answer IsLess(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return Against(runtime, "<", input, arguments);
}
Answer IsLessOrEqual(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return Against(runtime, "<=", input, arguments);
}
Answer IsGreater(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return Against(runtime, ">", input, arguments);
}
Answer IsGreaterOrEqual(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return Against(runtime, ">=", input, arguments);
}
Answer IsIn(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return Against(runtime, "in", input, arguments);
}

Answer IsSameAs(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("sameas", arguments, {"other"}));
  ASSIGN_OR_RETURN(const Value other, bound.Required(0));
  if (input.TypeName() != other.TypeName()) return false;
  if (input.is_list() || input.is_dict()) return SameObject(input, other);
  return Equals(runtime, input, other);
}

Answer Remainder(Runtime& runtime, const Value& input, Integer divisor, Integer expected) {
  if (!input.is_whole()) return Expected("test", "an integer", input);
  ASSIGN_OR_RETURN(const Value rest, Arithmetic(runtime, "%", input, Value(divisor)));
  return rest.integer() == expected;
}
Answer IsDivisibleBy(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Make("divisibleby", arguments, {"num"}));
  ASSIGN_OR_RETURN(const int64_t divisor, bound.Int(0, 0));
  return Remainder(runtime, input, divisor, 0);
}
Answer IsEven(Runtime& runtime, const Value& input, const Arguments&) {
  return Remainder(runtime, input, 2, 0);
}
Answer IsOdd(Runtime& runtime, const Value& input, const Arguments&) {
  return Remainder(runtime, input, 2, 1);
}

// str.islower and str.isupper: cased characters, all of one case.
Answer IsLower(Runtime& runtime, const Value& input, const Arguments&) {
  RETURN_IF_ERROR(runtime.Charge(input.Size()));
  ASSIGN_OR_RETURN(const std::string text, TextOf(runtime, input));
  return Lower(text) == text && Upper(text) != text;
}
Answer IsUpper(Runtime& runtime, const Value& input, const Arguments&) {
  RETURN_IF_ERROR(runtime.Charge(input.Size()));
  ASSIGN_OR_RETURN(const std::string text, TextOf(runtime, input));
  return Upper(text) == text && Lower(text) != text;
}

Answer IsFilter(Runtime&, const Value& input, const Arguments&) {
  return input.is_text() && FindFilter(input.text()) != nullptr;
}
Answer IsTest(Runtime&, const Value& input, const Arguments&) {
  return input.is_text() && FindTest(input.text()) != nullptr;
}

constexpr Test kTests[] = {
    {"defined", IsDefined},
    {"undefined", Holds<&Value::is_undefined>},
    {"none", Holds<&Value::is_none>},
    {"boolean", Holds<&Value::is_bool>},
    {"integer", Holds<&Value::is_integer>},
    {"float", Holds<&Value::is_double>},
    {"number", IsNumber},
    {"string", Holds<&Value::is_text>},
    {"mapping", Holds<&Value::is_dict>},
    {"callable", Holds<&Value::is_callable>},
    {"sequence", IsSequence},
    {"iterable", IsIterable},
    {"true", IsTrue},
    {"false", IsFalse},
    {"equalto", IsEqual},
    {"eq", IsEqual},
    {"==", IsEqual},
    {"ne", IsNotEqual},
    {"!=", IsNotEqual},
    {"lt", IsLess},
    {"<", IsLess},
    {"lessthan", IsLess},
    {"le", IsLessOrEqual},
    {"<=", IsLessOrEqual},
    {"gt", IsGreater},
    {">", IsGreater},
    {"greaterthan", IsGreater},
    {"ge", IsGreaterOrEqual},
    {">=", IsGreaterOrEqual},
    {"in", IsIn},
    {"sameas", IsSameAs},
    {"divisibleby", IsDivisibleBy},
    {"even", IsEven},
    {"odd", IsOdd},
    {"lower", IsLower},
    {"upper", IsUpper},
    {"filter", IsFilter},
    {"test", IsTest},
};

}  // namespace

const Test* FindTest(absl::string_view name) {
  for (const Test& test : kTests) {
    if (test.name == name) return &test;
  }
  return nullptr;
}

}  // namespace tandem::model::chat_template
