// Goal: nodes and routers agree on how much of a prompt a node keeps that lends the rest.
#include "common/request/split_prompt.h"

#include "gtest/gtest.h"

namespace tandem::request {
namespace {

TEST(SplitPrompt, APromptThatIsTooLongGetsHalfOfThePool) {
  EXPECT_EQ(SplitBlocksMax(9, /*too_long=*/false), 9);
  EXPECT_EQ(SplitBlocksMax(9, /*too_long=*/true), 4);
  EXPECT_EQ(SplitBlocksMax({8, false}, {10, true}), 5);
  EXPECT_EQ(SplitBlocksMax({8, true}, {10, true}), 4);
  EXPECT_EQ(SplitBlocksMax({8, true}, {3, false}), 3);
}

TEST(SplitPrompt, ANodeComputesWhatFitsOrLeavesHalfOfItsPoolFree) {
  EXPECT_TRUE(CanComputeSplit(/*blocks=*/8, /*lent=*/0, /*pool=*/8));
  EXPECT_TRUE(CanComputeSplit(9, 5, 8));
  EXPECT_FALSE(CanComputeSplit(9, 4, 8));
}

}  // namespace
}  // namespace tandem::request
