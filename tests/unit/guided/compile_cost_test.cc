// Goal: what one constraint costs to compile is bounded, whatever a client writes. Hostile
// constraints of every kind are refused, or compile, within the budget of steps; what clients
// really send takes a small part of it; and a class of Unicode costs its ranges once.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/guided/compile.h"
#include "common/guided/regex.h"
#include "tests/testing/status_matchers.h"

namespace tandem::guided {
namespace {

using request::GuidedParams;
using Kind = GuidedParams::Kind;
using ::testing::HasSubstr;

GuidedParams Params(Kind kind, std::string text) {
  GuidedParams params;
  params.kind = kind;
  params.text = std::move(text);
  return params;
}

std::string Repeat(absl::string_view text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) absl::StrAppend(&all, text);
  return all;
}

struct Case {
  const char* name;
  GuidedParams params;
};

// Expressions, schemas and grammars of the largest size that are as costly as we know how.
void AddHostileExpressions(std::vector<Case>& cases) {
  const auto regex = [&](const char* name, std::string text) {
    cases.push_back({name, Params(Kind::kRegex, std::move(text))});
  };
  regex("letters", Repeat("\\p{L}", 13000));
  regex("not letters", Repeat("\\P{L}", 13000));
  regex("letters of any case", "(?i)" + Repeat("\\p{L}", 13000));
  regex("classes of letters", Repeat("[\\p{L}\\p{N}]", 5000));
  regex("one class of letters", "[" + Repeat("\\p{L}", 13000) + "]");
  regex("letters counted", "\\p{L}{90000}");
  regex("letters or not", "(" + Repeat("\\p{L}|\\P{N}|", 5000) + "x)*y");
  regex("exponential", "(a|b)*a(a|b){14}");
  regex("exponential over letters", "(\\p{L}|\\p{N})*\\p{L}(\\p{L}|\\p{N}){13}");
  regex("empty loops", "((((){100000}){100000}){100000}){100000}");
  std::string classes;
  for (int i = 0; i < 3000; ++i)
    absl::StrAppend(&classes, "[\\u{1000}-\\u{", absl::Hex(0x1001 + i), "}]");
  regex("overlapping classes", classes);
  regex("nested counts", "((((a?){50}){50}){50}){50}");
  regex("optional run", Repeat("a?", 9900));
}

void AddHostileSchemas(std::vector<Case>& cases) {
  const auto schema = [&](const char* name, std::string text) {
    cases.push_back({name, Params(Kind::kJsonSchema, std::move(text))});
  };
  schema("pattern of letters",
         absl::StrCat(R"({"type":"string","pattern":")", Repeat("\\\\p{L}", 10000), "\"}"));
  std::vector<std::string> patterns;
  for (int i = 0; i < 6; ++i)
    patterns.push_back(absl::StrCat("\"(a|b)*", i, "(\\\\p{L}|b){9}\": {}"));
  schema("patternProperties", absl::StrCat(R"({"type":"object","patternProperties":{)",
                                           absl::StrJoin(patterns, ","), "}}"));
  std::vector<std::string> words, consts;
  for (int i = 0; i < 20000; ++i) words.push_back(absl::StrCat("\"w", i * 7919, "\""));
  schema("large enum", absl::StrCat(R"({"enum":[)", absl::StrJoin(words, ","), "]}"));
  for (int i = 0; i < 250; ++i)
    consts.push_back(absl::StrCat(R"({"type":"object","properties":{"k":{"const":)", i,
                                  R"(},"v":{"type":"string"}},"required":["k"]})"));
  schema("oneOf of many", absl::StrCat(R"({"oneOf":[)", absl::StrJoin(consts, ","), "]}"));
  schema("anyOf of anyOf",
         R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"$ref":"#/$defs/b"}]},)"
         R"("b":{"anyOf":[{"$ref":"#/$defs/c"},{"$ref":"#/$defs/c"}]},)"
         R"("c":{"anyOf":[{"$ref":"#/$defs/d"},{"$ref":"#/$defs/d"}]},"d":{"minLength":3}},)"
         R"("allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"}]})");
  // As a request with "tool_choice": "required" has it, with as many tools as one place may have.
  std::vector<std::string> tools, values;
  for (int i = 0; i < 100; ++i) values.push_back(absl::StrCat("\"v", i * 7919, "\""));
  for (int i = 0; i < 256; ++i)
    tools.push_back(
        absl::StrCat(R"({"type":"object","properties":{"name":{"type":"string","enum":["t)", i,
                     R"("]},"parameters":{"type":"object","properties":{"a":{"enum":[)",
                     absl::StrJoin(absl::MakeConstSpan(values).subspan(i % 20, 70), ","),
                     R"(]}}}},"required":["name","parameters"],"additionalProperties":false})"));
  schema("tools", absl::StrCat(R"({"type":"array","minItems":1,"items":{"anyOf":[)",
                               absl::StrJoin(tools, ","), "]}}"));
  std::vector<std::string> members;
  for (int i = 0; i < 20000; ++i) members.push_back(absl::StrCat("\"m", i, "\":{}"));
  schema("many members", absl::StrCat("{", absl::StrJoin(members, ","), "}"));
  schema("enum in every branch",
         absl::StrCat(R"({"enum":[)", absl::StrJoin(words, ","), R"(],"allOf":[)",
                      Repeat("{\"minLength\":1},", 300), "{}]}"));
}

