// Goal: what a sequence relies on. A matcher allows end tokens exactly when the rules say so; a
// matcher that replays tokens reaches the same position; dropping cached states changes no mask;
// long counts share masks; the cache compiles each constraint once and stays bounded.
#include <random>

#include "absl/strings/str_cat.h"
#include "common/guided/constraint_cache.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/guided/acceptance.h"

namespace tandem::guided {
namespace {

using ::testing::HasSubstr;
using Kind = request::GuidedParams::Kind;
constexpr TokenId kEnd = 256;

std::shared_ptr<const Vocabulary> Bytes() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.push_back(std::string(1, static_cast<char>(b)));
  tokens.push_back("");
  return std::make_shared<const Vocabulary>(std::move(tokens));
}

std::shared_ptr<Constraint> NewConstraint(Kind kind, const std::string& text) {
  const auto vocabulary = Bytes();
  return std::make_shared<Constraint>(
      *Compile({.kind = kind, .text = text}, vocabulary->token_bytes_max()), vocabulary);
}

bool Allows(Matcher& matcher, TokenId token) {
  const auto allowed = matcher.Allowed();
  EXPECT_OK(allowed.status());
  return allowed.ok() && ((*allowed)[static_cast<size_t>(token) / 32] >> (token % 32)) & 1;
}

void Read(Matcher& matcher, const std::string& text) {
  for (const char c : text) ASSERT_OK(matcher.Advance(static_cast<uint8_t>(c)));
}

TEST(Matcher, AllowsTheEndExactlyWhenTheRulesSay) {
  const auto constraint = NewConstraint(Kind::kRegex, "ab?");
  Matcher plain(constraint, {.eos_token_ids = {kEnd}});
  EXPECT_FALSE(Allows(plain, kEnd));
  EXPECT_FALSE(plain.Advance(kEnd).ok());
  Read(plain, "a");
  EXPECT_TRUE(Allows(plain, kEnd));
  EXPECT_TRUE(Allows(plain, 'b'));
  EXPECT_FALSE(plain.complete());
  Matcher patient(constraint, {.eos_token_ids = {kEnd}, .min_tokens = 3});
  Read(patient, "a");
  EXPECT_FALSE(Allows(patient, kEnd));
  Read(patient, "b");
  EXPECT_TRUE(patient.complete());
  EXPECT_TRUE(Allows(patient, kEnd));
  Matcher counting(NewConstraint(Kind::kRegex, "a*"), {.eos_token_ids = {kEnd}, .min_tokens = 3});
  Read(counting, "aa");
  EXPECT_FALSE(Allows(counting, kEnd));
  Read(counting, "a");
  EXPECT_TRUE(Allows(counting, kEnd));
  Matcher endless(constraint, {.eos_token_ids = {kEnd}, .ignore_eos = true});
  Read(endless, "a");
  EXPECT_FALSE(Allows(endless, kEnd));
  EXPECT_TRUE(Allows(endless, 'b'));
  EXPECT_FALSE(Allows(endless, 'a'));
  Read(endless, "b");
  EXPECT_TRUE(Allows(endless, kEnd));  // no other token is allowed
  ASSERT_OK(endless.Advance(kEnd));
  EXPECT_TRUE(endless.ended());
  EXPECT_THAT(endless.Advance('a').message(), HasSubstr("follows the token that ended"));
  Matcher no_end(constraint, {});
  Read(no_end, "ab");
  EXPECT_EQ(no_end.Allowed().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Matcher, RefusesTokensThatBreakTheConstraint) {
  Matcher matcher(NewConstraint(Kind::kRegex, "ab"), {.eos_token_ids = {kEnd}});
  Read(matcher, "a");
  EXPECT_THAT(matcher.Advance('x').message(), HasSubstr("token 120 as output 1"));
  EXPECT_FALSE(matcher.Advance(-1).ok());
  EXPECT_FALSE(matcher.Advance(100000).ok());
  Read(matcher, "b");  // a rejected token changes nothing
  EXPECT_TRUE(matcher.complete());
}

// The second constraint drops its states between any two tokens.
TEST(Matcher, DroppedStatesAndReplayChangeNothing) {
  const std::string schema =
      R"({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}},
          "b": {"type": "string", "maxLength": 40}}, "required": ["a", "b"]})";
  const auto shared = NewConstraint(Kind::kJsonSchema, schema);
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  for (int run = 0; run < 5; ++run) {
    Matcher matcher(shared, {.eos_token_ids = {kEnd}});
    std::vector<TokenId> tokens;
    for (int step = 0; step < 60 && !matcher.ended(); ++step) {
      Matcher replayed(NewConstraint(Kind::kJsonSchema, schema), {.eos_token_ids = {kEnd}});
      for (const TokenId token : tokens) ASSERT_OK(replayed.Advance(token));
      ASSERT_OK_AND_ASSIGN(const auto allowed, matcher.Allowed());
      ASSERT_OK_AND_ASSIGN(const auto again, replayed.Allowed());
      ASSERT_EQ(allowed, again);
      std::vector<TokenId> choices;
      for (TokenId t = 0; t <= kEnd; ++t) {
        if (Allows(matcher, t)) choices.push_back(t);
      }
      tokens.push_back(choices[random() % choices.size()]);
      ASSERT_OK(matcher.Advance(tokens.back()));
    }
  }
}

