// Goal: constraints of the kinds that clients send compile, and random answers to them, deeply
// nested ones included, have a mask at every place. The test prints for each whether the trial at
// compile has visited every place of it (docs/adr/0070): the others are what a rule that refuses
// everything it cannot prove would refuse.
#include <algorithm>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/guided/compile.h"
#include "common/guided/constraint_cache.h"
#include "common/guided/trial.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::guided {
namespace {

using Kind = request::GuidedParams::Kind;

struct Case {
  const char* name;
  Kind kind;
  const char* text;
};

constexpr Case kServed[] = {
    {"any JSON", Kind::kJsonObject, ""},
    {"call of a function", Kind::kJsonSchema,
     R"({"type":"object","properties":{"name":{"const":"get_weather"},"arguments":{"type":"object",
        "properties":{"city":{"type":"string"},"unit":{"enum":["celsius","fahrenheit"]},
        "days":{"type":"integer","minimum":1,"maximum":14}},"required":["city"],
        "additionalProperties":false}},"required":["name","arguments"]})"},
    {"invoice", Kind::kJsonSchema,
     R"({"type":"object","properties":{"number":{"type":"string","pattern":"^INV-[0-9]{6}$"},
        "date":{"type":"string","format":"date"},"currency":{"enum":["EUR","USD","GBP","JPY"]},
        "lines":{"type":"array","minItems":1,"maxItems":200,"items":{"type":"object","properties":{
        "text":{"type":"string","maxLength":200},"quantity":{"type":"number","exclusiveMinimum":0},
        "price":{"type":"number","minimum":0}},"required":["text","quantity","price"]}},
        "total":{"type":"number"}},"required":["number","date","lines","total"]})"},
    {"person", Kind::kJsonSchema,
     R"({"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":100},
        "email":{"type":"string","format":"email"},"born":{"type":"string","format":"date"},
        "id":{"type":"string","format":"uuid"},"phone":{"type":["string","null"]},
        "address":{"type":"object","properties":{"street":{"type":"string"},"zip":{"type":"string",
        "pattern":"^[0-9]{5}(-[0-9]{4})?$"},"country":{"type":"string","minLength":2,
        "maxLength":2}}},"tags":{"type":"array","items":{"type":"string"}}},"required":["name"]})"},
    {"tree", Kind::kJsonSchema,
     R"({"$defs":{"node":{"type":"object","properties":{"value":{"type":"integer"},"children":{
        "type":"array","items":{"$ref":"#/$defs/node"}}},"required":["value"]}},
        "$ref":"#/$defs/node"})"},
    {"tagged union", Kind::kJsonSchema,
     R"({"type":"array","items":{"oneOf":[{"type":"object","properties":{"kind":{"const":"circle"},
        "radius":{"type":"number"}},"required":["kind","radius"]},{"type":"object","properties":{
        "kind":{"const":"square"},"side":{"type":"number"}},"required":["kind","side"]},
        {"type":"object","properties":{"kind":{"const":"text"},"text":{"type":"string"}},
        "required":["kind","text"]}]}})"},
    {"map of numbers", Kind::kJsonSchema,
     R"({"type":"object","additionalProperties":{"type":"number"},"maxProperties":50})"},
    {"keys by pattern", Kind::kJsonSchema,
     R"({"type":"object","patternProperties":{"^x-[a-z]+$":{"type":"string"},"^[0-9]+$":
        {"type":"integer"}},"additionalProperties":false})"},
    {"long texts", Kind::kJsonSchema,
     R"({"type":"object","properties":{"title":{"type":"string","maxLength":300},"summary":{"type":
        "string","maxLength":2000},"body":{"type":"string","maxLength":8000}},
        "required":["title","summary","body"]})"},
    {"steps of reasoning", Kind::kJsonSchema,
     R"({"type":"object","properties":{"steps":{"type":"array","items":{"type":"object",
        "properties":{"explanation":{"type":"string"},"output":{"type":"string"}},"required":[
        "explanation","output"],"additionalProperties":false}},"final_answer":{"type":"string"}},
        "required":["steps","final_answer"],"additionalProperties":false})"},
    {"user interface", Kind::kJsonSchema,
     R"({"type":"object","properties":{"type":{"enum":["div","button","header","section","field"]},
        "label":{"type":"string"},"children":{"type":"array","items":{"$ref":"#"}},"attributes":{
        "type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"value":{
        "type":"string"}},"required":["name","value"]}}},"required":["type","label","children"]})"},
    {"settings of anything", Kind::kJsonSchema,
     R"({"type":"object","properties":{"version":{"type":"integer"},"on":{"type":["object","array",
        "string"]},"jobs":{"type":"object","additionalProperties":{"type":"object","properties":{
        "needs":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]},"env":{},
        "steps":{"type":"array","items":{"type":"object"}}}}}}})"},
    {"date and time", Kind::kRegex,
     R"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2}))"},
    {"version", Kind::kRegex, R"((0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?)"},
    {"mail address", Kind::kRegex,
     R"([a-zA-Z0-9._%+-]{1,64}@([a-zA-Z0-9-]{1,63}\.){1,8}[a-z]{2,24})"},
    {"sentences", Kind::kRegex, R"(\p{L}+(,? \p{L}+){3,40}[.!?])"},
    {"letters that end in a word", Kind::kRegex, R"(.{0,500}(yes|no|maybe)\.)"},
    {"arithmetic", Kind::kGrammar,
     "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\n"
     "term ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\n"
     "num ::= [0-9]+ ws\nws ::= [ \\t\\n]*"},
    {"JSON as a grammar", Kind::kGrammar,
     "root ::= object\nvalue ::= object | array | string | number | (\"true\" | \"false\" | "
     "\"null\") ws\nobject ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? "
     "\"}\" ws\narray ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\nstring ::= \"\\\"\" "
     "([^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}))* \"\\\"\" ws\n"
     "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] "
     "[1-9]{0,15})? ws\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}"},
    {"statements of C", Kind::kGrammar,
     "root ::= (declaration)*\ndeclaration ::= type name \"(\" parameter? \")\" \"{\" statement* "
     "\"}\"\ntype ::= (\"int\" | \"float\" | \"char\") \" \"\nname ::= [a-zA-Z_] [a-zA-Z_0-9]*\n"
     "parameter ::= type name\nstatement ::= type name ws \"=\" ws expr \";\" | name ws \"=\" ws "
     "expr \";\" | name \"(\" args? \")\" \";\" | \"return\" ws expr \";\" | \"while\" \"(\" cond "
     "\")\" \"{\" statement* \"}\" | \"if\" \"(\" cond \")\" \"{\" statement* \"}\" (\"else\" "
     "\"{\" "
     "statement* \"}\")?\ncond ::= expr ws (\"<=\" | \"<\" | \"==\" | \"!=\" | \">=\" | \">\") ws "
     "expr\nexpr ::= term ((\"+\" | \"-\") term)*\nterm ::= factor ((\"*\" | \"/\") factor)*\n"
     "factor ::= name | [0-9]+ | \"-\" factor | \"(\" expr \")\" | name \"(\" args? \")\"\n"
     "args ::= expr (\",\" ws expr)*\nws ::= [ \\t\\n]+"},
    {"moves of chess", Kind::kGrammar,
     "root ::= \"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+\n"
     "move ::= (pawn | piece | castle) [+#]?\npiece ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n"
     "pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\ncastle ::= \"O-O\" \"-O\"?"},
    {"a list", Kind::kGrammar, "root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85]+ \"\\n\""},
    {"a query", Kind::kGrammar,
     "root ::= \"SELECT \" cols \" FROM \" name (\" JOIN \" name \" ON \" pred)* (\" WHERE \" "
     "pred)? "
     "(\" ORDER BY \" name)? \";\"\ncols ::= \"*\" | col (\", \" col)*\ncol ::= name | \"COUNT(\" "
     "name \")\" | \"(\" sub \")\"\nsub ::= \"SELECT \" cols \" FROM \" name\npred ::= cmp ((\" "
     "AND "
     "\" | \" OR \") cmp)* \ncmp ::= operand (\" = \" | \" < \" | \" > \" | \" LIKE \") operand | "
     "\"NOT \" cmp | \"(\" pred \")\"\noperand ::= name | [0-9]+ | \"'\" [^']* \"'\" | \"(\" sub "
     "\")\"\nname ::= [a-z_]+ (\".\" [a-z_]+)?"},
    {"markup", Kind::kGrammar,
     "root ::= element\nelement ::= \"<\" tag attr* (\"/>\" | \">\" (element | text)* \"</\" tag "
     "\">\")\ntag ::= [a-z] [a-z0-9-]*\nattr ::= \" \" [a-z]+ \"=\\\"\" [^\"<]* \"\\\"\"\ntext ::= "
     "[^<>&] | \"&\" [a-z]+ \";\""},
};