std::vector<std::string> Names(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(absl::StrCat("\"n", i, "\""));
  return names;
}

// A pattern of "zzz…" whose automaton looks at 60 edges for each z. For a JSON string.
std::string ManyEdges() {
  std::string pattern = "^(?:";
  for (int i = 0; i < 60; ++i) absl::StrAppend(&pattern, "\\\\u", absl::Hex(0x4E00 + i), "x|");
  return pattern + "z)*$";
}

// `def` in as many branches or layers as `count`.
std::string Referred(absl::string_view keyword, int count, absl::string_view def) {
  const std::string references = Repeat(R"({"$ref":"#/$defs/d"},)", count);
  return absl::StrCat(R"({"$defs":{"d":)", def, R"(},")", keyword, "\":[", references,
                      R"({"$ref":"#/$defs/d"}]})");
}

// What each of many places repeats: names, values, and the looking for both.
void AddHostileRepetitions(std::vector<Case>& cases) {
  const auto schema = [&](const char* name, std::string text) {
    cases.push_back({name, Params(Kind::kJsonSchema, std::move(text))});
  };
  const auto required = [](int count) {
    return absl::StrCat(R"({"required":[)", absl::StrJoin(Names(count), ","), "]}");
  };
  schema("required in branches", Referred("anyOf", 200, required(2000)));
  schema("required beyond its bound", Referred("anyOf", 200, required(20000)));
  schema("required in layers", Referred("allOf", 5000, required(2000)));
  const std::string members = absl::StrCat("{", absl::StrJoin(Names(1000), ":{},"), ":{}}");
  schema("properties in layers",
         Referred("allOf", 5000, absl::StrCat(R"({"properties":)", members, "}")));
  schema("disjoint by many names",
         absl::StrCat(R"({"oneOf":[)", required(2000), ",", required(1999), "]}"));
  schema("long value in branches",
         Referred("anyOf", 200, absl::StrCat(R"({"const":")", Repeat("x", 200000), "\"}")));
  schema("long value in layers",
         Referred("allOf", 2000, absl::StrCat(R"({"const":")", Repeat("x", 200000), "\"}")));
  schema("long type in layers",
         Referred("allOf", 4000,
                  absl::StrCat(R"({"type":[)", Repeat("\"null\",", 15000), R"("null"]})")));
  // Each property has a rule, and each rule a place in the document.
  std::vector<std::string> objects;
  for (int i = 0; i < 10; ++i)
    objects.push_back(absl::StrCat("\"o", i, R"(":{"properties":)", members, "}"));
  schema("rules of a large document",
         absl::StrCat(R"({"properties":{)", absl::StrJoin(objects, ","), "}}"));
  schema("long name in branches",
         Referred("anyOf", 4,
                  absl::StrCat(R"({"type":"object","required":[")", Repeat("z", 200000),
                               R"("],"propertyNames":{"pattern":")", ManyEdges(), "\"}}")));
  std::vector<std::string> defs, references;
  for (int i = 0; i < 4000; ++i) {
    defs.push_back(absl::StrCat("\"d", i, "\":{}"));
    references.push_back(absl::StrCat(R"({"$ref":"#/$defs/d)", i, "\"}"));
  }
  schema("references", absl::StrCat(R"({"$defs":{)", absl::StrJoin(defs, ","), R"(},"allOf":[)",
                                    absl::StrJoin(references, ","), "]}"));
}

void AddHostileGrammars(std::vector<Case>& cases) {
  const auto grammar = [&](const char* name, std::string text) {
    cases.push_back({name, Params(Kind::kGrammar, std::move(text))});
  };
  grammar("counted class", "root ::= [a-z]{10000}");
  grammar("counted rules", "root ::= a{10000}\na ::= b{100}\nb ::= \"x\" | \"y\"");
  grammar("many alternatives", "root ::= \"a\" " + Repeat("| \"b\" ", 40000));
  std::string chain;
  for (int i = 0; i < 8000; ++i) absl::StrAppend(&chain, "r", i, " ::= r", i + 1, " | \"x\"\n");
  grammar("chain of rules", "root ::= r0\n" + chain + "r8000 ::= \"y\"");
  std::string empties;
  for (int i = 0; i < 4000; ++i) absl::StrAppend(&empties, "r", i, "? ");
  std::string rules;
  for (int i = 0; i < 4000; ++i) absl::StrAppend(&rules, "r", i, " ::= \"x\"\n");
  grammar("optional rules", "root ::= " + empties + "\n" + rules);
}

std::vector<Case> Hostile() {
  std::vector<Case> cases;
  AddHostileExpressions(cases);
  AddHostileSchemas(cases);
  AddHostileRepetitions(cases);
  AddHostileGrammars(cases);
  return cases;
}

// The compiler looks at its budget between loops over one state, not inside each.
constexpr int64_t kOvershootMax = CompileBudget::kStepsMax / 20;

TEST(CompileCost, HostileConstraintsStayWithinTheBudget) {
  for (const Case& c : Hostile()) {
    CompileBudget budget;
    const absl::StatusOr<Program> program = Compile(c.params, /*token_bytes_max=*/16, budget);
    std::printf("%-28s %9ld steps  %s\n", c.name, static_cast<long>(budget.steps()),
                std::string(program.status().message().substr(0, 100)).c_str());
    EXPECT_LE(budget.steps(), CompileBudget::kStepsMax + kOvershootMax) << c.name;
    if (program.ok()) continue;
    EXPECT_EQ(program.status().code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_FALSE(program.status().message().empty()) << c.name;
  }
}

TEST(CompileCost, ABudgetEndsCompilingWhereItIsSpent) {
  for (const Case& c : Hostile()) {
    CompileBudget whole;
    const absl::StatusOr<Program> program = Compile(c.params, /*token_bytes_max=*/16, whole);
    if (!program.ok()) continue;
    CompileBudget enough(whole.steps());
    EXPECT_OK(Compile(c.params, 16, enough).status()) << c.name;
    CompileBudget half(whole.steps() / 2);
    const absl::Status refused = Compile(c.params, 16, half).status();
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat("takes more than ", whole.steps() / 2, " steps")))
        << c.name;
    EXPECT_LE(half.steps(), whole.steps() / 2 + kOvershootMax) << c.name;
  }
}

