#include "common/model/chat_template/parser.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/text.h"

namespace tandem::model::chat_template {

absl::StatusOr<std::unique_ptr<Template>> ParseTemplate(absl::string_view source,
                                                        const TemplateLimits& limits) {
  if (static_cast<int64_t>(source.size()) > limits.source_bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chat template has ", source.size(), " bytes, expected at most ", limits.source_bytes_max));
  }
  ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens), limits.parse_depth_max).Run();
}

const Token& Parser::Ahead(size_t count) const {
  return tokens_[std::min(at_ + count, tokens_.size() - 1)];
}
bool Parser::AtName(absl::string_view name) const {
  return Current().kind == Token::Kind::kName && Current().text == name;
}
bool Parser::AtOperator(absl::string_view op) const {
  return Current().kind == Token::Kind::kOperator && Current().text == op;
}
bool Parser::TakeName(absl::string_view name) {
  if (!AtName(name)) return false;
  Next();
  return true;
}
bool Parser::TakeOperator(absl::string_view op) {
  if (!AtOperator(op)) return false;
  Next();
  return true;
}

std::string Parser::Found() const {
  switch (Current().kind) {
    case Token::Kind::kData:
    case Token::Kind::kVariableBegin:
    case Token::Kind::kBlockBegin:
      return "text outside of the tag";
    case Token::Kind::kVariableEnd:
      return "'}}'";
    case Token::Kind::kBlockEnd:
      return "'%}'";
    case Token::Kind::kText:
      return absl::StrCat("the text ", ReprText(Current().text));
    case Token::Kind::kInteger:
    case Token::Kind::kDouble:
      return "a number";
    case Token::Kind::kEnd:
      return "the end of the template";
    default:
      return absl::StrCat("'", Current().text, "'");
  }
}

absl::Status Parser::Fail(absl::string_view expected) const {
  return ErrorAt(Current().line, absl::StrCat("expected ", expected, ", found ", Found()));
}
absl::Status Parser::ExpectOperator(absl::string_view op) {
  if (TakeOperator(op)) return absl::OkStatus();
  return Fail(absl::StrCat("'", op, "'"));
}
absl::Status Parser::ExpectBlockEnd() {
  if (Current().kind != Token::Kind::kBlockEnd) return Fail("'%}'");
  Next();
  return absl::OkStatus();
}
absl::StatusOr<std::string> Parser::ExpectName(absl::string_view what) {
  if (Current().kind != Token::Kind::kName) return Fail(what);
  std::string name = Current().text;
  Next();
  return name;
}
absl::Status Parser::CheckDepth() const {
  if (depth_ <= depth_max_) return absl::OkStatus();
  return ErrorAt(Current().line, absl::StrCat("nested deeper than ", depth_max_, " levels"));
}

absl::StatusOr<std::unique_ptr<Template>> Parser::Run() {
  auto result = std::make_unique<Template>();
  RETURN_IF_ERROR(ParseBody({}, &result->body));
  if (!unknown_.empty()) return unknown_.front();
  return result;
}

absl::Status Parser::ParseBody(const std::vector<std::string>& ends, Body* body) {
  const Nested nested(*this);
  RETURN_IF_ERROR(CheckDepth());
  for (;;) {
    const Token& token = Current();
    if (token.kind == Token::Kind::kEnd) {
      if (ends.empty()) return absl::OkStatus();
      return Fail(absl::StrCat("'", absl::StrJoin(ends, "' or '"), "'"));
    }
    if (token.kind == Token::Kind::kBlockBegin) {
      const Token& tag = Ahead(1);
      if (tag.kind == Token::Kind::kName &&
          std::find(ends.begin(), ends.end(), tag.text) != ends.end()) {
        Next();
        return absl::OkStatus();
      }
      Next();
      ASSIGN_OR_RETURN(auto statement, ParseStatement());
      body->push_back(std::move(statement));
      continue;
    }
    auto statement = std::make_unique<Statement>();
    statement->line = token.line;
    if (token.kind == Token::Kind::kData) {
      statement->text = token.text;
      Next();
    } else {
      Next();
      statement->kind = Statement::Kind::kOutput;
      ASSIGN_OR_RETURN(statement->expression, ParseTuple(true));
      if (Current().kind != Token::Kind::kVariableEnd) return Fail("'}}'");
      Next();
    }
    body->push_back(std::move(statement));
  }
}

absl::Status Parser::ParseBodyUntil(absl::string_view end, Body* body) {
  RETURN_IF_ERROR(ParseBody({std::string(end)}, body));
  Next();
  return ExpectBlockEnd();
}

