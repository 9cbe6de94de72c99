// Goal: both legs of a sequence tell their nodes what is left until its first token is due: less
// with each retry, and "already due" once nothing is left; nothing is said without a goal, or of a
// request that is late. Predictions know that nodes compute what is due first before the rest.
#include <memory>
#include <string>
#include <utility>

#include "router/core/first_token_goal.h"
#include "router/fleet/prompt_work.h"
#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

TEST(FirstTokenGoal, SaysWhatIsLeftForNodes) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  FirstTokenGoal goal(absl::Seconds(1), start);
  EXPECT_EQ(goal.DueWithin(start), absl::Seconds(1)) << "all of it, not what placements aim at";
  EXPECT_EQ(goal.DueWithin(start + absl::Milliseconds(400)), absl::Milliseconds(600));
  EXPECT_EQ(goal.DueWithin(start + absl::Seconds(1)), absl::Microseconds(1));
  EXPECT_EQ(goal.DueWithin(start + absl::Hours(1)), absl::Microseconds(1));
  goal.SetMet();
  EXPECT_EQ(goal.DueWithin(start), absl::Seconds(1)) << "as the leader's";
  goal.SetLate();
  EXPECT_EQ(goal.DueWithin(start), absl::InfiniteDuration());
  EXPECT_EQ(FirstTokenGoal(absl::ZeroDuration(), start).DueWithin(start), absl::InfiniteDuration());
}

class FirstTokenDueTest : public RequestTest {
 protected:
  v1::StartDecode Submit(absl::Duration ttft_slo) {
    JoinAll();
    RequestInput input = CoreHarness::Input("r", 100, 10);
    input.tier =
        std::make_shared<const ServiceTier>(ServiceTier{.name = "t", .ttft_slo = ttft_slo});
    EXPECT_OK(h_.Submit(std::move(input)));
    const v1::StartDecode start = h_.NextRun(kD0);
    d_ = start.leg();
    return start;
  }
  // Lets time pass while nodes send heartbeats.
  void Pass(absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Seconds(1)) {
      for (const uint64_t node : {kD0, kD1, kP0, kP1})
        if (h_.core().fleet().Find(NodeKey(node)) != nullptr) h_.Say(node, {});
      h_.Advance(absl::Seconds(1));
    }
  }
};

TEST_F(FirstTokenDueTest, EachLegIsToldWhatIsLeft) {
  EXPECT_EQ(Submit(absl::Seconds(10)).first_token_due_us(), 10'000'000);
  h_.Advance(absl::Milliseconds(500));
  h_.Say(kD0, {Reserved(d_)});
  const v1::Prefill first = h_.NextPrefill(kP0);
  EXPECT_EQ(first.first_token_due_us(), 9'500'000);
  // Another prefill node takes its place.
  Pass(absl::Seconds(2));
  h_.Say(kP0, {Refused(first.leg(), absl::StatusCode::kUnavailable)});
  EXPECT_TRUE(h_.Next(kD0).has_new_epoch());
  h_.Say(kD0, {Reserved(d_, 0, false, 2)});
  const v1::Prefill second = h_.NextPrefill(kP1);
  EXPECT_EQ(second.first_token_due_us(), 7'500'000);
  // Its first token is out in time. It is then placed again, when the time has passed.
  h_.Say(kP1, {Generated(second.leg(), {0}), PrefillFinished(second.leg(), 100, 0)});
  Pass(absl::Seconds(9));
  h_.Lose(kD0);
  Pass(absl::Seconds(1));
  EXPECT_EQ(h_.NextRun(kD1).first_token_due_us(), 1) << "its client waits";
}

TEST(PromptWork, WhatIsDueLaterIsNotAhead) {
  const absl::Time now = absl::FromUnixSeconds(1000);
  const auto in = [&](int seconds) { return now + absl::Seconds(seconds); };
  PromptWork work;
  work.Add(100, now, in(10));
  work.Add(50, now, in(1));
  work.Add(30, now);
  EXPECT_EQ(work.RemainingUs(now, in(0)), 0);
  EXPECT_EQ(work.RemainingUs(now, in(1)), 50);
  EXPECT_EQ(work.RemainingUs(now, in(10)), 150);
  EXPECT_EQ(work.RemainingUs(now), 180);
  work.Remove(50, now, in(1));
  EXPECT_EQ(work.RemainingUs(now, in(1)), 0);
  work.Remove(30, now);
  EXPECT_EQ(work.RemainingUs(now), 100);
  work.Remove(100, now, in(10));
  EXPECT_EQ(work.RemainingUs(now), 0);
}