TEST(Matcher, LargeGraphsAreReplacedUnderRunningSequences) {
  // Each text of the counter is a configuration of its own.
  const auto constraint = NewConstraint(Kind::kRegex, "(?:a[b-y]{0,9000}z){0,3}");
  Matcher first(constraint, {.eos_token_ids = {kEnd}});
  Matcher second(constraint, {.eos_token_ids = {kEnd}});
  Read(first, "ab");
  size_t bytes = 0;
  bool shrank = false;
  Read(second, "a");
  for (int i = 0; i < 9000; ++i) {
    for (const char c : {'b', 'c', 'y'}) {
      Matcher branch = second;
      ASSERT_OK(branch.Advance(c));
    }
    Read(second, "b");
    shrank = shrank || constraint->bytes() < bytes;
    bytes = constraint->bytes();
    EXPECT_LT(bytes, Constraint::kGraphBytesCached + (size_t{8} << 20));
  }
  EXPECT_FALSE(Allows(second, 'b'));
  EXPECT_TRUE(Allows(second, 'z'));
  EXPECT_TRUE(Allows(first, 'b'));
  Read(first, "zaz");
  EXPECT_TRUE(first.may_end());
}

TEST(Matcher, CountsBeyondATokensReachShareAMask) {
  for (const auto& [kind, text] :
       {std::pair<Kind, std::string>(Kind::kRegex, "[a-z]{0,2000}"),
        {Kind::kJsonSchema, R"({"type": "string", "maxLength": 2000})"}}) {
    const auto vocabulary = Bytes();
    const auto program = Compile({.kind = kind, .text = text}, vocabulary->token_bytes_max());
    ASSERT_OK(program.status());
    StateGraph graph(*program);
    ConfigId config = graph.start();
    std::set<ConfigId> representatives;
    for (const char c : "\"" + std::string(1990, 'a')) {
      if (kind == Kind::kRegex && c == '"') continue;
      config = graph.Step(config, static_cast<uint8_t>(c));
      ASSERT_NE(config, kDeadConfig);
      representatives.insert(graph.Representative(config));
    }
    EXPECT_LT(representatives.size(), 10u) << text;
  }
}

TEST(Matcher, HostileGrammarsFailOrStayWithinBounds) {
  const auto ambiguous = Compile(
      {.kind = Kind::kGrammar,
       .text = "root ::= a a a a a a a a\na ::= b | b b | b b b\nb ::= \"x\" | \"x\" b | \"xx\" b"},
      16);
  ASSERT_OK(ambiguous.status());
  StateGraph graph(*ambiguous);
  ConfigId config = graph.start();
  for (int i = 0; i < 300; ++i) config = graph.Step(config, 'x');
  EXPECT_LT(graph.work(), uint64_t{200000000});
}

TEST(ConstraintCache, CompilesOnceAndStaysBounded) {
  ConstraintCache cache(Bytes());
  const auto regex = [](int i) {
    return request::GuidedParams{.kind = Kind::kRegex, .text = absl::StrCat("a{", i, "}")};
  };
  ASSERT_OK_AND_ASSIGN(const auto first, cache.Get(regex(1)));
  ASSERT_OK_AND_ASSIGN(const auto again, cache.Get(regex(1)));
  EXPECT_EQ(first, again);
  for (int i = 2; i < 200; ++i) ASSERT_OK(cache.Get(regex(i)).status());
  ASSERT_OK_AND_ASSIGN(const auto recompiled, cache.Get(regex(1)));
  EXPECT_NE(first, recompiled);
  EXPECT_FALSE(cache.Get({.kind = Kind::kRegex, .text = "("}).ok());
  ConstraintChecker checker(Bytes());
  EXPECT_OK(checker.Check(regex(1)));
  EXPECT_THAT(checker.Check({.kind = Kind::kJsonSchema, .text = R"({"not": {}})"}).message(),
              HasSubstr("not"));
  for (int i = 0; i < 1000; ++i) EXPECT_OK(checker.Check(regex(i)));
}

// Constraints grow after they were cached.
TEST(ConstraintCache, FindEvictsWhatHasGrown) {
  const request::GuidedParams large = {.kind = Kind::kRegex, .text = "[b-y]{0,9000}z"};
  const request::GuidedParams small = {.kind = Kind::kRegex, .text = "a"};
  constexpr size_t kRoom = size_t{8} << 20;
  ConstraintCache cache(Bytes(), kRoom);
  ASSERT_OK_AND_ASSIGN(const auto grows, cache.Get(large));
  ASSERT_OK(cache.Get(small).status());
  ASSERT_TRUE(cache.Find(large).has_value());
  ASSERT_TRUE(cache.Find(small).has_value());
  Matcher matcher(grows, {.eos_token_ids = {kEnd}});
  for (int i = 0; i < 9000 && grows->bytes() <= kRoom; ++i) {
    for (const char c : {'b', 'c', 'y'}) {
      Matcher branch = matcher;
      ASSERT_OK(branch.Advance(c));
    }
    Read(matcher, "b");
  }
  ASSERT_GT(grows->bytes(), kRoom);
  EXPECT_TRUE(cache.Find(large).has_value());  // the one that is in use stays
  EXPECT_FALSE(cache.Find(small).has_value());
  ASSERT_OK(cache.Get(small).status());
  EXPECT_FALSE(cache.Find(large).has_value());
  EXPECT_TRUE(cache.Find(small).has_value());
  Read(matcher, "z");  // its sequence keeps it
  EXPECT_TRUE(matcher.complete());
}

}  // namespace
}  // namespace tandem::guided
