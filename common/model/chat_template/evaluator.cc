// The statements of the language.
#include "common/model/chat_template/evaluator.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/filters.h"
#include "common/model/chat_template/lexer.h"
#include "common/model/chat_template/operators.h"

namespace tandem::model::chat_template {

absl::Status WithLine(int line, const absl::Status& status) {
  if (absl::StartsWith(status.message(), "chat template line ")) return status;
  return ErrorAt(line, status.message());
}

Evaluator::~Evaluator() {
  for (const auto& name_space : namespaces_) name_space->attributes = Dict();
  for (const ScopePtr& scope : captured_) scope->names.clear();
  // Release the newest scope first. A scope's parent is older, so no destructor recurses along a
  // chain of scopes.
  while (!captured_.empty()) captured_.pop_back();
}

absl::StatusOr<std::string> Evaluator::Render(const Template& parsed,
                                              absl::flat_hash_map<std::string, Value> globals) {
  const auto root = std::make_shared<Scope>();
  root->names = std::move(globals);
  std::string out;
  out_ = &out;
  RETURN_IF_ERROR(Run(parsed.body, Child(root)).status());
  return out;
}

absl::Status Evaluator::Charge(int64_t steps) {
  // Saturates, because one charge may be as large as the largest integer.
  steps_ += std::min(steps, limits_.steps_max + 1);
  if (steps_ <= limits_.steps_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the template takes more than ", limits_.steps_max, " steps"));
}

absl::Status Evaluator::CheckBytes(int64_t bytes) {
  const int64_t max = std::min(limits_.output_bytes_max, kTextBytesMax);
  if (bytes <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a string grows beyond ", max, " bytes"));
}

absl::Status Evaluator::CheckDepth() const {
  if (depth_ <= limits_.evaluation_depth_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("calls nest deeper than ", limits_.evaluation_depth_max, " levels"));
}

ScopePtr Evaluator::Child(const ScopePtr& parent) const {
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  return scope;
}

absl::Status Evaluator::Emit(absl::string_view text) {
  RETURN_IF_ERROR(CheckBytes(static_cast<int64_t>(out_->size() + text.size())));
  RETURN_IF_ERROR(Charge(static_cast<int64_t>(text.size()) / 16));
  absl::StrAppend(out_, text);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Evaluator::Capture(const Body& body, const ScopePtr& scope) {
  std::string text;
  std::string* const outer = out_;
  out_ = &text;
  const absl::Status status = Run(body, scope).status();
  out_ = outer;
  RETURN_IF_ERROR(status);
  return text;
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const Body& body, const ScopePtr& scope) {
  const Nested nested(*this);
  RETURN_IF_ERROR(CheckDepth());
  for (const auto& statement : body) {
    absl::Status status = Charge(1);
    if (status.ok()) {
      absl::StatusOr<Flow> flow = Execute(*statement, scope);
      if (flow.ok() && *flow == Flow::kNormal) continue;
      if (flow.ok()) return flow;
      status = flow.status();
    }
    return WithLine(statement->line, status);
  }
  return Flow::kNormal;
}

absl::StatusOr<Evaluator::Flow> Evaluator::Execute(const Statement& statement,
                                                   const ScopePtr& scope) {
  switch (statement.kind) {
    case Statement::Kind::kData:
      RETURN_IF_ERROR(Emit(statement.text));
      return Flow::kNormal;
    case Statement::Kind::kOutput: {
      ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression, scope));
      RETURN_IF_ERROR(value.is_text() ? Emit(value.text()) : Emit(value.Str()));
      return Flow::kNormal;
    }
    case Statement::Kind::kIf: {
      ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.expression, scope));
      return Run(condition.Truth() ? statement.body : statement.otherwise, scope);
    }
    case Statement::Kind::kFor:
      return ExecuteFor(statement, scope);
    case Statement::Kind::kSet: {
      ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression, scope));
      RETURN_IF_ERROR(Assign(statement.target, value, scope));
      return Flow::kNormal;
    }
    case Statement::Kind::kSetBlock:
      RETURN_IF_ERROR(ExecuteSetBlock(statement, scope));
      return Flow::kNormal;
    case Statement::Kind::kMacro:
      scope->names[statement.macro->name] = MakeMacro(statement.macro, scope);
      return Flow::kNormal;
    case Statement::Kind::kCallBlock:
      RETURN_IF_ERROR(ExecuteCallBlock(statement, scope));
      return Flow::kNormal;
    case Statement::Kind::kFilterBlock: {
      ASSIGN_OR_RETURN(std::string text, Capture(statement.body, Child(scope)));
      const Value operand(std::move(text));
      block_operand_ = &operand;
      ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression, scope));
      RETURN_IF_ERROR(Emit(value.Str()));
      return Flow::kNormal;
    }
    case Statement::Kind::kWith:
      return ExecuteWith(statement, scope);
    case Statement::Kind::kScope:
      return Run(statement.body, Child(scope));
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