// 20,000 tokens: single bytes, JSON's punctuation, and words.
std::shared_ptr<const Vocabulary> TestVocabulary() {
  std::mt19937_64 random(1);
  std::vector<std::string> tokens = {""};
  for (int b = 0; b < 256; ++b) tokens.push_back(std::string(1, static_cast<char>(b)));
  for (const char* piece : {"\":", "\",", "\":\"", "{\"", "[{", "[[", "\"}", "},{", "\n\n", "  ",
                            "    ", "\": [", "\": {", "}}", "]]", "()", "(("})
    tokens.emplace_back(piece);
  const std::string letters = "etaoinshrdlucmfwypvbgkjqxz ETAO0123456789.,;<>=/-";
  while (tokens.size() < 20000) {
    std::string token = random() % 2 == 0 ? " " : "";
    for (size_t i = 1 + random() % 8; i > 0; --i) token += letters[random() % letters.size()];
    tokens.push_back(token);
  }
  return std::make_shared<const Vocabulary>(std::move(tokens));
}

// Follows one random answer for at most `steps` tokens, and mostly takes what opens if `nests`.
// Returns the deepest nesting of brackets.
int Follow(const std::shared_ptr<Constraint>& constraint, std::mt19937_64& random, int steps,
           bool nests) {
  Matcher matcher(constraint, {.eos_token_ids = {0}});
  const int32_t size = constraint->vocabulary().size();
  int depth = 0, deepest = 0;
  for (int step = 0; step < steps && !matcher.ended(); ++step) {
    const auto allowed = matcher.Allowed();
    EXPECT_OK(allowed.status()) << "at token " << step << ", nesting " << depth;
    if (!allowed.ok()) break;
    const auto allows = [&](TokenId token) {
      return (((*allowed)[static_cast<size_t>(token) / 32] >> (token % 32)) & 1) != 0;
    };
    TokenId token = static_cast<TokenId>(random() % static_cast<uint64_t>(size));
    const char next = "\"[{:(<a"[random() % 7];
    if (nests && allows(1 + next)) token = 1 + next;
    while (!allows(token)) token = (token + 1) % size;
    for (const char c : constraint->vocabulary().TokenBytes(token)) {
      depth += (c == '[' || c == '{' || c == '(') - (c == ']' || c == '}' || c == ')');
      deepest = std::max(deepest, depth);
    }
    EXPECT_OK(matcher.Advance(token));
  }
  return deepest;
}

