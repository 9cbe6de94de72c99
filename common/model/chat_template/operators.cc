#include "common/model/chat_template/operators.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/text.h"

namespace tandem::model::chat_template {
namespace {

absl::Status Unsupported(absl::string_view op, const Value& left, const Value& right) {
  for (const Value* operand : {&left, &right}) {
    if (operand->is_undefined()) return absl::InvalidArgumentError(operand->undefined_reason());
  }
  return absl::InvalidArgumentError(absl::StrCat("operator ", op, ": not defined between ",
                                                 left.TypeName(), " and ", right.TypeName()));
}

absl::Status TooLarge() { return absl::InvalidArgumentError("integer too large"); }

absl::StatusOr<Value> WholePower(Integer base, Integer exponent) {
  if (exponent < 0) {
    if (base == 0) return absl::InvalidArgumentError("operator **: zero to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  Integer result = 1;
  if (base == 0 || base == 1) return Value(exponent == 0 ? Integer{1} : base);
  if (base == -1) return Value(exponent % 2 == 0 ? Integer{1} : Integer{-1});
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) return TooLarge();
  }
  return Value(result);
}

absl::StatusOr<Value> WholeArithmetic(absl::string_view op, Integer a, Integer b) {
  Integer result;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) return TooLarge();
    return Value(result);
  }
  if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) return TooLarge();
    return Value(result);
  }
  if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) return TooLarge();
    return Value(result);
  }
  if (op == "**") return WholePower(a, b);
  if (b == 0)
    return absl::InvalidArgumentError(absl::StrCat("operator ", op, ": division by zero"));
  if (op == "/") return Value(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {  // the one division that can overflow
    if (op == "%") return Value(Integer{0});
    if (__builtin_sub_overflow(Integer{0}, a, &result)) return TooLarge();
    return Value(result);
  }
  // Rounds towards minus infinity; the remainder takes the divisor's sign.
  const bool adjust = a % b != 0 && ((a < 0) != (b < 0));
  return op == "//" ? Value(a / b - (adjust ? 1 : 0)) : Value(a % b + (adjust ? b : 0));
}

absl::StatusOr<Value> RealArithmetic(absl::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") {
    const double power = std::pow(a, b);
    if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) {
      return absl::InvalidArgumentError("operator **: the result is not a real number");
    }
    return Value(power);
  }
  if (b == 0.0) {
    return absl::InvalidArgumentError(absl::StrCat("operator ", op, ": division by zero"));
  }
  if (op == "/") return Value(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0.0 && (remainder < 0.0) != (b < 0.0)) remainder += b;
  if (op == "%") return Value(remainder == 0.0 ? std::copysign(0.0, b) : remainder);
  return Value(std::floor((a - remainder) / b + 0.5));
}

absl::StatusOr<Value> Repeat(Runtime& runtime, const Value& what, Integer count) {
  count = std::clamp(count, Integer{0}, Integer{1} << 40);
  if (what.is_text()) {
    const auto total = static_cast<Integer>(what.text().size()) * count;
    RETURN_IF_ERROR(runtime.CheckBytes(static_cast<int64_t>(std::min(total, Integer{INT64_MAX}))));
    std::string out;
    for (Integer i = 0; i < count && total > 0; ++i) out += what.text();
    return Value(std::move(out));
  }
  const auto total = static_cast<Integer>(what.list().items.size()) * count;
  RETURN_IF_ERROR(runtime.Charge(static_cast<int64_t>(std::min(total, Integer{INT64_MAX}))));
  std::vector<Value> items;
  for (Integer i = 0; i < count && total > 0; ++i) {
    items.insert(items.end(), what.list().items.begin(), what.list().items.end());
  }
  return what.list().is_tuple ? Value::MakeTuple(std::move(items))
                              : Value::MakeList(std::move(items));
}

bool IsSequence(const Value& value) {
  return value.is_text() || (value.is_list() && !value.is_generator());
}

absl::StatusOr<bool> ListsEqual(Runtime& runtime, const List& left, const List& right) {
  if (left.is_tuple != right.is_tuple || left.items.size() != right.items.size()) return false;
  for (size_t i = 0; i < left.items.size(); ++i) {
    ASSIGN_OR_RETURN(const bool same, Equals(runtime, left.items[i], right.items[i]));
    if (!same) return false;
  }
  return true;
}

