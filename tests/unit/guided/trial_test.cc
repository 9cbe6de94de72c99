// Goal: a constraint whose masks cost too much is refused when it is compiled, by router and node
// alike, and not in the middle of an answer; what clients really send compiles, and random answers
// to it can be followed to their end.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/guided/compile.h"
#include "common/guided/constraint_cache.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::guided {
namespace {

using request::GuidedParams;
using Kind = GuidedParams::Kind;
using ::testing::HasSubstr;

// 20,000 tokens of up to 8 letters, blanks and brackets, and all single bytes.
std::shared_ptr<const Vocabulary> LargeVocabulary() {
  std::mt19937_64 random(1);
  std::vector<std::string> tokens = {""};
  for (int b = 0; b < 256; ++b) tokens.push_back(std::string(1, static_cast<char>(b)));
  const std::string letters = "aaabbbcdefghijklmnop qrstuvwxyz(){}[],\"0123456789";
  while (tokens.size() < 20000) {
    std::string token;
    for (size_t i = 1 + random() % 8; i > 0; --i) token += letters[random() % letters.size()];
    tokens.push_back(token);
  }
  return std::make_shared<const Vocabulary>(std::move(tokens));
}

GuidedParams Grammar(std::string text) { return {.kind = Kind::kGrammar, .text = std::move(text)}; }

// Each reads some text in very many ways, from its first byte or after a while.
const char* const kAmbiguous[] = {
    "root ::= ([a-z]?){400}",
    "root ::= [a-z]{100} (([a-z] \"b\"? \"c\"?)? [a-b]?){150}",
    // Found by fuzzing: a mask allowed the ninth bracket, which has more readings than are
    // followed.
    "root ::= \"(\" root+ \")\" |",
    "root ::= (\"(\" root? \")\")? [a-z] (root | root [a-z]) | [a-z]",
};

TEST(Trial, RefusesWhatIsTooAmbiguousWhenItIsCompiled) {
  const auto vocabulary = LargeVocabulary();
  for (const char* text : kAmbiguous) {
    SCOPED_TRACE(text);
    EXPECT_OK(Compile(Grammar(text), vocabulary->token_bytes_max()).status())
        << "not what this test is about";
    ConstraintCache node(vocabulary);
    ConstraintChecker router(vocabulary);
    const absl::Status refused = node.Get(Grammar(text)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("too ambiguous"));
    EXPECT_EQ(router.Check(Grammar(text)), refused) << "the router must refuse what nodes refuse";
  }
}

const GuidedParams kServed[] = {
    Grammar("root ::= \"x\" ([a-z]* \"a\" [a-z]* \"b\"){90}"),
    Grammar("root ::= (expr \"=\" term \"\\n\")+\nexpr ::= term ([-+*/] term)*\n"
            "term ::= [0-9]+ | \"(\" expr \")\""),
    Grammar("root ::= [a-z]{1,20} (\" \" [a-z]{1,20}){0,200} \".\""),
    {.kind = Kind::kRegex, .text = "([a-z]|b)*a(a|b){8}"},
    {.kind = Kind::kRegex, .text = ".{0,300}end"},
    {.kind = Kind::kRegex, .text = "\\p{L}+( \\p{L}+)*[.!?]"},
    {.kind = Kind::kJsonObject},
    {.kind = Kind::kJsonSchema,
     .text = R"({"type":"object","properties":{"a":{"type":"string","maxLength":400},
      "b":{"type":"array","items":{"anyOf":[{"type":"number"},{"type":"string"}]},"maxItems":50},
      "c":{"type":"string","pattern":"^[a-z ]+$"}},"additionalProperties":{"type":"string"}})"},
};

double MillisecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