// A text has a reading or two however many values an enum lists, strings and numbers alike.
TEST(ServedConstraints, LongEnumsHaveFewReadings) {
  const auto vocabulary = TestVocabulary();
  ConstraintCache cache(vocabulary);
  std::string values;
  for (int i = 0; i < 3000; ++i)
    absl::StrAppend(
        &values, i == 0 ? "" : ",",
        i % 2 == 0 ? absl::StrCat("\"city ", i * 7919, "\"") : absl::StrCat(i * 104729));
  const std::string schema =
      absl::StrCat(R"({"type":"object","properties":{"a":{"type":"string"},"b":{"enum":[)", values,
                   R"(]}},"required":["a","b"],"additionalProperties":false})");
  ASSERT_OK_AND_ASSIGN(const auto constraint,
                       cache.Get({.kind = Kind::kJsonSchema, .text = schema}));
  auto place = constraint->Start();
  ASSERT_TRUE(constraint->Advance(place, R"({"a":"x","b":)"));
  ASSERT_OK(constraint->Mask(place).status());
  auto string = place, number = place;
  EXPECT_TRUE(constraint->Advance(string, R"("city 15838"})"));
  EXPECT_TRUE(constraint->Advance(number, "104729}"));
  EXPECT_FALSE(constraint->Advance(place, R"("city 7919"})"));
  EXPECT_LE(place.graph->Readings(place.config), 4u);
}

