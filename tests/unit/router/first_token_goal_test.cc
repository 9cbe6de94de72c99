// Goal: a request that cannot get its first token in time any more waits behind those that can, or
// is refused if the operator says so, but only for what waiting heals; no goal changes nothing, and
// no such request holds up another. A goal for the gaps between tokens lets requests wait as long
// as that helps.
#include "router/core/first_token_goal.h"

#include <gmock/gmock.h>

#include "absl/strings/numbers.h"
#include "common/rpc/retry_after.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/router/core_harness.h"
#include "tests/unit/router/step_goal_fixture.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

RouterOptions Options(absl::Duration ttft_slo, LatePolicy late) {
  RouterOptions options;
  options.placement = PlacementPolicy::kCost;
  options.default_tier.ttft_slo = ttft_slo;
  options.default_tier.late = late;
  options.queue_deadline = absl::Seconds(30);
  options.prefill_wait_max = absl::Seconds(2);
  return options;
}

class FirstTokenGoalTest : public ::testing::Test {
 protected:
  // A prefill node that takes a millisecond for a row, and a decode node that is far too slow to
  // compute a prompt.
  void Start(absl::Duration ttft_slo, LatePolicy late = LatePolicy::kServe,
             int64_t queue_max = RouterOptions().queue_max) {
    RouterOptions options = Options(ttft_slo, late);
    options.queue_max = queue_max;
    h_ = std::make_unique<CoreHarness>(options);
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

int64_t RetryAfter(const absl::Status& status) {
  int64_t seconds = 0;
  const std::string text(status.GetPayload(rpc::kRetryAfterPayload).value_or(absl::Cord()));
  return absl::SimpleAtoi(text, &seconds) ? seconds : 0;
}

// The prefill node begins in 5 s, and each prompt takes 0.1 s. The first prediction that is too
// late, even if it is a fifth too long, is 12.5 s.
TEST_F(FirstTokenGoalTest, WhatWouldBeLateBehindTheQueueIsRefusedAtOnce) {
  Start(absl::Seconds(10), LatePolicy::kRefuse);
  int taken = 0;
  absl::Status refused;
  while (taken < 100 && (refused = h_->Submit(absl::StrCat("r", taken), 100)).ok()) ++taken;
  EXPECT_GE(taken, 70);
  EXPECT_LE(taken, 80);
  EXPECT_EQ(h_->core().sequences_queued(), taken);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("the first token is predicted 12.")));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the goal is 10s (--ttft-slo)"));
  EXPECT_EQ(RetryAfter(refused), 4) << "12.6 s are 9 s, nine tenths of the goal, in 3.6 s";
  // Nor do those get in for which no place was tried, because many wait.
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(h_->Submit(absl::StrCat("another", i), 100).ok());
  SetWaiting(0);
  EXPECT_THAT(Placed(), ::testing::Contains("r0"));
  EXPECT_OK(h_->Submit("later", 100));
}

// A late request that is refused costs no other tenant its place in a full queue.
TEST_F(FirstTokenGoalTest, ARefusedRequestCostsNobodyAPlace) {
  constexpr int kQueueMax = 10;
  Start(absl::Seconds(1), LatePolicy::kRefuse, kQueueMax);
  for (int i = 0; i < kQueueMax; ++i) {
    RequestInput patient = CoreHarness::Input(absl::StrCat("eve", i), 100, 10);
    patient.share.tenant = "eve";
    patient.tier = std::make_shared<const ServiceTier>();
    ASSERT_OK(h_->Submit(std::move(patient)));
  }
  ASSERT_EQ(h_->core().sequences_queued(), kQueueMax);
  RequestInput late = CoreHarness::Input("late", 100, 10);
  late.share.tenant = "bob";
  EXPECT_THAT(h_->Submit(std::move(late)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("first token")));
  EXPECT_EQ(h_->core().sequences_queued(), kQueueMax);
}

