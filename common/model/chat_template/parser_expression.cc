// Implements the expressions of Parser (common/model/chat_template/parser.h). parser.cc has the
// statements.
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/filters.h"
#include "common/model/chat_template/parser.h"

namespace tandem::model::chat_template {

absl::Status UnknownNameError(absl::string_view what, const Expression& node) {
  return ErrorAt(node.line, absl::StrCat("there is no ", what, " named '", node.name, "'"));
}

ExpressionPtr Parser::Make(Expression::Kind kind) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = Current().line;
  return node;
}

// `a, b` without brackets; `with_condition` lets the elements be `x if y else z`.
Parser::Result Parser::ParseTuple(bool with_condition) {
  const auto element = [&] { return with_condition ? ParseExpression() : ParseOr(); };
  ExpressionPtr tuple = Make(Expression::Kind::kTuple);
  ASSIGN_OR_RETURN(ExpressionPtr first, element());
  if (!AtOperator(",")) return first;
  tuple->children.push_back(std::move(first));
  while (TakeOperator(",")) {
    const Token::Kind kind = Current().kind;
    if (kind == Token::Kind::kVariableEnd || kind == Token::Kind::kBlockEnd || AtOperator(")")) {
      break;
    }
    ASSIGN_OR_RETURN(ExpressionPtr next, element());
    tuple->children.push_back(std::move(next));
  }
  return tuple;
}

Parser::Result Parser::ParseExpression() {
  const Nested nested(*this);
  RETURN_IF_ERROR(CheckDepth());
  const size_t unknown_before = unknown_.size();
  ASSIGN_OR_RETURN(ExpressionPtr value, ParseOr());
  int32_t chained = 0;
  while (AtName("if")) {
    ++chained;
    ++depth_;
    RETURN_IF_ERROR(CheckDepth());
    ExpressionPtr node = Make(Expression::Kind::kConditional);
    Next();
    // Code behind a condition may never run, so an unknown name there is not an error yet.
    unknown_.resize(unknown_before);
    ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
    const size_t unknown_after = unknown_.size();
    ExpressionPtr otherwise;
    if (TakeName("else")) {
      ASSIGN_OR_RETURN(otherwise, ParseExpression());
    }
    unknown_.resize(unknown_after);
    node->children.push_back(std::move(condition));
    node->children.push_back(std::move(value));
    node->children.push_back(std::move(otherwise));
    value = std::move(node);
  }
  depth_ -= chained;
  return value;
}

Parser::Result Parser::ParseOr() {
  const Nested nested(*this);
  RETURN_IF_ERROR(CheckDepth());
  ExpressionPtr node = Make(Expression::Kind::kOr);
  do {
    ASSIGN_OR_RETURN(ExpressionPtr operand, ParseAnd());
    node->children.push_back(std::move(operand));
  } while (TakeName("or"));
  if (node->children.size() == 1) return std::move(node->children[0]);
  return node;
}

Parser::Result Parser::ParseAnd() {
  ExpressionPtr node = Make(Expression::Kind::kAnd);
  do {
    ASSIGN_OR_RETURN(ExpressionPtr operand, ParseNot());
    node->children.push_back(std::move(operand));
  } while (TakeName("and"));
  if (node->children.size() == 1) return std::move(node->children[0]);
  return node;
}

Parser::Result Parser::ParseNot() {
  if (!AtName("not")) return ParseCompare();
  const Nested nested(*this);
  RETURN_IF_ERROR(CheckDepth());
  ExpressionPtr node = Make(Expression::Kind::kNot);
  Next();
  ASSIGN_OR_RETURN(ExpressionPtr operand, ParseNot());
  node->children.push_back(std::move(operand));
  return node;
}