absl::StatusOr<std::vector<Value>> Evaluator::LoopItems(const Statement& statement,
                                                        const ScopePtr& scope) {
  ASSIGN_OR_RETURN(const Value iterable, Evaluate(*statement.expression, scope));
  ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(*this, iterable));
  if (statement.condition == nullptr) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    const ScopePtr inner = Child(scope);
    RETURN_IF_ERROR(Assign(statement.target, item, inner));
    ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.condition, inner));
    if (condition.Truth()) kept.push_back(std::move(item));
  }
  return kept;
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecuteFor(const Statement& statement,
                                                      const ScopePtr& scope) {
  ASSIGN_OR_RETURN(std::vector<Value> items, LoopItems(statement, scope));
  const auto loop = std::make_shared<LoopState>(std::move(items));
  if (loop->items.empty()) return Run(statement.otherwise, Child(scope));
  absl::StatusOr<Flow> result = Flow::kNormal;
  for (loop->index = 0; loop->index < loop->items.size(); ++loop->index) {
    // Every iteration has a new scope, so variables that it sets are not visible in the next one.
    const ScopePtr inner = Child(scope);
    inner->names["loop"] = Value(loop);
    const absl::Status assigned = Assign(statement.target, loop->items[loop->index], inner);
    absl::StatusOr<Flow> flow = assigned.ok() ? Run(statement.body, inner) : assigned;
    if (!flow.ok()) result = flow;
    if (!flow.ok() || *flow == Flow::kBreak) break;
  }
  return result;
}

absl::Status Evaluator::ExecuteSetBlock(const Statement& statement, const ScopePtr& scope) {
  ASSIGN_OR_RETURN(std::string text, Capture(statement.body, Child(scope)));
  Value value(std::move(text));
  if (statement.expression != nullptr) {
    const Value operand = value;
    block_operand_ = &operand;
    ASSIGN_OR_RETURN(value, Evaluate(*statement.expression, scope));
  }
  return Assign(statement.target, value, scope);
}

