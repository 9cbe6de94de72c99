// Implements the expressions of Evaluator (common/model/chat_template/evaluator.h). evaluator.cc
// has the statements.
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/evaluator.h"
#include "common/model/chat_template/filters.h"
#include "common/model/chat_template/operators.h"
#include "common/model/chat_template/parser.h"

namespace tandem::model::chat_template {

Value Evaluator::Lookup(const std::string& name, const ScopePtr& scope) const {
  for (const Scope* level = scope.get(); level != nullptr; level = level->parent.get()) {
    const auto found = level->names.find(name);
    if (found != level->names.end()) return found->second;
  }
  if (FindGlobal(name) != nullptr) {
    return Value(Callable{Callable::Kind::kGlobal, name, nullptr, nullptr, nullptr});
  }
  return Value::MakeUndefined(absl::StrCat("'", name, "' is undefined"));
}

absl::Status Evaluator::CheckResult(const Value& value) {
  RETURN_IF_ERROR(Charge(value.Size()));
  if (value.is_text()) RETURN_IF_ERROR(CheckBytes(static_cast<int64_t>(value.text().size())));
  if (value.Depth() <= limits_.value_depth_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a value nests deeper than ", limits_.value_depth_max, " levels"));
}

absl::StatusOr<Value> Evaluator::Evaluate(const Expression& node, const ScopePtr& scope) {
  const Nested nested(*this);
  absl::Status status = CheckDepth();
  if (status.ok()) status = Charge(1);
  if (!status.ok()) return WithLine(node.line, status);
  switch (node.kind) {
    case Expression::Kind::kConstant:
      return node.constant;
    case Expression::Kind::kName:
      return Lookup(node.name, scope);
    default:
      break;
  }
  absl::StatusOr<Value> value = EvaluateKind(node, scope);
  status = value.ok() ? CheckResult(*value) : value.status();
  if (!status.ok()) return WithLine(node.line, status);
  return value;
}

absl::StatusOr<Value> Evaluator::EvaluateKind(const Expression& node, const ScopePtr& scope) {
  switch (node.kind) {
    case Expression::Kind::kConstant:
      return node.constant;
    case Expression::Kind::kName:
      return Lookup(node.name, scope);
    case Expression::Kind::kList:
    case Expression::Kind::kTuple:
    case Expression::Kind::kDict:
      return EvaluateLiteral(node, scope);
    case Expression::Kind::kAttribute: {
      ASSIGN_OR_RETURN(const Value object, Evaluate(*node.children[0], scope));
      return GetAttribute(object, node.name);
    }
    case Expression::Kind::kItem:
      return EvaluateItem(node, scope);
    case Expression::Kind::kSlice:
      return EvaluateSlice(node, scope);
    case Expression::Kind::kCall:
      return EvaluateCall(node, scope);
    case Expression::Kind::kFilter:
      return EvaluateFilter(node, scope);
    case Expression::Kind::kTest:
      return EvaluateTest(node, scope);
    case Expression::Kind::kNegative: {
      ASSIGN_OR_RETURN(const Value operand, Evaluate(*node.children[0], scope));
      return Negate(operand);
    }
    case Expression::Kind::kPositive: {
      ASSIGN_OR_RETURN(const Value operand, Evaluate(*node.children[0], scope));
      return Arithmetic(*this, "+", Value::MakeInteger(0), operand);
    }
    case Expression::Kind::kBinary: {
      ASSIGN_OR_RETURN(const Value left, Evaluate(*node.children[0], scope));
      ASSIGN_OR_RETURN(const Value right, Evaluate(*node.children[1], scope));
      return Arithmetic(*this, node.name, left, right);
    }
    case Expression::Kind::kConcat:
      return EvaluateConcat(node, scope);
    case Expression::Kind::kCompare:
      return EvaluateCompare(node, scope);
    case Expression::Kind::kNot:
    case Expression::Kind::kAnd:
    case Expression::Kind::kOr:
    case Expression::Kind::kConditional:
      return EvaluateLogic(node, scope);
  }
  return Value();
}

absl::StatusOr<Value> Evaluator::EvaluateLiteral(const Expression& node, const ScopePtr& scope) {
  std::vector<Value> items;
  for (const ExpressionPtr& child : node.children) {
    ASSIGN_OR_RETURN(Value item, Evaluate(*child, scope));
    items.push_back(std::move(item));
  }
  if (node.kind == Expression::Kind::kList) return Value::MakeList(std::move(items));
  if (node.kind == Expression::Kind::kTuple) return Value::MakeTuple(std::move(items));
  Dict dict;
  for (size_t i = 0; i < items.size(); i += 2) {
    if (!IsHashable(items[i])) return Expected("dict", "a string, number or none as key", items[i]);
    RETURN_IF_ERROR(Charge(items[i].Size()));
    dict.Set(items[i], items[i + 1]);
  }
  return Value(std::move(dict));
}

absl::StatusOr<Value> Evaluator::EvaluateLogic(const Expression& node, const ScopePtr& scope) {
  ASSIGN_OR_RETURN(Value value, Evaluate(*node.children[0], scope));
  if (node.kind == Expression::Kind::kNot) return Value(!value.Truth());
  if (node.kind == Expression::Kind::kConditional) {
    const ExpressionPtr& chosen = node.children[value.Truth() ? 1 : 2];
    if (chosen == nullptr) {
      return Value::MakeUndefined("the inline if has no else and its condition was false");
    }
    return Evaluate(*chosen, scope);
  }
  const bool ends_with = node.kind == Expression::Kind::kOr;
  for (size_t i = 1; i < node.children.size() && value.Truth() != ends_with; ++i) {
    ASSIGN_OR_RETURN(value, Evaluate(*node.children[i], scope));
  }
  return value;
}

absl::StatusOr<Value> Evaluator::EvaluateConcat(const Expression& node, const ScopePtr& scope) {
  std::string text;
  for (const ExpressionPtr& child : node.children) {
    ASSIGN_OR_RETURN(const Value part, Evaluate(*child, scope));
    text += part.Str();
    RETURN_IF_ERROR(CheckBytes(static_cast<int64_t>(text.size())));
  }
  return Value(std::move(text));
}

absl::StatusOr<Value> Evaluator::EvaluateCompare(const Expression& node, const ScopePtr& scope) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*node.children[0], scope));
  for (size_t i = 0; i < node.operators.size(); ++i) {
    ASSIGN_OR_RETURN(Value right, Evaluate(*node.children[i + 1], scope));
    ASSIGN_OR_RETURN(const bool holds, Compare(*this, node.operators[i], left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

absl::StatusOr<Value> Evaluator::EvaluateItem(const Expression& node, const ScopePtr& scope) {
  ASSIGN_OR_RETURN(const Value object, Evaluate(*node.children[0], scope));
  ASSIGN_OR_RETURN(const Value key, Evaluate(*node.children[1], scope));
  if (object.is_text()) RETURN_IF_ERROR(Charge(object.Size()));
  if (key.is_text()) RETURN_IF_ERROR(Charge(key.Size()));
  return GetItem(object, key);
}

absl::StatusOr<Value> Evaluator::EvaluateSlice(const Expression& node, const ScopePtr& scope) {
  ASSIGN_OR_RETURN(const Value object, Evaluate(*node.children[0], scope));
  SliceBounds bounds;
  Value* const parts[] = {&bounds.start, &bounds.stop, &bounds.step};
  for (size_t i = 0; i < 3; ++i) {
    if (node.children[i + 1] == nullptr) continue;
    ASSIGN_OR_RETURN(*parts[i], Evaluate(*node.children[i + 1], scope));
  }
  return GetSlice(*this, object, bounds);
}

absl::StatusOr<Value> Evaluator::EvaluateFilter(const Expression& node, const ScopePtr& scope) {
  Value input;
  if (node.children[0] == nullptr) {
    input = *block_operand_;
  } else {
    ASSIGN_OR_RETURN(input, Evaluate(*node.children[0], scope));
  }
  if (node.filter == nullptr) return UnknownNameError("filter", node);
  ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node.arguments, scope));
  return Apply(*this, *node.filter, input, arguments);
}

absl::StatusOr<Value> Evaluator::EvaluateTest(const Expression& node, const ScopePtr& scope) {
  ASSIGN_OR_RETURN(const Value input, Evaluate(*node.children[0], scope));
  if (node.test == nullptr) return UnknownNameError("test", node);
  ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node.arguments, scope));
  ASSIGN_OR_RETURN(const bool holds, node.test->apply(*this, input, arguments));
  return Value(holds);
}