Parser::Result Parser::ParseCompare() {
  ExpressionPtr node = Make(Expression::Kind::kCompare);
  ASSIGN_OR_RETURN(ExpressionPtr first, ParseSum());
  node->children.push_back(std::move(first));
  for (;;) {
    std::string op;
    for (const char* candidate : {"==", "!=", "<", "<=", ">", ">="}) {
      if (AtOperator(candidate)) op = candidate;
    }
    if (!op.empty()) {
      Next();
    } else if (TakeName("in")) {
      op = "in";
    } else if (AtName("not") && Ahead(1).kind == Token::Kind::kName && Ahead(1).text == "in") {
      Next();
      Next();
      op = "not in";
    } else {
      break;
    }
    ASSIGN_OR_RETURN(ExpressionPtr operand, ParseSum());
    node->operators.push_back(std::move(op));
    node->children.push_back(std::move(operand));
  }
  if (node->operators.empty()) return std::move(node->children[0]);
  return node;
}

Parser::Result Parser::ParseBinary(Rule operand, const std::vector<absl::string_view>& operators) {
  ASSIGN_OR_RETURN(ExpressionPtr left, (this->*operand)());
  int32_t chained = 0;
  for (;;) {
    absl::string_view op;
    for (const absl::string_view candidate : operators) {
      if (AtOperator(candidate)) op = candidate;
    }
    if (op.empty()) {
      depth_ -= chained;
      return left;
    }
    // A chain nests to the left: a + b + c is (a + b) + c.
    ++chained;
    ++depth_;
    RETURN_IF_ERROR(CheckDepth());
    ExpressionPtr node = Make(Expression::Kind::kBinary);
    node->name = std::string(op);
    Next();
    ASSIGN_OR_RETURN(ExpressionPtr right, (this->*operand)());
    node->children.push_back(std::move(left));
    node->children.push_back(std::move(right));
    left = std::move(node);
  }
}

Parser::Result Parser::ParseSum() { return ParseBinary(&Parser::ParseConcat, {"+", "-"}); }
Parser::Result Parser::ParseProduct() {
  return ParseBinary(&Parser::ParsePower, {"*", "/", "//", "%"});
}

Parser::Result Parser::ParseConcat() {
  ExpressionPtr node = Make(Expression::Kind::kConcat);
  do {
    ASSIGN_OR_RETURN(ExpressionPtr part, ParseProduct());
    node->children.push_back(std::move(part));
  } while (TakeOperator("~"));
  if (node->children.size() == 1) return std::move(node->children[0]);
  return node;
}

Parser::Result Parser::ParsePower() { return ParseBinary(&Parser::ParseFilteredUnary, {"**"}); }
Parser::Result Parser::ParseFilteredUnary() { return ParseUnary(true); }

Parser::Result Parser::ParseUnary(bool with_filter) {
  const Nested nested(*this);
  RETURN_IF_ERROR(CheckDepth());
  ExpressionPtr node;
  if (AtOperator("-") || AtOperator("+")) {
    node = Make(AtOperator("-") ? Expression::Kind::kNegative : Expression::Kind::kPositive);
    Next();
    ASSIGN_OR_RETURN(ExpressionPtr operand, ParseUnary(false));
    node->children.push_back(std::move(operand));
  } else {
    ASSIGN_OR_RETURN(node, ParsePrimary());
  }
  ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
  if (with_filter) return ParseFilters(std::move(node));
  return node;
}