TEST(CompileCost, OrdinaryConstraintsTakeATenthOfTheBudget) {
  std::vector<std::string> properties, names;
  for (int i = 0; i < 100; ++i) {
    properties.push_back(absl::StrCat(
        "\"property_", i, R"(": {"anyOf": [{"type": "integer"}, {"type": "array", "items":)",
        R"({"type": "string", "pattern": "^[a-z]+$"}}, {"enum": ["red", "green"]}]})"));
    names.push_back(absl::StrCat("\"property_", i, "\""));
  }
  const std::vector<Case> ordinary = {
      {"100 properties",
       Params(Kind::kJsonSchema,
              absl::StrCat(R"({"type": "object", "properties": {)", absl::StrJoin(properties, ","),
                           R"(}, "required": [)", absl::StrJoin(names, ","),
                           R"(], "additionalProperties": false})"))},
      {"any JSON", Params(Kind::kJsonObject, "")},
      {"date", Params(Kind::kRegex, R"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z)")},
      {"sentence", Params(Kind::kRegex, R"(\p{L}+(,? \p{L}+){3,40}[.!?])")},
  };
  for (const Case& c : ordinary) {
    CompileBudget budget;
    EXPECT_OK(Compile(c.params, /*token_bytes_max=*/16, budget).status()) << c.name;
    std::printf("%-28s %9ld steps\n", c.name, static_cast<long>(budget.steps()));
    EXPECT_LE(budget.steps(), CompileBudget::kStepsMax / 10) << c.name;
  }
}

// The parser compares each name with those before it.
TEST(CompileCost, TheMembersOfASchemaAreChargedBeforeTheyAreRead) {
  std::vector<std::string> members;
  const auto steps = [&](int count) {
    while (static_cast<int>(members.size()) < count)
      members.push_back(absl::StrCat("\"m", members.size(), "\":{}"));
    CompileBudget budget;
    const std::string schema =
        absl::StrCat(R"({"type":"object","default":{)", absl::StrJoin(members, ","), "}}");
    const absl::Status status =
        Compile(Params(Kind::kJsonSchema, schema), /*token_bytes_max=*/16, budget).status();
    EXPECT_EQ(status.ok(), !budget.exceeded()) << status;
    return budget.steps();
  };
  EXPECT_GE(steps(5000), 5000 * 5000 / 8 - 5000);
  EXPECT_LE(steps(5000), CompileBudget::kStepsMax / 5);
  EXPECT_GT(steps(20000), CompileBudget::kStepsMax);
}

int64_t StepsOfSchema(const std::string& schema) {
  CompileBudget budget;
  EXPECT_OK(Compile(Params(Kind::kJsonSchema, schema), 16, budget).status());
  return budget.steps();
}

TEST(CompileCost, RequiredNamesAreBoundedAndCharged) {
  const auto required = [](int count) {
    return absl::StrCat(R"({"type":"string","required":[)", absl::StrJoin(Names(count), ","), "]}");
  };
  EXPECT_GE(StepsOfSchema(required(2000)), 2000);
  EXPECT_GE(StepsOfSchema(Referred("anyOf", 200, required(2000))), 200 * 2 * 2000);
  CompileBudget budget;
  const absl::Status refused =
      Compile(Params(Kind::kJsonSchema, required(2001)), 16, budget).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("required: more than 2000 different names"));
  EXPECT_LT(budget.steps(), 10 * 2001);
}

// A name is looked for among all others of its object: a reference's once, however often it is
// used.
TEST(CompileCost, AReferenceIsLookedForOnce) {
  const auto steps = [](int definitions, int references) {
    const std::string defs = absl::StrJoin(Names(definitions), ":{},");
    return StepsOfSchema(absl::StrCat(R"({"$defs":{)", defs, R"(:{},"d":{}},"allOf":[)",
                                      Repeat(R"({"$ref":"#/$defs/d"},)", references), "{}]}"));
  };
  const int64_t one = steps(2000, 1);
  EXPECT_GE(one - steps(2000, 0), 2000 / 4);
  EXPECT_LE(steps(2000, 1000) - one, 1000 * 20);
}

// Values and names that schemas look for in others are charged: those of a list of constants, and
// the properties of each layer of an object.
TEST(CompileCost, ComparisonsAreCharged) {
  const std::string text = Repeat("x", 32000);
  EXPECT_GE(StepsOfSchema(Referred("allOf", 100, absl::StrCat(R"({"const":")", text, "\"}"))),
            100 * 32000 / 32);
  const std::string members = absl::StrCat("{", absl::StrJoin(Names(1000), ":{},"), ":{}}");
  const std::string object = absl::StrCat(R"({"properties":)", members, "}");
  EXPECT_GE(StepsOfSchema(Referred("allOf", 20, object)) - StepsOfSchema(object),
            20 * 1000 * 1000 / 4);
}

// A text that an automaton reads is charged its code points and the edges looked at: a name that
// propertyNames forbids, one of a value, and a value. Nothing else is made of these texts.
TEST(CompileCost, WhatAutomataReadIsCharged) {
  const auto steps = [](absl::string_view before, int size, const std::string& after) {
    return StepsOfSchema(absl::StrCat(R"({"anyOf":[{"const":1},{"type":["object","string"],)",
                                      before, Repeat("z", size), after, "}]}"));
  };
  const auto longer = [&](absl::string_view before, const std::string& after) {
    return steps(before, 200000, after) - steps(before, 10000, after);
  };
  EXPECT_GE(longer(R"("required":[")", R"("],"propertyNames":{"pattern":"^z*x$"})"), 190000);
  EXPECT_GE(longer(R"("const":{")", R"(":1},"patternProperties":{"^z*$":{"type":"null"}})"),
            190000);
  const auto edges = [&](absl::string_view before, absl::string_view after) {
    const std::string rest = absl::StrReplaceAll(after, {{"ONLY", ManyEdges()}});
    return steps(before, 11000, rest) - steps(before, 1000, rest);
  };
  EXPECT_GE(edges(R"("required":[")", R"(x"],"propertyNames":{"pattern":"ONLY"})"), 10000 * 60);
  EXPECT_GE(edges(R"("const":{")", R"(":1},"patternProperties":{"ONLY":{"type":"null"}})"),
            10000 * 60);
  EXPECT_GE(edges(R"("const":")", R"(x","pattern":"ONLY")"), 10000 * 60);
}

// Also where the alternatives are none, so that nothing is narrowed.
TEST(CompileCost, ThePatternOfEachUseIsCharged) {
  const std::string pattern = absl::StrCat("\"[", Repeat("x", 20000), "]\"");
  for (const std::string& def : {absl::StrCat(R"({"pattern":)", pattern, "}"),
                                 absl::StrCat(R"({"patternProperties":{)", pattern, ":{}}}")}) {
    const auto steps = [&](size_t references) {
      return StepsOfSchema(absl::StrCat(R"({"$defs":{"d":)", def,
                                        R"(},"anyOf":[{"const":1},{"allOf":[false)",
                                        Repeat(R"(,{"$ref":"#/$defs/d"})", references), "]}]}"));
    };
    EXPECT_GE(steps(400) - steps(200), 200 * 20000 / 32) << def.substr(0, 20);
  }
}

// A class of Unicode has some 700 ranges. Its second use shares them.
TEST(CompileCost, AClassOfUnicodeIsReadOnce) {
  const auto steps = [](const std::string& pattern) {
    CompileBudget budget;
    EXPECT_OK(ParseRegex(pattern, budget).status());
    return budget.steps();
  };
  EXPECT_LE(steps(Repeat("\\p{L}", 10000)) - steps("\\p{L}"), 2 * 10000);
}

}  // namespace
}  // namespace tandem::guided