absl::StatusOr<Arguments> Evaluator::EvaluateArguments(const CallArguments& arguments,
                                                       const ScopePtr& scope) {
  Arguments result;
  for (const ExpressionPtr& expression : arguments.positional) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*expression, scope));
    result.positional.push_back(std::move(value));
  }
  for (const auto& [name, expression] : arguments.named) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*expression, scope));
    result.named.emplace_back(name, std::move(value));
  }
  if (arguments.star != nullptr) {
    ASSIGN_OR_RETURN(const Value star, Evaluate(*arguments.star, scope));
    ASSIGN_OR_RETURN(const std::vector<Value> more, Iterate(*this, star));
    result.positional.insert(result.positional.end(), more.begin(), more.end());
  }
  if (arguments.star_star != nullptr) {
    ASSIGN_OR_RETURN(const Value more, Evaluate(*arguments.star_star, scope));
    if (!more.is_dict()) return Expected("call", "a dict after **", more);
    for (const auto& [key, value] : more.dict().entries) {
      if (!key.is_text()) return Expected("call", "strings as keys after **", key);
      RETURN_IF_ERROR(Charge(1 + key.Size()));
      result.named.emplace_back(key.text(), value);
    }
  }
  return result;
}

absl::StatusOr<Value> Evaluator::EvaluateCall(const Expression& node, const ScopePtr& scope) {
  return EvaluateCallWith(node, scope, nullptr);
}

absl::StatusOr<Value> Evaluator::EvaluateCallWith(const Expression& node, const ScopePtr& scope,
                                                  const Value* caller) {
  ASSIGN_OR_RETURN(const Value callee, Evaluate(*node.children[0], scope));
  if (callee.is_undefined()) return absl::InvalidArgumentError(callee.undefined_reason());
  ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(node.arguments, scope));
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  return Call(callee, arguments);
}

}  // namespace tandem::model::chat_template
