// Goal: a grammar accepts exactly the texts that it derives. Random small grammars are compared, on
// every text up to a length, with a recogniser that follows the definition (spans of the text by
// rule, to a fixed point). Grammars more ambiguous than the bound on threads may only lose texts.
// Examples check the syntax, and that the error names each mistake.
#include <iostream>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/guided/acceptance.h"

namespace tandem::guided {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;
constexpr auto kGrammar = request::GuidedParams::Kind::kGrammar;

// Rule i's alternatives; a symbol is a letter or, negative, rule -1 - symbol.
using Alternative = std::vector<int>;
using Grammar = std::vector<std::vector<Alternative>>;

std::string RuleName(int rule) { return rule == 0 ? "root" : absl::StrCat("r", rule); }

std::string ToText(const Grammar& grammar) {
  std::string text;
  for (size_t r = 0; r < grammar.size(); ++r) {
    std::vector<std::string> alternatives;
    for (const Alternative& alternative : grammar[r]) {
      std::string symbols;
      for (const int symbol : alternative) {
        absl::StrAppend(&symbols,
                        symbol < 0 ? RuleName(-1 - symbol)
                                   : absl::StrCat("\"", std::string(1, char(symbol)), "\""),
                        " ");
      }
      alternatives.push_back(symbols.empty() ? "\"\"" : symbols);
    }
    absl::StrAppend(&text, RuleName(static_cast<int>(r)),
                    " ::= ", absl::StrJoin(alternatives, " | "), "\n");
  }
  return text;
}

// All (rule, begin, end) for which the rule derives text[begin, end).
bool Derives(const Grammar& grammar, const std::string& text) {
  const int n = static_cast<int>(text.size());
  std::set<std::tuple<int, int, int>> spans;
  for (bool grown = true; grown;) {
    grown = false;
    for (int r = 0; r < static_cast<int>(grammar.size()); ++r) {
      for (const Alternative& alternative : grammar[r]) {
        for (int begin = 0; begin <= n; ++begin) {
          std::set<int> ends = {begin};
          for (const int symbol : alternative) {
            std::set<int> next;
            for (const int at : ends) {
              for (int end = at; end <= n; ++end) {
                const bool fits = symbol < 0 ? spans.count({-1 - symbol, at, end}) > 0
                                             : end == at + 1 && text[at] == symbol;
                if (fits) next.insert(end);
              }
            }
            ends = std::move(next);
          }
          for (const int end : ends) grown |= spans.insert({r, begin, end}).second;
        }
      }
    }
  }
  return spans.count({0, 0, n}) > 0;
}

TEST(Gbnf, AcceptsExactlyWhatRandomGrammarsDerive) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  const auto pick = [&](int count) { return static_cast<int>(random() % uint64_t(count)); };
  int compiled = 0, accepted = 0, recursive = 0, too_ambiguous = 0;
  for (int i = 0; i < 600; ++i) {
    Grammar grammar(static_cast<size_t>(1 + pick(3)));
    for (auto& alternatives : grammar) {
      alternatives.resize(static_cast<size_t>(1 + pick(3)));
      for (Alternative& alternative : alternatives) {
        for (int k = pick(4); k > 0; --k) {
          alternative.push_back(pick(3) == 0 ? -1 - pick(static_cast<int>(grammar.size()))
                                             : 'a' + pick(2));
        }
      }
    }
    SCOPED_TRACE(ToText(grammar));
    const auto acceptor = Acceptor::Create(kGrammar, ToText(grammar));
    if (!acceptor.ok()) {
      const std::string message(acceptor.status().message());
      ASSERT_TRUE(message.find("left-recursive") != message.npos ||
                  message.find("nothing can") != message.npos)
          << message;
      recursive += message.find("left-recursive") != message.npos ? 1 : 0;
      continue;
    }
    ++compiled;
    for (int length = 0; length <= 5; ++length) {
      for (int bits = 0; bits < 1 << length; ++bits) {
        std::string text;
        for (int k = 0; k < length; ++k) text.push_back((bits >> k) & 1 ? 'b' : 'a');
        const bool derives = Derives(grammar, text);
        const bool accepts = acceptor->Accepts(text);
        if (acceptor->graph().overflows() == 0) {
          EXPECT_EQ(accepts, derives) << text;
        } else {
          EXPECT_LE(accepts, derives) << text;
        }
        accepted += derives ? 1 : 0;
      }
    }
    too_ambiguous += acceptor->graph().overflows() > 0 ? 1 : 0;
  }
  std::cout << compiled << " grammars compiled, " << recursive << " left-recursive, " << accepted
            << " texts accepted, " << too_ambiguous << " grammars too ambiguous\n";
  EXPECT_GT(compiled, 150);
  EXPECT_LE(too_ambiguous, 10);
  EXPECT_GT(accepted, 500);
}

