// Goal: a decode node takes the time at which a first token is due from its router's command, and
// computes what is due first before the rest; what cannot be such a time counts as none.
#include <cstdint>
#include <limits>
#include <utility>

#include "tests/unit/node/decode_core_fixture.h"

namespace tandem::decode_node {
namespace {

class FirstTokenDueTest : public DecodeCoreTest {
 protected:
  // Which of two prompts the first step computes first: the one that came first, or the other.
  bool SecondPasses(int64_t first_due_us, int64_t second_due_us) {
    MakeFresh();
    for (const auto& [id, due_us] : {std::pair("a", first_due_us), std::pair("b", second_due_us)}) {
      v1::NodeCommand run = Run(id, *id == 'a' ? 40 : 41, /*local_max=*/-1);
      run.mutable_start_decode()->set_first_token_due_us(due_us);
      const node::NodeActions actions = Send(run);
      EXPECT_EQ(actions.events.size(), 1);
      EXPECT_TRUE(actions.events[0].second.has_reserved()) << id << " is taken";
      now_ += absl::Milliseconds(10);
    }
    return core_->PlanStep(now_).front().tokens.size() == 41;
  }
};

TEST_F(FirstTokenDueTest, WhatIsDueFirstIsComputedFirst) {
  EXPECT_TRUE(SecondPasses(60'000'000, 200'000));
  EXPECT_FALSE(SecondPasses(200'000, 60'000'000));
  EXPECT_FALSE(SecondPasses(200'000, 200'000)) << "then the one that came first";
  EXPECT_TRUE(SecondPasses(0, 1));
  EXPECT_FALSE(SecondPasses(0, 0));
}

TEST_F(FirstTokenDueTest, WhatIsNoTimeCountsAsNone) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t none : {kLeast, int64_t{-1}, int64_t{0}}) {
    EXPECT_FALSE(SecondPasses(0, none)) << none;
    EXPECT_FALSE(SecondPasses(none, 0)) << none;
    EXPECT_TRUE(SecondPasses(none, 1)) << none;
    EXPECT_FALSE(SecondPasses(kMost, none)) << none;
  }
  EXPECT_FALSE(SecondPasses(60'000'000, kMost)) << "both are as far off as counts";
}

}  // namespace
}  // namespace tandem::decode_node
