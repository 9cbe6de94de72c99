// Goal: a request that cannot get its first token in time any more waits behind those that can; no
// goal changes nothing, and no such request holds up another.
#include "router/core/first_token_goal.h"

#include "tests/testing/status_matchers.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

RouterOptions Options(absl::Duration ttft_slo) {
  RouterOptions options;
  options.placement = PlacementPolicy::kCost;
  options.ttft_slo = ttft_slo;
  options.queue_deadline = absl::Seconds(30);
  options.prefill_wait_max = absl::Seconds(2);
  return options;
}

class FirstTokenGoalTest : public ::testing::Test {
 protected:
  // A prefill node that takes a millisecond for a row, and a decode node that is far too slow to
  // compute a prompt.
  void Start(absl::Duration ttft_slo) {
    h_ = std::make_unique<CoreHarness>(Options(ttft_slo));
    h_->JoinDecode(1, "d0");
    h_->JoinPrefill(2, "p0");
    SayCost(1, 100'000);
    SayCost(2, 1000);
    SetWaiting(5000);
  }
  void SayCost(uint64_t key, double prompt_row_us) {
    v1::NodeMessage message;
    message.mutable_step_cost()->set_prompt_row_us(prompt_row_us);
    message.mutable_step_cost()->set_generated_row_us(10);
    h_->SayMessage(key, message);
  }
  // Prompts of other routers before the prefill node.
  void SetWaiting(int64_t tokens) {
    v1::NodeMessage message;
    message.mutable_load()->set_blocks_free(100);
    message.mutable_load()->set_prefill_tokens_waiting(tokens);
    h_->SayMessage(2, message);
  }
  // Lets time pass while nodes send heartbeats.
  void Pass(absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Milliseconds(50)) {
      for (const uint64_t key : {1, 2}) h_->SayMessage(key, v1::NodeMessage());
      h_->Advance(absl::Milliseconds(50));
    }
  }
  // The requests that the decode node was asked to take, in order.
  std::vector<std::string> Placed() {
    std::vector<std::string> ids;
    while (!h_->Quiet(1)) ids.push_back(h_->NextRun(1).leg().request_id());
    return ids;
  }
  std::unique_ptr<CoreHarness> h_;
};

TEST_F(FirstTokenGoalTest, OneThatIsLateWaitsBehindThoseThatAreInTime) {
  Start(absl::Seconds(1));
  ASSERT_OK(h_->Submit("old", 100));
  Pass(absl::Milliseconds(700));
  ASSERT_OK(h_->Submit("young", 100));
  Pass(absl::Milliseconds(200));
  EXPECT_EQ(h_->core().sequences_queued(), 2) << "neither is refused";
  SetWaiting(0);
  EXPECT_EQ(Placed(), (std::vector<std::string>{"young", "old"}));
}

TEST_F(FirstTokenGoalTest, InTimeTheOrderIsThatOfArrival) {
  Start(absl::Seconds(10));
  ASSERT_OK(h_->Submit("old", 100));
  Pass(absl::Milliseconds(700));
  ASSERT_OK(h_->Submit("young", 100));
  Pass(absl::Milliseconds(200));
  SetWaiting(0);
  EXPECT_EQ(Placed(), (std::vector<std::string>{"old", "young"}));
}

TEST_F(FirstTokenGoalTest, WithoutAGoalNobodyIsLate) {
  Start(absl::ZeroDuration());
  ASSERT_OK(h_->Submit("old", 100));
  Pass(absl::Seconds(20));
  ASSERT_OK(h_->Submit("young", 100));
  SetWaiting(0);
  EXPECT_EQ(Placed(), (std::vector<std::string>{"old", "young"}));
}

TEST_F(FirstTokenGoalTest, ALateRequestIsServedWhenThereIsTime) {
  Start(absl::Milliseconds(50));  // a prompt of 100 tokens alone takes longer
  SetWaiting(0);
  ASSERT_OK(h_->Submit("slow", 100));
  Pass(absl::Milliseconds(50));
  EXPECT_EQ(Placed(), std::vector<std::string>{"slow"});
}

// More requests than a walk tries are out of time; one that is in time is still placed.
TEST_F(FirstTokenGoalTest, WhatIsLateHoldsUpNobody) {
  Start(absl::Seconds(1));
  for (int i = 0; i < 300; ++i) ASSERT_OK(h_->Submit(absl::StrCat("old", i), 100));
  Pass(absl::Seconds(2));
  ASSERT_OK(h_->Submit("young", 100));
  SetWaiting(0);
  const std::vector<std::string> placed = Placed();
  ASSERT_FALSE(placed.empty());
  EXPECT_EQ(placed.front(), "young");
}

TEST(FirstTokenGoal, AimsAtNineTenthsOfTheLimit) {
  const absl::Time start = absl::FromUnixSeconds(5);
  FirstTokenGoal goal(absl::Seconds(10), start);
  EXPECT_EQ(goal.Left(start + absl::Seconds(2)), absl::Seconds(7));
  EXPECT_FALSE(goal.OutOfReach(absl::Seconds(7), start + absl::Seconds(2)));
  EXPECT_TRUE(goal.OutOfReach(absl::Seconds(8), start + absl::Seconds(2)));
  goal.SetLate();
  EXPECT_EQ(goal.Left(start), absl::InfiniteDuration());
  const FirstTokenGoal none(absl::ZeroDuration(), start);
  EXPECT_EQ(none.Left(start + absl::Hours(9)), absl::InfiniteDuration());
}

}  // namespace
}  // namespace tandem::router
