// Goal: numbers mean the same to readers that keep them as doubles. Under an exclusive bound no
// numeral is accepted that such a reader takes for the bound, and each double within it is; an
// integer that neither 64 bits nor a double hold is a bound as it is written, and no value.
#include "absl/strings/numbers.h"

#include <cmath>
#include <iostream>
#include <limits>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/unit/guided/acceptance.h"

namespace tandem::guided {
namespace {

using ::testing::HasSubstr;
constexpr auto kJsonSchema = request::GuidedParams::Kind::kJsonSchema;

double Read(const std::string& text) {
  double number = 0;
  EXPECT_TRUE(absl::SimpleAtod(text, &number)) << text;
  return number;
}

// Numerals around `bound`: the doubles next to it, with more digits than these need, and digits
// changed at random.
std::vector<std::string> Around(double bound, std::mt19937_64& random) {
  const double far = std::numeric_limits<double>::infinity();
  std::vector<std::string> texts;
  for (const double to : {-far, far}) {
    double near = bound;
    for (int i = 0; i < 6; ++i, near = std::nextafter(near, to)) {
      for (int digits = 0; digits <= 22; ++digits)
        texts.push_back(absl::StrFormat("%.*f", digits, near));
    }
  }
  for (size_t i = texts.size(); i > 0; --i) {
    std::string text = texts[random() % texts.size()];
    const size_t at = text.size() - 1 - random() % std::min<size_t>(4, text.size());
    if (text.size() > 3 && absl::ascii_isdigit(static_cast<unsigned char>(text[at])))
      text[at] = static_cast<char>('0' + random() % 10);
    texts.push_back(text);
  }
  return texts;
}

// Compares what schemas accept with the doubles that the numerals are. `accepted`: counts them.
void CheckExclusive(const std::string& bound, std::mt19937_64& random, int& accepted) {
  const double limit = Read(bound);
  for (const bool minimum : {false, true}) {
    ASSERT_OK_AND_ASSIGN(
        const Acceptor acceptor,
        Acceptor::Create(kJsonSchema,
                         absl::StrCat(R"({"type":"number","exclusive)",
                                      minimum ? "Minimum" : "Maximum", "\":", bound, "}")));
    const auto within = [&](double number) { return minimum ? number > limit : number < limit; };
    for (const std::string& text : Around(limit, random)) {
      if (!acceptor.Accepts(text)) continue;
      ++accepted;
      EXPECT_TRUE(within(Read(text))) << text << (minimum ? " above " : " below ") << bound;
    }
    const double far = std::numeric_limits<double>::infinity(), to = minimum ? far : -far;
    double near = limit;
    for (int i = 0; i < 5; ++i) {
      near = std::nextafter(near, to);
      std::string text = nlohmann::json(near).dump();
      if (absl::StrContains(text, 'e') || text.size() > 17) continue;
      EXPECT_TRUE(acceptor.Accepts(text)) << text << (minimum ? " above " : " below ") << bound;
    }
    EXPECT_FALSE(acceptor.Accepts(bound));
  }
}

TEST(Numbers, AnExclusiveBoundHoldsForDoubles) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  int accepted = 0;
  for (const char* bound : {"1",
                            "-1",
                            "0",
                            "0.1",
                            "-0.1",
                            "0.5",
                            "100",
                            "2.5",
                            "0.0001",
                            "1000000007",
                            "123456789.125",
                            "-987654321.0987654",
                            "9007199254740992",
                            "9007199254740993",
                            "1e15",
                            "1e16",
                            "1e22",
                            "18446744073709551615",
                            "-18446744073709551617",
                            "1e-40",
                            "9.9e40",
                            "1e40"})
    CheckExclusive(bound, random, accepted);
  for (int i = 0; i < 100; ++i) {
    const double scale = std::pow(10.0, static_cast<double>(random() % 24) - 8);
    const double sign = random() % 2 == 0 ? scale : -scale;
    CheckExclusive(nlohmann::json(sign * static_cast<double>(random() % 1000000)).dump(), random,
                   accepted);
  }
  std::cout << accepted << " numerals accepted\n";
  EXPECT_GT(accepted, 1000);
}