// A prompt that was taken cannot be in time any more, because other routers' prompts came. It takes
// no time from those behind it.
TEST_F(FirstTokenGoalTest, APromptThatWillBeTooLateDoesNotCountForOthers) {
  Start(absl::Seconds(10), LatePolicy::kRefuse);
  SayCost(1, 1'000'000);
  SayCost(2, 30'000);  // a prompt of 100 tokens takes 3 s, one of 70 takes 2.1
  SetWaiting(150);     // 4.5 s
  ASSERT_OK(h_->Submit("first", 100));
  ASSERT_OK(h_->Submit("second", 100));
  // The first prediction that is too late, even if it is a fifth too long, is 12.5 s.
  EXPECT_FALSE(h_->Submit("third", 70).ok()) << "4.5 + 3 + 3 + 2.1 = 12.6 s";
  SetWaiting(220);  // 6.6 s: the second one would be answered after 12.6 s
  EXPECT_OK(h_->Submit("fourth", 70)) << "6.6 + 3 + 2.1 = 11.7 s";
}

TEST_F(FirstTokenGoalTest, WhatBecomesLateWhileItWaitsIsRefused) {
  Start(absl::Seconds(10), LatePolicy::kRefuse);
  ASSERT_OK(h_->Submit("old", 100));
  for (int i = 0; i < 11; ++i) {
    if (i < 9) {
      EXPECT_OK(h_->client("old").failure) << i;
    }
    SetWaiting(5000);  // of other routers
    Pass(absl::Seconds(1));
  }
  EXPECT_THAT(h_->client("old").failure,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("(--ttft-slo)")));
  EXPECT_GE(RetryAfter(h_->client("old").failure), 1);
  h_->ExpectEmpty();
}

// Its prompt takes 3 s, of which 2.4 are certain: after 7.6 s nothing can bring its first token in
// time.
TEST_F(FirstTokenGoalTest, WhatWaitingHasMadeTooLateIsRefusedBeforeTheGoal) {
  Start(absl::Seconds(10), LatePolicy::kRefuse);
  SayCost(2, 30'000);
  SetWaiting(150);
  ASSERT_OK(h_->Submit("old", 100));
  Pass(absl::Seconds(7));
  EXPECT_OK(h_->client("old").failure);
  Pass(absl::Seconds(1));
  EXPECT_THAT(h_->client("old").failure,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("is predicted")));
}

// Nobody looks for a place for one that needs more room than there is. It is refused all the same.
TEST_F(FirstTokenGoalTest, WhatFindsNoRoomInTimeIsRefused) {
  Start(absl::Seconds(3), LatePolicy::kRefuse);
  v1::NodeMessage full;
  full.mutable_load()->set_blocks_total(100);
  full.mutable_load()->set_blocks_free(0);
  h_->SayMessage(1, full);
  ASSERT_OK(h_->Submit("first", 100));
  ASSERT_OK(h_->Submit("second", 100));
  Pass(absl::Seconds(2));
  EXPECT_EQ(h_->core().sequences_queued(), 2);
  Pass(absl::Seconds(2));
  for (const char* id : {"first", "second"}) {
    EXPECT_THAT(h_->client(id).failure,
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("(--ttft-slo)")));
    EXPECT_GE(RetryAfter(h_->client(id).failure), 1);
  }
}