absl::StatusOr<std::unique_ptr<Statement>> Parser::ParseStatement() {
  auto statement = std::make_unique<Statement>();
  statement->line = Current().line;
  ASSIGN_OR_RETURN(const std::string tag, ExpectName("a tag's name"));
  if (tag == "if") {
    RETURN_IF_ERROR(ParseIf(statement.get()));
  } else if (tag == "for") {
    RETURN_IF_ERROR(ParseFor(statement.get()));
  } else if (tag == "set") {
    RETURN_IF_ERROR(ParseSet(statement.get()));
  } else if (tag == "macro") {
    RETURN_IF_ERROR(ParseMacro(statement.get()));
  } else if (tag == "call") {
    RETURN_IF_ERROR(ParseCallBlock(statement.get()));
  } else if (tag == "filter") {
    RETURN_IF_ERROR(ParseFilterBlock(statement.get()));
  } else if (tag == "with") {
    RETURN_IF_ERROR(ParseWith(statement.get()));
  } else if (tag == "generation") {
    statement->kind = Statement::Kind::kScope;
    RETURN_IF_ERROR(ExpectBlockEnd());
    RETURN_IF_ERROR(ParseBodyUntil("endgeneration", &statement->body));
  } else if (tag == "break" || tag == "continue") {
    statement->kind = tag == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue;
    RETURN_IF_ERROR(ParseLoopControl(statement.get()));
  } else {
    return ErrorAt(
        statement->line,
        absl::StrCat("expected if, for, set, macro, call, filter, with, raw, generation, "
                     "break or continue, found the tag '",
                     tag, "'"));
  }
  return statement;
}

absl::Status Parser::ParseLoopControl(Statement* statement) {
  if (loop_depth_ == 0)
    return ErrorAt(statement->line, "expected break and continue inside a loop");
  return ExpectBlockEnd();
}

absl::Status Parser::ParseIf(Statement* statement) {
  ++conditional_depth_;
  int32_t chained = 0;  // `elif`s nest in `otherwise`
  for (;;) {
    statement->kind = Statement::Kind::kIf;
    ASSIGN_OR_RETURN(statement->expression, ParseTuple(false));
    RETURN_IF_ERROR(ExpectBlockEnd());
    RETURN_IF_ERROR(ParseBody({"elif", "else", "endif"}, &statement->body));
    if (TakeName("elif")) {
      ++chained;
      ++depth_;
      RETURN_IF_ERROR(CheckDepth());
      auto branch = std::make_unique<Statement>();
      branch->line = Current().line;
      Statement* const next = branch.get();
      statement->otherwise.push_back(std::move(branch));
      statement = next;
      continue;
    }
    if (TakeName("else")) {
      RETURN_IF_ERROR(ExpectBlockEnd());
      RETURN_IF_ERROR(ParseBody({"endif"}, &statement->otherwise));
    }
    Next();
    --conditional_depth_;
    depth_ -= chained;
    return ExpectBlockEnd();
  }
}

absl::Status Parser::ParseFor(Statement* statement) {
  statement->kind = Statement::Kind::kFor;
  ASSIGN_OR_RETURN(statement->target, ParseTarget(false));
  if (!TakeName("in")) return Fail("'in'");
  ASSIGN_OR_RETURN(statement->expression, ParseTuple(false));
  if (TakeName("if")) {
    ASSIGN_OR_RETURN(statement->condition, ParseExpression());
  }
  if (AtName("recursive")) return Fail("a loop that is not recursive");
  RETURN_IF_ERROR(ExpectBlockEnd());
  ++loop_depth_;
  RETURN_IF_ERROR(ParseBody({"else", "endfor"}, &statement->body));
  --loop_depth_;
  if (TakeName("else")) {
    RETURN_IF_ERROR(ExpectBlockEnd());
    RETURN_IF_ERROR(ParseBody({"endfor"}, &statement->otherwise));
  }
  Next();
  return ExpectBlockEnd();
}

absl::StatusOr<Target> Parser::ParseSingleTarget(bool with_namespace) {
  const Nested nested(*this);
  RETURN_IF_ERROR(CheckDepth());
  if (TakeOperator("(")) {
    ASSIGN_OR_RETURN(Target target, ParseTarget(with_namespace));
    RETURN_IF_ERROR(ExpectOperator(")"));
    return target;
  }
  static constexpr absl::string_view kReserved[] = {"true",  "false", "none", "True",
                                                    "False", "None",  "not"};
  if (std::find(std::begin(kReserved), std::end(kReserved), Current().text) !=
      std::end(kReserved)) {
    return Fail("a name to assign to");
  }
  Target target;
  ASSIGN_OR_RETURN(target.name, ExpectName("a name to assign to"));
  if (with_namespace && TakeOperator(".")) {
    ASSIGN_OR_RETURN(target.attribute, ExpectName("an attribute's name"));
  }
  return target;
}

