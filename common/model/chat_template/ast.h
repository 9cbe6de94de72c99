// A parsed template. Thread safety: nodes are immutable after parsing; any thread may read them.
// Owner: ChatTemplate. Invariant: depth is at most TemplateLimits::parse_depth_max, so recursive
// walks are safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/model/chat_template/value.h"

namespace tandem::model::chat_template {

struct Filter;
struct Test;
struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

// The arguments of a call, filter or test.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr star;       // *args
  ExpressionPtr star_star;  // **kwargs
};

struct Expression {
  enum class Kind {
    kConstant,     // constant
    kName,         // name
    kList,         // children
    kTuple,        // children
    kDict,         // children: key, value, key, value, …
    kAttribute,    // children[0] . name
    kItem,         // children[0] [ children[1] ]
    kSlice,        // children[0] [ children[1] : children[2] : children[3] ], each may be null
    kCall,         // children[0] ( arguments )
    kFilter,       // children[0] | name ( arguments ); children[0] is null in a filter block
    kTest,         // children[0] is name ( arguments )
    kNot,          // children[0]
    kNegative,     // children[0]
    kPositive,     // children[0]
    kAnd,          // children[0], children[1]
    kOr,           // children[0], children[1]
    kBinary,       // children[0] name children[1]; name is + - * / // % **
    kConcat,       // children, joined as text
    kCompare,      // children[0] operators[0] children[1] operators[1] …
    kConditional,  // children[1] if children[0] else children[2] (may be null)
  };
  Kind kind = Kind::kConstant;
  int line = 1;
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> children;
  std::vector<std::string> operators;  // == != < <= > >= in "not in"
  CallArguments arguments;
  const Filter* filter = nullptr;  // null: unknown, an error if evaluated
  const Test* test = nullptr;
};

// What an assignment writes to: a name, a namespace's attribute, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;  // of namespace `name`; empty for a plain name
  std::vector<Target> elements;
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

// A macro, a call block or a generation block: something with parameters and a body.
struct Macro {
  std::string name;
  int line = 1;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Body body;
  // Whether the body names these; only then a caller may pass them.
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};

struct Statement {
  enum class Kind {
    kData,         // text
    kOutput,       // expression
    kIf,           // expression, body, otherwise
    kFor,          // target in expression [if condition], body, otherwise
    kSet,          // target = expression
    kSetBlock,     // target = body, through filter chain `expression` if not null
    kMacro,        // macro
    kCallBlock,    // expression (a call) with macro as caller
    kFilterBlock,  // expression (filters around a null operand) over body
    kWith,         // bindings, body
    kScope,        // body in a new scope: a generation block
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kData;
  int line = 1;
  std::string text;
  Target target;
  ExpressionPtr expression;
  ExpressionPtr condition;
  Body body;
  Body otherwise;
  std::vector<std::pair<Target, ExpressionPtr>> bindings;
  std::shared_ptr<Macro> macro;
};

struct Template {
  Body body;
};

}  // namespace tandem::model::chat_template