double ProcessorMs() {
  timespec now = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// Follows random answers, and returns how many masks were computed.
int Follow(const std::shared_ptr<Constraint>& constraint, std::mt19937_64& random,
           double& longest_ms) {
  Matcher matcher(constraint, {.eos_token_ids = {0}});
  const int32_t size = constraint->vocabulary().size();
  for (int step = 0; step < 60; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    const auto allowed = matcher.Allowed();
    longest_ms = std::max(longest_ms, MillisecondsSince(begin));
    EXPECT_OK(allowed.status());
    if (!allowed.ok()) return step;
    TokenId token = static_cast<TokenId>(random() % static_cast<uint64_t>(size));
    while (!(((*allowed)[static_cast<size_t>(token) / 32] >> (token % 32)) & 1)) {
      token = (token + 1) % size;
    }
    EXPECT_OK(matcher.Advance(token));
    if (matcher.ended()) return step + 1;
  }
  return 60;
}

// The text with the most readings after a byte or two leads nowhere; the costly one begins as one
// with fewer.
TEST(Trial, SearchesBesideTheMostAmbiguousText) {
  const auto vocabulary = LargeVocabulary();
  ConstraintCache cache(vocabulary);
  for (const char* text :
       {"root ::= \"a\" (\"x\" \"y\" | \"x\" \"z\" | \"x\" \"w\") | \"b\" ([a-z]?){400}",
        "root ::= \"a\" ([b-c]? [b-c]? [b-c]?) \"!\" | \"qqqq\" ([a-z]?){400}"}) {
    const absl::Status refused = cache.Get(Grammar(text)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(refused.message(), HasSubstr("too ambiguous"));
  }
}

// The costly place lies behind more text than a search from the beginning follows: behind a count
// whose steps no token tells apart, which the search must not take for the end.
TEST(Trial, FindsCostlyPlacesHoweverDeepTheyLie) {
  const auto vocabulary = LargeVocabulary();
  ConstraintCache cache(vocabulary);
  for (const std::string& text :
       {// Behind more texts than are tried, and costly only after a while.
        std::string("root ::= value{60} \"!\" ([a-z]+ | [a-y]+ | [a-x]+ | [a-w]+){300}\n"
                    "value ::= \"(\" value \")\" | \"[\" value \"]\" | [0-9]"),
        std::string("root ::= [a-z]{700} ([a-z]?){400}"),
        std::string("root ::= [a-z]{9000} ([a-z]?){400}"),
        std::string("root ::= item{600} \"!\"\nitem ::= [a-z] [0-9] list?\n"
                    "list ::= \"(\" [a-z]{600} ([a-z]? [b-y]?){250} \")\"")}) {
    SCOPED_TRACE(text.substr(0, 60));
    const absl::Status refused = cache.Get(Grammar(text)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("too ambiguous"));
  }
}

// A place with one reading of each text may be costly, too: where a token can begin any of very
// many words.
TEST(Trial, FindsLongListsOfWordsHoweverDeepTheyLie) {
  const auto vocabulary = LargeVocabulary();
  ConstraintCache cache(vocabulary);
  const auto schema = [&](TokenId step) {
    std::string words;
    for (TokenId i = 257; i < vocabulary->size(); i += step) {
      const absl::string_view word = vocabulary->TokenBytes(i);
      if (absl::StrContains(word, '"')) continue;
      absl::StrAppend(&words, words.empty() ? "\"" : ",\"", word, "\"");
    }
    return GuidedParams{
        .kind = Kind::kJsonSchema,
        .text = absl::StrCat(
            R"({"type":"object","properties":{"a":{"type":"string","minLength":3000},"b":{"enum":[)",
            words, R"(]}},"required":["a","b"],"additionalProperties":false})")};
  };
  const absl::Status refused = cache.Get(schema(1)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("takes too much work"));
  EXPECT_OK(cache.Get(schema(8)).status());
}

// The work for a mask does not depend on how deep the answer nests.
TEST(Trial, DeeplyNestedAnswersHaveMasks) {
  const auto vocabulary = LargeVocabulary();
  ConstraintCache cache(vocabulary);
  ASSERT_OK_AND_ASSIGN(const auto constraint, cache.Get({.kind = Kind::kJsonObject}));
  auto place = constraint->Start();
  ASSERT_TRUE(constraint->Advance(place, "{\"a\":"));
  int depth = 1;
  double longest_ms = 0;
  while (constraint->Advance(place, "[")) {
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_OK(constraint->Mask(place).status()) << "at level " << depth;
    longest_ms = std::max(longest_ms, MillisecondsSince(begin));
    ++depth;
  }
  std::cout << depth << " levels, longest mask " << longest_ms << " ms\n";
  EXPECT_GE(depth, 200);
  EXPECT_LE(depth, kNestingMax);
}

// The dearest masks, at every place of random texts, those that end as too costly included: printed
// in processor time. Nobody tried these constraints before.
TEST(Trial, MasksBeyondTheBoundEndThere) {
  const auto vocabulary = LargeVocabulary();
  std::mt19937_64 random(1);
  std::vector<std::string> costly(std::begin(kAmbiguous), std::end(kAmbiguous));
  // One step takes a thousand threads through a thousand calls each.
  costly.emplace_back("root ::= item (\",\" item)*\nitem ::= [^,]+ (\"b\"?){1100}");
  costly.emplace_back("root ::= ([a-z]?){300}");
  costly.emplace_back("root ::= (\"a\"? [a-z]? \"ab\"?){90}");
  costly.emplace_back("root ::= ([a-p]? [c-z]? [abd]?){110}");
  double longest_ms = 0;
  int refused = 0;
  for (const std::string& text : costly) {
    ASSERT_OK_AND_ASSIGN(Program program, Compile(Grammar(text), vocabulary->token_bytes_max()));
    Constraint constraint(std::move(program), vocabulary);
    auto place = constraint.Start();
    for (int i = 0; i < 200; ++i) {
      const double begin = ProcessorMs();
      const absl::Status mask = constraint.Mask(place).status();
      longest_ms = std::max(longest_ms, ProcessorMs() - begin);
      if (!mask.ok()) {
        EXPECT_EQ(mask.code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(mask.message(), HasSubstr("too ambiguous"));
        ++refused;
      }
      EXPECT_LE(constraint.bytes(), kGraphBytesMax + Constraint::kMaskBytesMax);
      const char next = "abc(d),"[random() % 7];
      constraint.Advance(place, absl::string_view(&next, 1));
    }
  }
  std::cout << refused << " masks refused, the longest took " << longest_ms
            << " ms of processor time\n";
  EXPECT_GT(refused, 0);
}

TEST(Trial, AnswersOfWhatCompilesCanBeFollowed) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  const auto vocabulary = LargeVocabulary();
  ConstraintCache cache(vocabulary);
  int masks = 0;
  for (const GuidedParams& params : kServed) {
    SCOPED_TRACE(params.text);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_OK_AND_ASSIGN(const auto constraint, cache.Get(params));
    const double compile_ms = MillisecondsSince(begin);
    double longest_ms = 0;
    for (int i = 0; i < 5; ++i) masks += Follow(constraint, random, longest_ms);
    std::cout << compile_ms << " ms to compile and try, longest mask " << longest_ms
              << " ms: " << params.text.substr(0, 40) << "\n";
  }
  std::cout << masks << " masks\n";
  EXPECT_GT(masks, 60);
}

}  // namespace
}  // namespace tandem::guided