absl::StatusOr<Target> Parser::ParseTarget(bool with_namespace) {
  ASSIGN_OR_RETURN(Target first, ParseSingleTarget(with_namespace));
  if (!AtOperator(",")) return first;
  Target tuple;
  tuple.elements.push_back(std::move(first));
  while (TakeOperator(",")) {
    if (Current().kind != Token::Kind::kName && !AtOperator("(")) break;
    if (AtName("in")) break;
    ASSIGN_OR_RETURN(Target next, ParseSingleTarget(with_namespace));
    tuple.elements.push_back(std::move(next));
  }
  return tuple;
}

absl::Status Parser::ParseSet(Statement* statement) {
  statement->kind = Statement::Kind::kSet;
  ASSIGN_OR_RETURN(statement->target, ParseTarget(true));
  if (TakeOperator("=")) {
    ASSIGN_OR_RETURN(statement->expression, ParseTuple(true));
    return ExpectBlockEnd();
  }
  statement->kind = Statement::Kind::kSetBlock;
  if (AtOperator("|")) {
    ASSIGN_OR_RETURN(statement->expression, ParseFilters(nullptr));
  }
  RETURN_IF_ERROR(ExpectBlockEnd());
  return ParseBodyUntil("endset", &statement->body);
}

absl::Status Parser::ParseSignature(Macro* macro) {
  RETURN_IF_ERROR(ExpectOperator("("));
  while (!AtOperator(")")) {
    if (!macro->parameters.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    if (AtOperator(")") && !macro->parameters.empty()) break;
    ASSIGN_OR_RETURN(std::string name, ExpectName("a parameter's name"));
    macro->parameters.push_back(std::move(name));
    if (TakeOperator("=")) {
      ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      macro->defaults.push_back(std::move(value));
    } else if (!macro->defaults.empty()) {
      return Fail("a default, as the parameter before has one");
    }
  }
  return ExpectOperator(")");
}

absl::Status Parser::ParseMacroBody(absl::string_view end, Macro* macro) {
  Macro* const outer = macro_;
  const int32_t outer_loops = loop_depth_;
  macro_ = macro;
  loop_depth_ = 0;
  RETURN_IF_ERROR(ParseBodyUntil(end, &macro->body));
  macro_ = outer;
  loop_depth_ = outer_loops;
  return absl::OkStatus();
}

absl::Status Parser::ParseMacro(Statement* statement) {
  statement->kind = Statement::Kind::kMacro;
  statement->macro = std::make_shared<Macro>();
  statement->macro->line = statement->line;
  ASSIGN_OR_RETURN(statement->macro->name, ExpectName("the macro's name"));
  RETURN_IF_ERROR(ParseSignature(statement->macro.get()));
  RETURN_IF_ERROR(ExpectBlockEnd());
  return ParseMacroBody("endmacro", statement->macro.get());
}

absl::Status Parser::ParseCallBlock(Statement* statement) {
  statement->kind = Statement::Kind::kCallBlock;
  statement->macro = std::make_shared<Macro>();
  statement->macro->name = "caller";
  statement->macro->line = statement->line;
  if (AtOperator("(")) RETURN_IF_ERROR(ParseSignature(statement->macro.get()));
  ASSIGN_OR_RETURN(statement->expression, ParseExpression());
  if (statement->expression->kind != Expression::Kind::kCall) {
    return ErrorAt(statement->line, "expected a call in the call block");
  }
  RETURN_IF_ERROR(ExpectBlockEnd());
  return ParseMacroBody("endcall", statement->macro.get());
}

absl::Status Parser::ParseFilterBlock(Statement* statement) {
  statement->kind = Statement::Kind::kFilterBlock;
  ASSIGN_OR_RETURN(ExpressionPtr first, ParseFilter(nullptr));
  ASSIGN_OR_RETURN(statement->expression, ParseFilters(std::move(first)));
  RETURN_IF_ERROR(ExpectBlockEnd());
  return ParseBodyUntil("endfilter", &statement->body);
}

absl::Status Parser::ParseWith(Statement* statement) {
  statement->kind = Statement::Kind::kWith;
  while (Current().kind != Token::Kind::kBlockEnd) {
    if (!statement->bindings.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    ASSIGN_OR_RETURN(Target target, ParseSingleTarget(false));
    RETURN_IF_ERROR(ExpectOperator("="));
    ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    statement->bindings.emplace_back(std::move(target), std::move(value));
  }
  RETURN_IF_ERROR(ExpectBlockEnd());
  return ParseBodyUntil("endwith", &statement->body);
}

}  // namespace tandem::model::chat_template
