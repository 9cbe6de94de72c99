// Goal: what a token or a mask is charged does not depend on what other sequences have read, so
// whether an answer ends with an error is the answer's own.
#include <string>
#include <vector>

#include "common/guided/compile.h"
#include "common/guided/constraint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::guided {
namespace {

using ::testing::HasSubstr;

constexpr TokenId kCheap = 256, kCostly = 257;  // five letters, and forty

class ChargeTest : public ::testing::Test {
 protected:
  // After k letters 400 - k places are left to read the next one at: each step is costly, and
  // none is like another.
  static std::shared_ptr<Constraint> New(bool with_long_tokens) {
    std::vector<std::string> tokens;
    for (int b = 0; b < 256; ++b) tokens.push_back(std::string(1, static_cast<char>(b)));
    if (with_long_tokens) {
      tokens.push_back(std::string(5, 'a'));
      tokens.push_back(std::string(40, 'a'));
    }
    const auto vocabulary = std::make_shared<const Vocabulary>(std::move(tokens));
    const request::GuidedParams params = {.kind = request::GuidedParams::Kind::kGrammar,
                                          .text = "root ::= ([a-z]?){400}"};
    return std::make_shared<Constraint>(*Compile(params, vocabulary->token_bytes_max()),
                                        vocabulary);
  }
  // Reads, letter by letter, all that the long tokens have.
  static void Warm(const std::shared_ptr<Constraint>& constraint) {
    Matcher other(constraint, {});
    for (int i = 0; i < 40; ++i) ASSERT_OK(other.Advance('a'));
  }
};

TEST_F(ChargeTest, ATokenIsReadOrNotWhateverOthersHaveRead) {
  for (const bool warm : {false, true}) {
    SCOPED_TRACE(warm);
    const auto constraint = New(true);
    if (warm) Warm(constraint);
    Matcher matcher(constraint, {});
    EXPECT_THAT(matcher.Advance(kCostly).message(), HasSubstr("too ambiguous to follow"));
    EXPECT_OK(matcher.Advance(kCheap));
  }
}

TEST_F(ChargeTest, AMaskIsComputedOrNotWhateverOthersHaveRead) {
  for (const bool long_tokens : {false, true}) {
    for (const bool warm : {false, true}) {
      SCOPED_TRACE(warm);
      const auto constraint = New(long_tokens);
      if (warm) Warm(constraint);
      Matcher matcher(constraint, {});
      const absl::Status mask = matcher.Allowed().status();
      EXPECT_EQ(mask.ok(), !long_tokens) << mask;
    }
  }
}

// The engine's thread never works more than it charges.
TEST_F(ChargeTest, AChargeCoversTheWork) {
  const auto constraint = New(true);
  Constraint::Place place = constraint->Start();
  uint64_t cold = 0, warm = 0;
  ASSERT_TRUE(constraint->Advance(place, std::string(5, 'a'), &cold));
  place = constraint->Start();
  ASSERT_TRUE(constraint->Advance(place, std::string(5, 'a'), &warm));
  EXPECT_GT(cold, uint64_t{50'000});
  EXPECT_EQ(warm, 5u) << "a step that is known takes nothing";
}

}  // namespace
}  // namespace tandem::guided