TEST(Gbnf, ReadsTheSyntaxOfLlamaCpp) {
  const std::string lines = R"g(
# Expressions, one a line
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*   # left to right
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
)g";
  ASSERT_OK_AND_ASSIGN(const Acceptor arithmetic, Acceptor::Create(kGrammar, lines));
  EXPECT_TRUE(arithmetic.Accepts("x = 3\n(a+4)*2 = b\n"));
  EXPECT_FALSE(arithmetic.Accepts("x = \n"));
  EXPECT_FALSE(arithmetic.Accepts("x = 3"));
  const std::string all = R"g(
root ::= [^\]\n] "\x41\u00e9\U0001F600\"" .{2} ("x" |
  "y"){1,2} "z"{2,} opt?
opt ::= "1" |
        "2"
)g";
  ASSERT_OK_AND_ASSIGN(const Acceptor syntax, Acceptor::Create(kGrammar, all));
  EXPECT_TRUE(syntax.Accepts("qA\xC3\xA9\xF0\x9F\x98\x80\"\xE4\xB8\xAD!xyzz"));
  EXPECT_TRUE(syntax.Accepts("qA\xC3\xA9\xF0\x9F\x98\x80\"..xzzz2"));
  EXPECT_FALSE(syntax.Accepts("]A\xC3\xA9\xF0\x9F\x98\x80\"..xzz"));
  EXPECT_FALSE(syntax.Accepts("qA\xC3\xA9\xF0\x9F\x98\x80\"..xz"));
  EXPECT_FALSE(syntax.Accepts("qA\xC3\xA9\xF0\x9F\x98\x80\"..xxxzz"));
}

TEST(Gbnf, NamesEveryMistake) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no rule root"},
      {"rule ::= \"a\"", "no rule root"},
      {"root ::= missing", "rule missing is used and not defined"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2: rule root is defined twice"},
      {"root ::= root \"a\" | \"b\"", "rule root is left-recursive"},
      {"root ::= a | \"z\"\na ::= b? root\nb ::= \"x\"", "left-recursive"},
      {"root ::= \"a\" root", "nothing can satisfy"},
      {"root ::= \"a", "no closing quote"},
      {"root ::= [a", "no ]"},
      {"root ::= (\"a\"", "no )"},
      {"root ::= \"a\"{3,1}", "the maximum is less"},
      {"root ::= \"a\"{99999}", "more than 10000"},
      {"root ::= \"a\"**", "repetition of a repetition"},
      {"root ::= \"\\q\"", "escape \\q"},
      {"root ::= <think>", "token references"},
      {"root = \"a\"", "expected ::="},
      {"root ::= \"a\" }", "unexpected }"},
      {"root ::= %json", "line 1: expected a JSON Schema as an object after %json"},
      {"root ::= %json true", "as an object after %json"},
      {"root ::= %json {\"a\": [}", "as an object after %json"},
      {"root ::= \"a\"\nb ::= %json {\"not\": {}}", "json_schema: #: not: "},
      {"root ::= %regex {}", "expected %json after %"},
      {"root ::= [b-a]", "upwards"},
      {"root ::= \"\xFF\"", "UTF-8"},
      {"root ::= ((\"a\"{9999}){9999}){9999}", ""},
  };
  for (const auto& [text, what] : cases) {
    const auto acceptor = Acceptor::Create(kGrammar, text);
    if (*what == '\0') continue;  // must only terminate
    ASSERT_FALSE(acceptor.ok()) << text;
    EXPECT_THAT(acceptor.status().message(), HasSubstr(what)) << text;
  }
}