absl::StatusOr<bool> DictsEqual(Runtime& runtime, const Dict& left, const Dict& right) {
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [key, value] : left.entries) {
    RETURN_IF_ERROR(runtime.Charge(key.Size()));
    const Value* const other = right.Find(key);
    if (other == nullptr) return false;
    ASSIGN_OR_RETURN(const bool same, Equals(runtime, value, *other));
    if (!same) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<Value> Arithmetic(Runtime& runtime, absl::string_view op, const Value& left,
                                 const Value& right) {
  if (left.is_number() && right.is_number()) {
    if (left.is_whole() && right.is_whole()) {
      return WholeArithmetic(op, left.integer(), right.integer());
    }
    return RealArithmetic(op, left.real(), right.real());
  }
  if (op == "+" && left.is_text() && right.is_text()) {
    RETURN_IF_ERROR(
        runtime.CheckBytes(static_cast<int64_t>(left.text().size() + right.text().size())));
    return Value(left.text() + right.text());
  }
  if (op == "+" && IsSequence(left) && IsSequence(right) && left.is_list() && right.is_list() &&
      left.list().is_tuple == right.list().is_tuple) {
    RETURN_IF_ERROR(runtime.Charge(left.Size() + right.Size()));
    std::vector<Value> items = left.list().items;
    items.insert(items.end(), right.list().items.begin(), right.list().items.end());
    return left.list().is_tuple ? Value::MakeTuple(std::move(items))
                                : Value::MakeList(std::move(items));
  }
  if (op == "*" && IsSequence(left) && right.is_whole()) {
    return Repeat(runtime, left, right.integer());
  }
  if (op == "*" && left.is_whole() && IsSequence(right)) {
    return Repeat(runtime, right, left.integer());
  }
  if (op == "%" && left.is_text() && !right.is_undefined()) {
    ASSIGN_OR_RETURN(std::string text, PercentFormat(runtime, left.text(), right));
    return Value(std::move(text));
  }
  return Unsupported(op, left, right);
}

absl::StatusOr<Value> Negate(const Value& value) {
  if (value.is_whole()) return WholeArithmetic("-", 0, value.integer());
  if (value.is_double()) return Value(-value.real());
  return Expected("operator -", "a number", value);
}

absl::StatusOr<bool> Equals(Runtime& runtime, const Value& left, const Value& right) {
  RETURN_IF_ERROR(runtime.Charge(1));
  if (left.is_number() && right.is_number()) {
    if (left.is_whole() && right.is_whole()) return left.integer() == right.integer();
    return left.real() == right.real();
  }
  if (left.is_text() && right.is_text()) {
    RETURN_IF_ERROR(runtime.Charge(std::min(left.Size(), right.Size())));
    return left.text() == right.text();
  }
  if (SameObject(left, right)) return true;
  if (left.is_list() && right.is_list() && !left.is_generator() && !right.is_generator()) {
    return ListsEqual(runtime, left.list(), right.list());
  }
  if (left.is_dict() && right.is_dict()) return DictsEqual(runtime, left.dict(), right.dict());
  return (left.is_none() && right.is_none()) || (left.is_undefined() && right.is_undefined());
}

absl::StatusOr<bool> LessThan(Runtime& runtime, const Value& left, const Value& right) {
  RETURN_IF_ERROR(runtime.Charge(1));
  if (left.is_number() && right.is_number()) {
    if (left.is_whole() && right.is_whole()) return left.integer() < right.integer();
    return left.real() < right.real();
  }
  if (left.is_text() && right.is_text()) {
    RETURN_IF_ERROR(runtime.Charge(std::min(left.Size(), right.Size())));
    return left.text() < right.text();
  }
  if (left.is_list() && right.is_list() && !left.is_generator() && !right.is_generator() &&
      left.list().is_tuple == right.list().is_tuple) {
    const auto& a = left.list().items;
    const auto& b = right.list().items;
    for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
      ASSIGN_OR_RETURN(const bool same, Equals(runtime, a[i], b[i]));
      if (!same) return LessThan(runtime, a[i], b[i]);
    }
    return a.size() < b.size();
  }
  return Unsupported("<", left, right);
}

absl::StatusOr<bool> ContainsItem(Runtime& runtime, const Value& container, const Value& item) {
  if (container.is_text()) {
    if (!item.is_text()) return Expected("operator in", "a string to look for in a string", item);
    RETURN_IF_ERROR(runtime.Charge(container.Size()));
    return FindText(container.text(), item.text()) != std::string::npos;
  }
  if (container.is_dict()) {
    if (!IsHashable(item)) return Expected("operator in", "a hashable key", item);
    RETURN_IF_ERROR(runtime.Charge(item.Size()));
    return container.dict().Find(item) != nullptr;
  }
  if (container.is_undefined()) return false;
  if (!container.is_list()) return Expected("operator in", "a container", container);
  for (const Value& candidate : container.list().items) {
    ASSIGN_OR_RETURN(const bool same, Equals(runtime, candidate, item));
    if (same) return true;
  }
  return false;
}

absl::StatusOr<bool> Compare(Runtime& runtime, absl::string_view op, const Value& left,
                             const Value& right) {
  if (op == "==") return Equals(runtime, left, right);
  if (op == "in") return ContainsItem(runtime, right, left);
  if (op == "!=") {
    ASSIGN_OR_RETURN(const bool same, Equals(runtime, left, right));
    return !same;
  }
  if (op == "not in") {
    ASSIGN_OR_RETURN(const bool inside, ContainsItem(runtime, right, left));
    return !inside;
  }
  if (op == "<") return LessThan(runtime, left, right);
  if (op == ">") return LessThan(runtime, right, left);
  // `<=` and `>=` are not negations of `>` and `<`: NaN satisfies neither.
  ASSIGN_OR_RETURN(const bool less,
                   op == "<=" ? LessThan(runtime, left, right) : LessThan(runtime, right, left));
  return less ? true : Equals(runtime, left, right);
}

absl::StatusOr<std::vector<Value>> Iterate(Runtime& runtime, const Value& value) {
  RETURN_IF_ERROR(runtime.Charge(value.Size()));
  if (value.is_list()) return value.list().items;
  std::vector<Value> items;
  if (value.is_dict()) {
    for (const auto& [key, unused] : value.dict().entries) items.push_back(key);
    return items;
  }
  if (value.is_text()) {
    RETURN_IF_ERROR(runtime.Charge(static_cast<int64_t>(value.text().size())));
    for (const absl::string_view point : CodePoints(value.text())) items.emplace_back(point);
    return items;
  }
  if (value.is_undefined()) return items;
  return absl::InvalidArgumentError(
      absl::StrCat("expected something to iterate over, found ", value.TypeName()));
}

absl::StatusOr<int64_t> Length(Runtime& runtime, const Value& value) {
  if (value.is_text()) {
    RETURN_IF_ERROR(runtime.Charge(value.Size()));
    return CodePointCount(value.text());
  }
  if (value.is_undefined()) return 0;
  if (value.is_generator() || !(value.is_list() || value.is_dict())) {
    return Expected("length", "a string, list or dict", value);
  }
  return value.Size();
}

}  // namespace tandem::model::chat_template