absl::Status Evaluator::ExecuteCallBlock(const Statement& statement, const ScopePtr& scope) {
  const Value caller = MakeMacro(statement.macro, scope);
  ASSIGN_OR_RETURN(const Value value, EvaluateCallWith(*statement.expression, scope, &caller));
  return Emit(value.Str());
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecuteWith(const Statement& statement,
                                                       const ScopePtr& scope) {
  const ScopePtr inner = Child(scope);
  for (const auto& [target, expression] : statement.bindings) {
    ASSIGN_OR_RETURN(const Value value, Evaluate(*expression, scope));
    RETURN_IF_ERROR(Assign(target, value, inner));
  }
  return Run(statement.body, inner);
}

absl::Status Evaluator::Assign(const Target& target, const Value& value, const ScopePtr& scope) {
  if (!target.attribute.empty()) return AssignAttribute(target, value, scope);
  if (target.elements.empty()) {
    scope->names[target.name] = value;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<Value> parts, Iterate(*this, value));
  if (parts.size() != target.elements.size()) {
    return absl::InvalidArgumentError(absl::StrCat("expected ", target.elements.size(),
                                                   " values to unpack, found ", parts.size()));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    RETURN_IF_ERROR(Assign(target.elements[i], parts[i], scope));
  }
  return absl::OkStatus();
}

absl::Status Evaluator::AssignAttribute(const Target& target, const Value& value,
                                        const ScopePtr& scope) {
  const Value object = Lookup(target.name, scope);
  if (!object.is_namespace()) {
    return Expected(absl::StrCat("set ", target.name, ".", target.attribute), "a namespace",
                    object);
  }
  if (absl::StartsWith(target.attribute, "_")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected no attribute with a leading underscore, found '", target.attribute, "'"));
  }
  object.name_space().attributes.Set(Value(target.attribute), value);
  return absl::OkStatus();
}

Value Evaluator::MakeMacro(const std::shared_ptr<Macro>& macro, const ScopePtr& scope) {
  captured_.push_back(scope);
  return Value(Callable{Callable::Kind::kMacro, macro->name, macro, scope, nullptr});
}

absl::Status Evaluator::BindMacro(const Macro& macro, const Arguments& arguments,
                                  const ScopePtr& scope) {
  std::vector<Value> varargs;
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    if (i < macro.parameters.size()) {
      scope->names[macro.parameters[i]] = arguments.positional[i];
    } else if (macro.uses_varargs) {
      varargs.push_back(arguments.positional[i]);
    } else {
      return absl::InvalidArgumentError(absl::StrCat("macro '", macro.name, "': expected at most ",
                                                     macro.parameters.size(), " arguments, found ",
                                                     arguments.positional.size()));
    }
  }
  Dict kwargs;
  for (const auto& [name, value] : arguments.named) {
    const auto known = std::find(macro.parameters.begin(), macro.parameters.end(), name);
    const bool is_parameter = known != macro.parameters.end();
    if ((is_parameter && !scope->names.contains(name)) || (name == "caller" && macro.uses_caller)) {
      scope->names[name] = value;
    } else if (macro.uses_kwargs && !is_parameter) {
      kwargs.Set(Value(name), value);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("macro '", macro.name, "': ", is_parameter ? "two values for" : "unknown",
                       " argument '", name, "'"));
    }
  }
  if (macro.uses_varargs) scope->names["varargs"] = Value::MakeTuple(std::move(varargs));
  if (macro.uses_kwargs) scope->names["kwargs"] = Value(std::move(kwargs));
  if (macro.uses_caller && !scope->names.contains("caller")) {
    scope->names["caller"] = Value::MakeUndefined("No caller defined");
  }
  const size_t first_default = macro.parameters.size() - macro.defaults.size();
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    if (scope->names.contains(macro.parameters[i])) continue;
    Value value = Value::MakeUndefined(
        absl::StrCat("parameter '", macro.parameters[i], "' was not provided"));
    if (i >= first_default) {
      ASSIGN_OR_RETURN(value, Evaluate(*macro.defaults[i - first_default], scope));
    }
    scope->names[macro.parameters[i]] = value;
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Evaluator::CallMacro(const Callable& callable, const Arguments& arguments) {
  const ScopePtr scope = Child(callable.scope);
  RETURN_IF_ERROR(BindMacro(*callable.macro, arguments, scope));
  ASSIGN_OR_RETURN(std::string text, Capture(callable.macro->body, scope));
  return Value(std::move(text));
}

absl::StatusOr<Value> Evaluator::Call(const Value& callable, const Arguments& arguments) {
  if (callable.is_undefined()) return absl::InvalidArgumentError(callable.undefined_reason());
  if (!callable.is_callable()) return Expected("call", "something callable", callable);
  const Callable& target = callable.callable();
  switch (target.kind) {
    case Callable::Kind::kMacro:
      return CallMacro(target, arguments);
    case Callable::Kind::kGlobal:
      RETURN_IF_ERROR(ChargeTexts(*this, arguments));
      return FindGlobal(target.name)->apply(*this, arguments);
    case Callable::Kind::kMethod:
      break;
  }
  RETURN_IF_ERROR(ChargeTexts(*this, arguments));
  RETURN_IF_ERROR(Charge(target.self->Size()));
  return FindMethod(*target.self, target.name)->apply(*this, *target.self, arguments);
}

}  // namespace tandem::model::chat_template