TEST(Numbers, AnExclusiveBoundLeavesWhatItDoesNotForbid) {
  ASSERT_OK_AND_ASSIGN(
      const Acceptor between,
      Acceptor::Create(kJsonSchema,
                       R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1})"));
  for (const char* text :
       {"0.00000000000000001", "0.5", "0.12345678901234567", "0.9999999999999999"})
    EXPECT_TRUE(between.Accepts(text)) << text;
  for (const char* text :
       {"0", "0.0", "1", "1.0", "0.99999999999999999", "0.99999999999999995", "-1"})
    EXPECT_FALSE(between.Accepts(text)) << text;
  ASSERT_OK_AND_ASSIGN(
      const Acceptor integers,
      Acceptor::Create(kJsonSchema, R"({"type":"integer","exclusiveMaximum":9007199254740993})"));
  EXPECT_TRUE(integers.Accepts("9007199254740992"));
  EXPECT_FALSE(integers.Accepts("9007199254740993"));
}

TEST(Numbers, ABoundOfAnySizeIsTheOneThatIsWritten) {
  ASSERT_OK_AND_ASSIGN(
      const Acceptor above,
      Acceptor::Create(kJsonSchema, R"({"type":"integer","minimum":18446744073709551617})"));
  EXPECT_FALSE(above.Accepts("18446744073709551616"));
  EXPECT_TRUE(above.Accepts("18446744073709551617"));
  ASSERT_OK_AND_ASSIGN(
      const Acceptor below,
      Acceptor::Create(kJsonSchema, R"({"type":"number","maximum":-123456789012345678901})"));
  EXPECT_FALSE(below.Accepts("-123456789012345678900"));
  EXPECT_TRUE(below.Accepts("-123456789012345678901"));
  const std::string digits(60, '7');
  EXPECT_THAT(
      Acceptor::Create(kJsonSchema, absl::StrCat(R"({"maximum":)", digits, "}")).status().message(),
      HasSubstr(absl::StrCat("#: maximum: ", digits, ": expected a number between")));
}

TEST(Numbers, ValuesThatNothingHoldsAreRefusedByName) {
  const std::string large = "123456789012345678901234567890";
  for (const auto& [schema, place] : std::vector<std::pair<std::string, std::string>>{
           {R"({"const":N})", "#: const: N: expected"},
           {R"({"properties":{"a":{"const":-N}}})", "#/properties/a: const: -N: expected"},
           {R"({"enum":[1,{"a":[2,N]}]})", "#: enum: N: expected"}}) {
    const auto named = [&](const std::string& text) {
      return absl::StrReplaceAll(text, {{"N", large}});
    };
    const auto refused = Acceptor::Create(kJsonSchema, named(schema));
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << schema;
    EXPECT_THAT(refused.status().message(), HasSubstr(named(place)));
  }
  for (const char* held : {"100000000000000000000", "18446744073709551615", "-9223372036854775808",
                           "18446744073709552000"}) {
    ASSERT_OK_AND_ASSIGN(const Acceptor acceptor,
                         Acceptor::Create(kJsonSchema, absl::StrCat(R"({"const":)", held, "}")));
    EXPECT_TRUE(acceptor.Accepts(held)) << held;
  }
  // Of doubles any size.
  for (const char* held : {"1e+50", "-1.5e+308", "5e-324"}) {
    ASSERT_OK_AND_ASSIGN(const Acceptor acceptor,
                         Acceptor::Create(kJsonSchema, absl::StrCat(R"({"enum":[1,)", held,
                                                                    R"(],"maximum":1e40})")));
    EXPECT_EQ(acceptor.Accepts(held), absl::string_view(held) != "1e+50") << held;
  }
  // An annotation restricts nothing.
  EXPECT_OK(Acceptor::Create(kJsonSchema, absl::StrCat(R"({"default":)", large, "}")).status());
}

}  // namespace
}  // namespace tandem::guided