Parser::Result Parser::ParsePrimary() {
  ExpressionPtr node = Make(Expression::Kind::kConstant);
  const Token& token = Current();
  switch (token.kind) {
    case Token::Kind::kName:
      if (token.text == "true" || token.text == "True") {
        node->constant = Value(true);
      } else if (token.text == "false" || token.text == "False") {
        node->constant = Value(false);
      } else if (token.text != "none" && token.text != "None") {
        node->kind = Expression::Kind::kName;
        node->name = token.text;
        if (macro_ != nullptr) {
          macro_->uses_varargs |= token.text == "varargs";
          macro_->uses_kwargs |= token.text == "kwargs";
          macro_->uses_caller |= token.text == "caller";
        }
      }
      Next();
      return node;
    case Token::Kind::kText: {
      std::string text;
      for (; Current().kind == Token::Kind::kText; Next()) text += Current().text;
      node->constant = Value(std::move(text));
      return node;
    }
    case Token::Kind::kInteger:
      node->constant = Value(token.integer);
      Next();
      return node;
    case Token::Kind::kDouble:
      node->constant = Value(token.real);
      Next();
      return node;
    default:
      if (AtOperator("(")) return ParseParenthesised();
      if (AtOperator("[")) return ParseListLiteral();
      if (AtOperator("{")) return ParseDictLiteral();
      return Fail("an expression");
  }
}

Parser::Result Parser::ParseParenthesised() {
  ExpressionPtr empty = Make(Expression::Kind::kTuple);
  Next();
  if (TakeOperator(")")) return empty;
  ASSIGN_OR_RETURN(ExpressionPtr node, ParseTuple(true));
  RETURN_IF_ERROR(ExpectOperator(")"));
  return node;
}

