// Goal: both legs of a sequence tell their nodes what is left until its first token is due: less
// with each retry, and "already due" once nothing is left; nothing is said without a goal, or of a
// request that is late. A first token that comes in its time is not held against its node.
#include <memory>
#include <string>
#include <utility>

#include "router/core/first_token_goal.h"
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

// A prefill node of a millisecond a row, and a decode node that is far too slow for prompts.
class InTimeTest : public ::testing::Test {
 protected:
  InTimeTest() {
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

TEST_F(InTimeTest, AFirstTokenInItsTimeIsNotHeldAgainstTheNode) {
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