// A search of two beams has its first token in time. Then its beams wait for room for longer than
// the goal: they are not first tokens.
TEST_F(FirstTokenGoalTest, ABeamSearchThatRunsIsNotRefused) {
  h_ = std::make_unique<CoreHarness>(Options(absl::Seconds(1), LatePolicy::kRefuse));
  h_->JoinDecode(1, "d0");
  SayCost(1, 1000);
  const auto set_free = [this](int64_t blocks) {
    v1::NodeMessage load;
    load.mutable_load()->set_blocks_total(100);
    load.mutable_load()->set_blocks_free(blocks);
    h_->SayMessage(1, load);
  };
  const auto step = [this](const v1::Leg& leg) {
    v1::NodeEvent event = Generated(leg, {0});
    for (int i = 0; i < 3; ++i) {
      v1::TokenLogprob& top =
          *event.mutable_tokens()->mutable_steps(0)->mutable_tokens(0)->add_top_logprobs();
      top.set_token_id(10 + i);
      top.set_logprob(static_cast<float>(-1 - i));
    }
    h_->Say(1, {Reserved(leg, 0, true), Installed(leg, -1), event});
  };
  RequestInput input = CoreHarness::Input("search", 100, 2);
  input.beams = BeamParams{.width = 2};
  ASSERT_OK(h_->Submit(std::move(input)));
  const v1::Leg first = h_->NextRun(1).leg();
  set_free(0);
  step(first);
  EXPECT_EQ(h_->core().sequences_queued(), 2);
  for (int i = 0; i < 4; ++i) {
    set_free(0);
    h_->Advance(absl::Milliseconds(500));
  }
  EXPECT_OK(h_->client("search").failure);
  set_free(90);
  for (int i = 0; i < 2; ++i) step(h_->NextRun(1).leg());
  EXPECT_TRUE(h_->client("search").done.has_value());
  h_->ExpectEmpty();
}

TEST_F(FirstTokenGoalTest, WhatIsTooLongForTheGoalIsServedLate) {
  Start(absl::Milliseconds(50), LatePolicy::kRefuse);  // no wait makes it shorter
  SetWaiting(0);
  ASSERT_OK(h_->Submit("slow", 100));
  Pass(absl::Milliseconds(50));
  EXPECT_EQ(Placed(), std::vector<std::string>{"slow"});
}

TEST_F(FirstTokenGoalTest, ARefusalByAFullNodeEndsNoGoal) {
  Start(absl::Seconds(2), LatePolicy::kRefuse);
  SetWaiting(0);
  ASSERT_OK(h_->Submit("r", 100));
  int asked = 0;
  for (int i = 0; i < 50; ++i) {
    while (!h_->Quiet(1)) {
      const v1::NodeCommand command = h_->Next(1);
      if (!command.has_start_decode()) continue;
      ++asked;
      h_->Say(1, {Refused(command.start_decode().leg(), absl::StatusCode::kResourceExhausted)});
    }
    Pass(absl::Milliseconds(50));
  }
  EXPECT_GE(asked, 2);
  EXPECT_THAT(h_->client("r").failure,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the goal is 2s")));
}

class GapGoalTest : public StepGoalFixture {
 protected:
  void StartWithGoal(absl::Duration gap_slo) {
    RouterOptions options = Options(absl::ZeroDuration(), LatePolicy::kServe);
    options.default_tier.gap_slo = gap_slo;
    options.queue_deadline = absl::Seconds(3);
    Start(options);
  }
};

TEST_F(GapGoalTest, RequestsWaitWhileStepsWouldTakeTooLong) {
  StartWithGoal(absl::Milliseconds(25));
  for (int i = 0; i < 5; ++i) ASSERT_OK(h_->Submit(absl::StrCat("r", i), 20));
  EXPECT_EQ(Started(1).size(), 2);
  EXPECT_EQ(Started(2).size(), 2);
  EXPECT_EQ(h_->core().sequences_queued(), 1);
  h_->Finish("r0", request::FinishReason::kAborted);
  EXPECT_EQ(h_->core().sequences_queued(), 0);
  ASSERT_OK(h_->Submit("one more", 20));
  for (int i = 0; i < 4; ++i) {
    for (const uint64_t key : {1, 2}) h_->SayMessage(key, v1::NodeMessage());
    h_->Advance(absl::Seconds(1));
  }
  EXPECT_THAT(h_->client("one more").failure,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("25ms (--gap-slo)")));
  EXPECT_GE(RetryAfter(h_->client("one more").failure), 1);
}

TEST_F(GapGoalTest, WaitingDoesNotShortenASequencesOwnStep) {
  StartWithGoal(absl::Milliseconds(5));
  for (int i = 0; i < 5; ++i) ASSERT_OK(h_->Submit(absl::StrCat("r", i), 20));
  EXPECT_EQ(h_->core().sequences_queued(), 0);
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