Parser::Result Parser::ParseListLiteral() {
  ExpressionPtr node = Make(Expression::Kind::kList);
  Next();
  while (!AtOperator("]")) {
    if (!node->children.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    if (AtOperator("]")) break;
    ASSIGN_OR_RETURN(ExpressionPtr item, ParseExpression());
    node->children.push_back(std::move(item));
  }
  Next();
  return node;
}

Parser::Result Parser::ParseDictLiteral() {
  ExpressionPtr node = Make(Expression::Kind::kDict);
  Next();
  while (!AtOperator("}")) {
    if (!node->children.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    if (AtOperator("}")) break;
    ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
    RETURN_IF_ERROR(ExpectOperator(":"));
    ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    node->children.push_back(std::move(key));
    node->children.push_back(std::move(value));
  }
  Next();
  return node;
}

Parser::Result Parser::ParsePostfix(ExpressionPtr node) {
  int32_t chained = 0;
  while (AtOperator(".") || AtOperator("[") || AtOperator("(")) {
    ++chained;
    ++depth_;
    RETURN_IF_ERROR(CheckDepth());
    ASSIGN_OR_RETURN(
        node, AtOperator("(") ? ParseCall(std::move(node)) : ParseSubscript(std::move(node)));
  }
  depth_ -= chained;
  return node;
}

Parser::Result Parser::ParseFilters(ExpressionPtr node) {
  int32_t chained = 0;
  while (AtOperator("|") || AtName("is") || AtOperator("(")) {
    ++chained;
    ++depth_;
    RETURN_IF_ERROR(CheckDepth());
    if (TakeOperator("|")) {
      ASSIGN_OR_RETURN(node, ParseFilter(std::move(node)));
    } else if (AtName("is")) {
      ASSIGN_OR_RETURN(node, ParseTest(std::move(node)));
    } else {
      ASSIGN_OR_RETURN(node, ParseCall(std::move(node)));
    }
  }
  depth_ -= chained;
  return node;
}

void Parser::CheckKnown(bool known, absl::string_view what, const Expression& node) {
  if (known || conditional_depth_ > 0) return;
  unknown_.push_back(UnknownNameError(what, node));
}

Parser::Result Parser::ParseFilter(ExpressionPtr operand) {
  ExpressionPtr node = Make(Expression::Kind::kFilter);
  ASSIGN_OR_RETURN(node->name, ExpectName("a filter's name"));
  node->filter = FindFilter(node->name);
  CheckKnown(node->filter != nullptr, "filter", *node);
  node->children.push_back(std::move(operand));
  if (AtOperator("(")) RETURN_IF_ERROR(ParseArguments(&node->arguments));
  return node;
}

Parser::Result Parser::ParseTest(ExpressionPtr operand) {
  ExpressionPtr node = Make(Expression::Kind::kTest);
  Next();
  const bool negated = TakeName("not");
  ASSIGN_OR_RETURN(node->name, ExpectName("a test's name"));
  node->test = FindTest(node->name);
  CheckKnown(node->test != nullptr, "test", *node);
  node->children.push_back(std::move(operand));
  const Token::Kind kind = Current().kind;
  if (AtOperator("(")) {
    RETURN_IF_ERROR(ParseArguments(&node->arguments));
  } else if ((kind == Token::Kind::kName && !AtName("else") && !AtName("or") && !AtName("and")) ||
             kind == Token::Kind::kText || kind == Token::Kind::kInteger ||
             kind == Token::Kind::kDouble || AtOperator("[") || AtOperator("{")) {
    if (AtName("is")) return Fail("one test only");
    ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
    ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    node->arguments.positional.push_back(std::move(argument));
  }
  if (!negated) return node;
  ExpressionPtr inverse = Make(Expression::Kind::kNot);
  inverse->line = node->line;
  inverse->children.push_back(std::move(node));
  return inverse;
}

Parser::Result Parser::ParseSubscript(ExpressionPtr operand) {
  ExpressionPtr node = Make(Expression::Kind::kItem);
  node->children.push_back(std::move(operand));
  if (TakeOperator(".")) {
    if (Current().kind == Token::Kind::kInteger) {
      ASSIGN_OR_RETURN(ExpressionPtr index, ParsePrimary());
      node->children.push_back(std::move(index));
      return node;
    }
    node->kind = Expression::Kind::kAttribute;
    ASSIGN_OR_RETURN(node->name, ExpectName("an attribute's name"));
    return node;
  }
  Next();
  ExpressionPtr start, stop, step;
  if (!AtOperator(":")) {
    ASSIGN_OR_RETURN(start, ParseExpression());
  }
  if (TakeOperator("]")) {
    node->children.push_back(std::move(start));
    return node;
  }
  if (AtOperator(",")) return Fail("']' (an index has one part)");
  RETURN_IF_ERROR(ExpectOperator(":"));
  node->kind = Expression::Kind::kSlice;
  if (!AtOperator(":") && !AtOperator("]")) {
    ASSIGN_OR_RETURN(stop, ParseExpression());
  }
  if (TakeOperator(":") && !AtOperator("]")) {
    ASSIGN_OR_RETURN(step, ParseExpression());
  }
  RETURN_IF_ERROR(ExpectOperator("]"));
  node->children.push_back(std::move(start));
  node->children.push_back(std::move(stop));
  node->children.push_back(std::move(step));
  return node;
}

Parser::Result Parser::ParseCall(ExpressionPtr callee) {
  ExpressionPtr node = Make(Expression::Kind::kCall);
  node->children.push_back(std::move(callee));
  RETURN_IF_ERROR(ParseArguments(&node->arguments));
  return node;
}

absl::Status Parser::ParseArguments(CallArguments* arguments) {
  Next();
  bool first = true;
  while (!AtOperator(")")) {
    if (!first) RETURN_IF_ERROR(ExpectOperator(","));
    first = false;
    if (AtOperator(")")) break;
    if (arguments->star_star != nullptr) return Fail("')' after '**'");
    if (TakeOperator("**")) {
      ASSIGN_OR_RETURN(arguments->star_star, ParseExpression());
    } else if (arguments->star == nullptr && TakeOperator("*")) {
      ASSIGN_OR_RETURN(arguments->star, ParseExpression());
    } else if (Current().kind == Token::Kind::kName && Ahead(1).kind == Token::Kind::kOperator &&
               Ahead(1).text == "=") {
      std::string name = Current().text;
      Next();
      Next();
      ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      arguments->named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!arguments->named.empty() || arguments->star != nullptr) {
        return Fail("a named argument after a named one");
      }
      ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      arguments->positional.push_back(std::move(value));
    }
  }
  Next();
  return absl::OkStatus();
}

}  // namespace tandem::model::chat_template
