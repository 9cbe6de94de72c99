// Runs a parsed template. Thread safety: one evaluator renders once, on one thread.
// Owner: ChatTemplate::Render, for the duration of the call. Borrows the parsed template.
// Errors: kInvalidArgument with the template's line.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/chat_template/ast.h"
#include "common/model/chat_template/chat_template.h"
#include "common/model/chat_template/runtime.h"

namespace tandem::model::chat_template {

// The names visible in a part of the template: a loop's body, a macro's, the template's own.
struct Scope {
  absl::flat_hash_map<std::string, Value> names;
  std::shared_ptr<Scope> parent;
};
using ScopePtr = std::shared_ptr<Scope>;

class Evaluator final : public Runtime {
 public:
  Evaluator(const TemplateLimits& limits, absl::Time now) : limits_(limits), now_(now) {}
  // Breaks the cycles that macros and namespaces form with scopes.
  ~Evaluator() override;

  // `globals` are the variables of the rendering.
  absl::StatusOr<std::string> Render(const Template& parsed,
                                     absl::flat_hash_map<std::string, Value> globals);

  absl::Status Charge(int64_t steps) override;
  absl::Status CheckBytes(int64_t bytes) override;
  absl::StatusOr<Value> Call(const Value& callable, const Arguments& arguments) override;
  absl::Time Now() const override { return now_; }
  void Own(std::shared_ptr<Namespace> name_space) override {
    namespaces_.push_back(std::move(name_space));
  }

 private:
  // How a body ended.
  enum class Flow { kNormal, kBreak, kContinue };
  // Counts one nested evaluation while it lives.
  class Nested {
   public:
    explicit Nested(Evaluator& evaluator) : evaluator_(evaluator) { ++evaluator_.depth_; }
    ~Nested() { --evaluator_.depth_; }

   private:
    Evaluator& evaluator_;
  };

  // Statements: evaluator.cc.
  absl::StatusOr<Flow> Run(const Body& body, const ScopePtr& scope);
  absl::StatusOr<Flow> Execute(const Statement& statement, const ScopePtr& scope);
  absl::StatusOr<Flow> ExecuteFor(const Statement& statement, const ScopePtr& scope);
  absl::StatusOr<std::vector<Value>> LoopItems(const Statement& statement, const ScopePtr& scope);
  absl::Status ExecuteSetBlock(const Statement& statement, const ScopePtr& scope);
  absl::Status ExecuteCallBlock(const Statement& statement, const ScopePtr& scope);
  absl::StatusOr<Flow> ExecuteWith(const Statement& statement, const ScopePtr& scope);
  absl::Status Assign(const Target& target, const Value& value, const ScopePtr& scope);
  absl::Status AssignAttribute(const Target& target, const Value& value, const ScopePtr& scope);
  absl::Status Emit(absl::string_view text);
  // Runs `body` and returns its output.
  absl::StatusOr<std::string> Capture(const Body& body, const ScopePtr& scope);
  absl::StatusOr<Value> CallMacro(const Callable& callable, const Arguments& arguments);
  absl::Status BindMacro(const Macro& macro, const Arguments& arguments, const ScopePtr& scope);
  Value MakeMacro(const std::shared_ptr<Macro>& macro, const ScopePtr& scope);
  ScopePtr Child(const ScopePtr& parent) const;

  // Expressions: evaluate_expression.cc.
  absl::StatusOr<Value> Evaluate(const Expression& node, const ScopePtr& scope);
  absl::StatusOr<Value> EvaluateKind(const Expression& node, const ScopePtr& scope);
  absl::StatusOr<Value> EvaluateLiteral(const Expression& node, const ScopePtr& scope);
  absl::StatusOr<Value> EvaluateLogic(const Expression& node, const ScopePtr& scope);
  absl::StatusOr<Value> EvaluateConcat(const Expression& node, const ScopePtr& scope);
  absl::StatusOr<Value> EvaluateCompare(const Expression& node, const ScopePtr& scope);
  absl::StatusOr<Value> EvaluateSlice(const Expression& node, const ScopePtr& scope);
  absl::StatusOr<Value> EvaluateItem(const Expression& node, const ScopePtr& scope);
  absl::StatusOr<Value> EvaluateFilter(const Expression& node, const ScopePtr& scope);
  absl::StatusOr<Value> EvaluateTest(const Expression& node, const ScopePtr& scope);
  absl::StatusOr<Value> EvaluateCall(const Expression& node, const ScopePtr& scope);
  absl::StatusOr<Value> EvaluateCallWith(const Expression& node, const ScopePtr& scope,
                                         const Value* caller);
  absl::StatusOr<Arguments> EvaluateArguments(const CallArguments& arguments,
                                              const ScopePtr& scope);
  Value Lookup(const std::string& name, const ScopePtr& scope) const;
  absl::Status CheckDepth() const;
  absl::Status CheckResult(const Value& value);

  const TemplateLimits limits_;
  const absl::Time now_;
  int64_t steps_ = 0;
  int32_t depth_ = 0;
  std::string* out_ = nullptr;
  // The operand of the innermost filter of a filter or set block.
  const Value* block_operand_ = nullptr;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<ScopePtr> captured_;  // scopes that macros hold
};

// Adds the line to an error that has none yet.
absl::Status WithLine(int line, const absl::Status& status);

}  // namespace tandem::model::chat_template