// As many tools as OpenAI's API takes, one of which must be called.
TEST(ServedConstraints, ACallOfAnyOfManyTools) {
  const auto vocabulary = TestVocabulary();
  ConstraintCache cache(vocabulary);
  std::string tools;
  for (int i = 0; i < 128; ++i)
    absl::StrAppend(&tools, i == 0 ? "" : ",",
                    R"({"type":"object","properties":{"name":{"type":"string",)", R"("enum":["do_)",
                    i, R"("]},"parameters":{"type":"object","properties":{"a":{"type":)",
                    R"("string"},"b":{"type":"integer"}},"required":["a"]}},"required":["name",)",
                    R"("parameters"],"additionalProperties":false})");
  const std::string schema =
      absl::StrCat(R"({"type":"array","minItems":1,"items":{"anyOf":[)", tools, "]}}");
  ASSERT_OK_AND_ASSIGN(const auto constraint,
                       cache.Get({.kind = Kind::kJsonSchema, .text = schema}));
  auto place = constraint->Start();
  for (const char c : std::string(R"([{"name":"do_77","parameters":{"a":"x","b":12}}])")) {
    ASSERT_OK(constraint->Mask(place).status());
    ASSERT_TRUE(constraint->Advance(place, std::string(1, c)));
  }
  EXPECT_TRUE(constraint->MayEnd(place));
}

TEST(ServedConstraints, HaveAMaskAtEveryPlace) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  const auto vocabulary = TestVocabulary();
  ConstraintCache cache(vocabulary);
  int proved = 0, deepest = 0;
  for (const Case& c : kServed) {
    SCOPED_TRACE(c.name);
    const request::GuidedParams params = {.kind = c.kind, .text = c.text};
    ASSERT_OK_AND_ASSIGN(const auto constraint, cache.Get(params));
    ASSERT_OK_AND_ASSIGN(const Program program, Compile(params, vocabulary->token_bytes_max()));
    ASSERT_OK_AND_ASSIGN(const bool all, TryPlaces(program, *vocabulary));
    int deepest_here = 0;
    for (int i = 0; i < 4; ++i)
      deepest_here =
          std::max(deepest_here, Follow(constraint, random, i == 0 ? 2000 : 300, i == 0));
    std::cout << c.name << ": " << program.states.size() << " states, "
              << (all ? "every place visited" : "not every place visited")
              << ", followed to nesting " << deepest_here << "\n";
    proved += all ? 1 : 0;
    deepest = std::max(deepest, deepest_here);
  }
  std::cout << proved << " of " << std::size(kServed) << " proved\n";
  EXPECT_GE(deepest, 100);
}

}  // namespace
}  // namespace tandem::guided