// A schema is an element, whatever its text looks like, and each is a document of its own.
TEST(Gbnf, TakesJsonSchemas) {
  ASSERT_OK_AND_ASSIGN(const Acceptor acceptor, Acceptor::Create(kGrammar, R"g(
root ::= "<" %json {"$ref": "#/$defs/x", "$defs": {"x": {"enum": ["}\"#"]}}} ">" | list{2}
list ::= %json {"type": "array", "items": {"$ref": "#/$defs/x"},
                "$defs": {"x": {"type": "null"}}} "!"?)g"));
  EXPECT_TRUE(acceptor.Accepts(R"(<"}\"#">)"));
  EXPECT_TRUE(acceptor.Accepts("[null][null, null]!"));
  EXPECT_FALSE(acceptor.Accepts("<null>"));
  EXPECT_FALSE(acceptor.Accepts(R"(["}\"#"][])"));
}

// Each schema of a grammar has rules of its own: all count towards the one bound.
TEST(Gbnf, SchemasShareTheGrammarsBound) {
  const auto of = [](int schemas) {
    std::string text = "root ::= \"x\"";
    for (int i = 0; i < schemas; ++i) absl::StrAppend(&text, " | \"", i, "\" %json {}");
    return Acceptor::Create(kGrammar, text);
  };
  EXPECT_OK(of(100));
  EXPECT_THAT(of(10'000).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than 400000 states")));
}

TEST(Gbnf, DeepRecursionEndsInsteadOfGrowing) {
  ASSERT_OK_AND_ASSIGN(const Acceptor nested,
                       Acceptor::Create(kGrammar, "root ::= \"(\" root \")\" | \"x\""));
  EXPECT_TRUE(nested.Accepts(std::string(200, '(') + "x" + std::string(200, ')')));
  // At the nesting limit no further bracket may open, and all open ones can close.
  std::string open;
  while (nested.Begins(open + "(") && open.size() < 10000) open += "(";
  EXPECT_LE(open.size(), static_cast<size_t>(kNestingMax));
  EXPECT_TRUE(nested.Accepts(open + "x" + std::string(open.size(), ')')));
  // Tail calls do not nest.
  ASSERT_OK_AND_ASSIGN(const Acceptor list,
                       Acceptor::Create(kGrammar, "root ::= \"a\" | \"a,\" root"));
  std::string items = "a";
  for (int i = 0; i < 5000; ++i) items += ",a";
  EXPECT_TRUE(list.Accepts(items));
  EXPECT_LT(list.graph().size(), 20u);
}

// Repetitions of the empty text cost nothing. A grammar that begins in more ways than kThreadsMax
// is rejected when it is compiled, not when it is used.
TEST(Gbnf, EmptyRepetitionsCollapseAndAmbiguousStartsAreRefused) {
  for (const char* grammar :
       {"root ::= \"\"{10000} \"ab\"", "e ::= \"\" | \"\" \"\"\nroot ::= e{5000} \"ab\" e{5000}",
        "root ::= (\"\"{90} \"\"?){90} \"ab\" (\"\"*)*"}) {
    ASSERT_OK_AND_ASSIGN(const auto accepts, Acceptor::Create(kGrammar, grammar));
    EXPECT_TRUE(accepts.Accepts("ab")) << grammar;
    EXPECT_FALSE(accepts.Accepts("")) << grammar;
    EXPECT_FALSE(accepts.Begins("abb")) << grammar;
    EXPECT_EQ(accepts.graph().overflows(), 0) << grammar;
  }
  ASSERT_OK_AND_ASSIGN(const auto nothing, Acceptor::Create(kGrammar, "root ::= \"\"{1203}"));
  EXPECT_TRUE(nothing.Accepts(""));
  EXPECT_FALSE(nothing.Begins("a"));
  ASSERT_OK_AND_ASSIGN(const auto some, Acceptor::Create(kGrammar, "root ::= (\"a\"?){300}"));
  EXPECT_TRUE(some.Accepts(std::string(300, 'a')));
  EXPECT_FALSE(some.Begins(std::string(301, 'a')));
  const absl::Status many = Acceptor::Create(kGrammar, "root ::= (\"a\"?){1100}").status();
  EXPECT_EQ(many.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(many.message(), HasSubstr("too ambiguous"));
  const absl::Status edges = Acceptor::Create(kGrammar, "root ::= (\"a\"?){3000}").status();
  EXPECT_EQ(edges.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(edges.message(), HasSubstr("edges"));
}

}  // namespace
}  // namespace tandem::guided