// A prefill node of a millisecond a row, and decode nodes that are far too slow for prompts.
class DueWaitTest : public ::testing::Test {
 protected:
  DueWaitTest() {
    RouterOptions options;
    options.placement = PlacementPolicy::kCost;
    h_ = std::make_unique<CoreHarness>(options);
    h_->JoinDecode(kD0, "d0");
    h_->JoinPrefill(kP0, "p0");
    for (const auto& [key, row_us] : {std::pair(kD0, 100'000.0), std::pair(kP0, 1000.0)}) {
      v1::NodeMessage message;
      message.mutable_step_cost()->set_prompt_row_us(row_us);
      message.mutable_step_cost()->set_generated_row_us(10);
      h_->SayMessage(key, message);
    }
  }
  v1::Leg Submit(const std::string& id, absl::Duration ttft_slo, int prompt) {
    RequestInput input = CoreHarness::Input(id, prompt, 10);
    input.tier = std::make_shared<const ServiceTier>(ServiceTier{.ttft_slo = ttft_slo});
    EXPECT_OK(h_->Submit(std::move(input)));
    return h_->Quiet(kD0) ? v1::Leg() : h_->NextRun(kD0).leg();
  }
  std::unique_ptr<CoreHarness> h_;
};

TEST_F(DueWaitTest, WhatIsDueLaterDoesNotKeepARequestFromItsNode) {
  Submit("batch", absl::Seconds(60), 1000);  // a second
  EXPECT_EQ(Submit("chat", absl::Milliseconds(500), 100).request_id(), "chat")
      << "the node computes it first";
  EXPECT_EQ(Submit("in 60 s", absl::Seconds(60), 100).request_id(), "in 60 s");
  EXPECT_EQ(h_->core().sequences_queued(), 0);
  h_->Finish("batch", request::FinishReason::kAborted);
  h_->Finish("chat", request::FinishReason::kAborted);
  h_->Finish("in 60 s", request::FinishReason::kAborted);
  const Node& node = *h_->core().fleet().Find(NodeKey(kP0));
  EXPECT_EQ(node.work.us(), 0);
  EXPECT_EQ(node.WaitUs(100, h_->now(), h_->now()), 0);
}

TEST_F(DueWaitTest, AFirstTokenInItsTimeIsNotHeldAgainstTheNode) {
  const Node& node = *h_->core().fleet().Find(NodeKey(kP0));
  const auto late_us = [&](const std::string& id, absl::Duration ttft_slo) {
    const v1::Leg decode = Submit(id, ttft_slo, 100);
    h_->Say(kD0, {Reserved(decode)});
    const v1::Leg prefill = h_->NextPrefill(kP0).leg();
    for (int i = 0; i < 3; ++i) {  // ten times and more what was predicted
      for (const uint64_t key : {kD0, kP0}) h_->Say(key, {});
      h_->Advance(absl::Milliseconds(500));
    }
    h_->Say(kP0, {Generated(prefill, {0})});
    EXPECT_EQ(h_->client(id).tokens.size(), 1) << id;
    return node.record.LateUs(h_->now());
  };
  EXPECT_EQ(late_us("in time", absl::Seconds(10)), 0);
  EXPECT_GT(late_us("late", absl::Seconds(1)), 0);
}

TEST_F(FirstTokenDueTest, WithoutAGoalNothingIsSaid) {
  EXPECT_EQ(Submit(absl::ZeroDuration()).first_token_due_us(), 0);
  h_.Say(kD0, {Reserved(d_)});
  EXPECT_EQ(h_.NextPrefill(kP0).first_token_due_us(), 0);
}

}  // namespace
}  // namespace tandem::router
