// Builds the syntax tree from tokens, by jinja2's grammar: precedences, filters and tests binding
// tighter than arithmetic, adjacent text literals joined. Recursive descent of bounded depth.
// parser.cc has the statements, parser_expression.cc the expressions.
// Thread safety: one parser parses once, on one thread. Errors: kInvalidArgument with the line.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/chat_template/ast.h"
#include "common/model/chat_template/chat_template.h"
#include "common/model/chat_template/lexer.h"

namespace tandem::model::chat_template {

absl::StatusOr<std::unique_ptr<Template>> ParseTemplate(absl::string_view source,
                                                        const TemplateLimits& limits);

// `what` is "filter" or "test".
absl::Status UnknownNameError(absl::string_view what, const Expression& node);

// The parser's state; statements are parsed in parser.cc, expressions in parser_expression.cc.
class Parser {
 public:
  Parser(std::vector<Token> tokens, int32_t depth_max)
      : tokens_(std::move(tokens)), depth_max_(depth_max) {}

  absl::StatusOr<std::unique_ptr<Template>> Run();

 private:
  using Result = absl::StatusOr<ExpressionPtr>;
  // Leaves room in depth_ for one nesting level while it lives.
  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser) { ++parser_.depth_; }
    ~Nested() { --parser_.depth_; }

   private:
    Parser& parser_;
  };

  const Token& Current() const { return tokens_[at_]; }
  const Token& Ahead(size_t count) const;
  void Next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool AtName(absl::string_view name) const;
  bool AtOperator(absl::string_view op) const;
  bool TakeName(absl::string_view name);
  bool TakeOperator(absl::string_view op);
  absl::Status ExpectOperator(absl::string_view op);
  absl::Status ExpectBlockEnd();
  absl::StatusOr<std::string> ExpectName(absl::string_view what);
  // What the current token is, for messages.
  std::string Found() const;
  absl::Status Fail(absl::string_view expected) const;
  absl::Status CheckDepth() const;
  ExpressionPtr Make(Expression::Kind kind) const;

  // Statements. A body ends before a block tag that opens with one of `ends`.
  absl::Status ParseBody(const std::vector<std::string>& ends, Body* body);
  absl::StatusOr<std::unique_ptr<Statement>> ParseStatement();
  absl::Status ParseIf(Statement* statement);
  absl::Status ParseFor(Statement* statement);
  absl::Status ParseSet(Statement* statement);
  absl::Status ParseMacro(Statement* statement);
  absl::Status ParseCallBlock(Statement* statement);
  absl::Status ParseFilterBlock(Statement* statement);
  absl::Status ParseWith(Statement* statement);
  absl::Status ParseLoopControl(Statement* statement);
  absl::Status ParseSignature(Macro* macro);
  absl::Status ParseMacroBody(absl::string_view end, Macro* macro);
  absl::Status ParseBodyUntil(absl::string_view end, Body* body);
  absl::StatusOr<Target> ParseTarget(bool with_namespace);
  absl::StatusOr<Target> ParseSingleTarget(bool with_namespace);

  // Expressions, loosest first.
  Result ParseTuple(bool with_condition);
  Result ParseExpression();
  Result ParseOr();
  Result ParseAnd();
  Result ParseNot();
  Result ParseCompare();
  Result ParseSum();
  Result ParseConcat();
  Result ParseProduct();
  Result ParsePower();
  Result ParseFilteredUnary();
  Result ParseUnary(bool with_filter);
  Result ParsePrimary();
  Result ParseParenthesised();
  Result ParseListLiteral();
  Result ParseDictLiteral();
  Result ParsePostfix(ExpressionPtr node);
  Result ParseFilters(ExpressionPtr node);
  Result ParseFilter(ExpressionPtr node);
  Result ParseTest(ExpressionPtr node);
  Result ParseSubscript(ExpressionPtr node);
  Result ParseCall(ExpressionPtr node);
  absl::Status ParseArguments(CallArguments* arguments);
  using Rule = Result (Parser::*)();
  // `operand (operator operand)*`, left associative.
  Result ParseBinary(Rule operand, const std::vector<absl::string_view>& operators);
  // Records an error, unless the name is known or its code may never run.
  void CheckKnown(bool known, absl::string_view what, const Expression& node);

  const std::vector<Token> tokens_;
  const int32_t depth_max_;
  size_t at_ = 0;
  int32_t depth_ = 0;
  int32_t loop_depth_ = 0;
  // Above 0 in an if branch, whose filters may never run.
  int32_t conditional_depth_ = 0;
  // Errors for unknown filters and tests in code that is certain to run.
  std::vector<absl::Status> unknown_;
  // Names seen in the macro being parsed; null outside of macros.
  Macro* macro_ = nullptr;
};

}  // namespace tandem::model::chat_template
