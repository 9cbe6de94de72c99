// Goal: an operator's tiers are read as written, or refused with what is wrong; a request gets the
// tier that it names and may have. Requests whose goals are in reach come first, the earliest due
// first; those without a goal wait behind them, but not for ever; and no placement makes a node's
// steps longer than what runs there allows.
#include "router/core/service_tiers.h"

#include <gmock/gmock.h>

#include "tests/testing/status_matchers.h"
#include "tests/unit/router/core_harness.h"
#include "tests/unit/router/step_goal_fixture.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

ServiceTier DefaultTier() {
  ServiceTier tier;
  tier.ttft_slo = absl::Seconds(10);
  tier.gap_slo = absl::Milliseconds(80);
  tier.late = LatePolicy::kRefuse;
  return tier;
}

TEST(ServiceTiers, WhatALineLeavesOutIsAsTheDefaultTierHasIt) {
  ASSERT_OK_AND_ASSIGN(
      const ServiceTiers tiers,
      ServiceTiers::Parse({"priority ttft=1s gap=50ms priority=-5", " flex  ttft=0 late=serve "},
                          DefaultTier()));
  ASSERT_EQ(tiers.all().size(), 3);
  EXPECT_EQ(tiers.all()[0]->name, "default");
  EXPECT_EQ(tiers.all()[0]->ttft_slo, absl::Seconds(10));
  const ServiceTier& priority = *tiers.all()[1];
  EXPECT_EQ(priority.name, "priority");
  EXPECT_EQ(priority.ttft_slo, absl::Seconds(1));
  EXPECT_EQ(priority.gap_slo, absl::Milliseconds(50));
  EXPECT_EQ(priority.late, LatePolicy::kRefuse);
  EXPECT_EQ(priority.priority, -5);
  const ServiceTier& flex = *tiers.all()[2];
  EXPECT_EQ(flex.ttft_slo, absl::ZeroDuration());
  EXPECT_EQ(flex.gap_slo, absl::Milliseconds(80));
  EXPECT_EQ(flex.late, LatePolicy::kServe);
  EXPECT_EQ(flex.priority, 0);
}

TEST(ServiceTiers, BadLinesSayWhatIsWrong) {
  const auto why = [](std::vector<std::string> lines) {
    const auto tiers = ServiceTiers::Parse(lines, ServiceTier());
    EXPECT_THAT(tiers, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("service-tiers: ")));
    return std::string(tiers.status().message());
  };
  EXPECT_THAT(why({""}), HasSubstr("expected NAME"));
  EXPECT_THAT(why({"Gold"}), HasSubstr("lower-case"));
  EXPECT_THAT(why({std::string(33, 'x')}), HasSubstr("1 to 32"));
  EXPECT_THAT(why({"default ttft=1s"}), HasSubstr("--ttft-slo"));
  EXPECT_THAT(why({"auto"}), HasSubstr("not \"auto\""));
  EXPECT_THAT(why({"flex ttft=fast"}), HasSubstr("\"ttft=fast\", expected a duration"));
  EXPECT_THAT(why({"flex gap=-1s"}), HasSubstr("\"gap=-1s\", expected a duration of at least 0"));
  EXPECT_THAT(why({"flex ttft=inf"}), HasSubstr("\"ttft=inf\""));
  EXPECT_THAT(why({"flex late=never"}), HasSubstr("late=serve or late=refuse"));
  EXPECT_THAT(why({"flex priority=1001"}), HasSubstr("-1000 to 1000"));
  EXPECT_THAT(why({"flex weight=2"}), HasSubstr("expected ttft=DURATION"));
  EXPECT_THAT(why({"flex", "flex"}), HasSubstr("an earlier tier has this name"));
  std::vector<std::string> many;
  for (size_t i = 0; i < kServiceTiersMax; ++i) many.push_back(absl::StrCat("t", i));
  EXPECT_OK(ServiceTiers::Parse(many, ServiceTier()).status());
  many.push_back("more");
  EXPECT_THAT(why(many), HasSubstr("at most 16"));
}

TEST(ServiceTiers, ARequestGetsTheTierThatItNamesAndMayHave) {
  ASSERT_OK_AND_ASSIGN(const ServiceTiers tiers,
                       ServiceTiers::Parse({"flex", "gold"}, ServiceTier()));
  const auto name = [&](absl::string_view asked, std::vector<std::string> allowed = {}) {
    const auto tier = tiers.Choose(asked, allowed);
    return tier.ok() ? (*tier)->name : tier.status().ToString();
  };
  EXPECT_EQ(name(""), "default");
  EXPECT_EQ(name("auto"), "default");
  EXPECT_EQ(name("default"), "default");
  EXPECT_EQ(name("flex"), "flex");
  EXPECT_EQ(name("priority"), "default") << "a name of OpenAI's that this router has not";
  EXPECT_THAT(name("silver"), HasSubstr("INVALID_ARGUMENT: service_tier: \"silver\", expected auto "
                                        "or one of default, flex, gold"));
  EXPECT_THAT(name(std::string(1 << 20, 'x')),
              HasSubstr("service_tier: a text of 1048576 bytes, expected auto"));
  EXPECT_LT(name(std::string(1 << 20, 'x')).size(), 200);
  EXPECT_EQ(name("", {"gold", "flex"}), "gold");
  EXPECT_EQ(name("priority", {"gold", "flex"}), "gold");
  EXPECT_EQ(name("flex", {"gold", "flex"}), "flex");
  EXPECT_THAT(name("default", {"gold", "flex"}),
              HasSubstr("PERMISSION_DENIED: service_tier: \"default\", expected one that this key "
                        "may use: gold or flex"));
}

std::shared_ptr<const ServiceTier> Tier(const std::string& line) {
  return ServiceTiers::Parse({line}, ServiceTier()).value().all()[1];
}

// A prefill node that takes a millisecond for a row, and a decode node that is far too slow to
// compute a prompt.
class TierOrderTest : public ::testing::Test {
 protected:
  TierOrderTest() {
    RouterOptions options;
    options.placement = PlacementPolicy::kCost;
    options.queue_deadline = absl::Seconds(30);
    options.prefill_wait_max = absl::Seconds(2);
    h_ = std::make_unique<CoreHarness>(options);
    h_->JoinDecode(1, "d0");
    h_->JoinPrefill(2, "p0");
    for (const auto& [key, row_us] : {std::pair(1, 100'000.0), std::pair(2, 1000.0)}) {
      v1::NodeMessage message;
      message.mutable_step_cost()->set_prompt_row_us(row_us);
      message.mutable_step_cost()->set_generated_row_us(10);
      h_->SayMessage(static_cast<uint64_t>(key), message);
    }
    SetWaiting(5000);
  }
  void SetWaiting(int64_t tokens) {
    v1::NodeMessage message;
    message.mutable_load()->set_blocks_free(1000);
    message.mutable_load()->set_blocks_total(1000);
    message.mutable_load()->set_prefill_tokens_waiting(tokens);
    h_->SayMessage(2, message);
    h_->SayMessage(1, message);
  }
  void Submit(const std::string& id, const std::string& tier, int prompt = 100) {
    RequestInput input = CoreHarness::Input(id, prompt, 10);
    input.tier = Tier(tier);
    input.priority = input.tier->priority;
    ASSERT_OK(h_->Submit(std::move(input)));
  }
  std::vector<std::string> Placed() {
    std::vector<std::string> ids;
    while (!h_->Quiet(1)) {
      const v1::NodeCommand command = h_->Next(1);
      if (command.has_start_decode()) ids.push_back(command.start_decode().leg().request_id());
    }
    return ids;
  }
  std::unique_ptr<CoreHarness> h_;
};

TEST_F(TierOrderTest, TheFirstThatIsDueComesFirstAndThoseWithoutAGoalLast) {
  Submit("none", "flex");
  Submit("in 20 s", "batch ttft=20s");
  Submit("in 9 s", "chat ttft=9s");
  Submit("also in 9 s", "chat ttft=9s");
  Submit("urgent, in 20 s", "batch ttft=20s priority=-5");
  EXPECT_EQ(h_->core().sequences_queued(), 5);
  SetWaiting(0);
  EXPECT_EQ(Placed(), (std::vector<std::string>{"in 9 s", "also in 9 s", "urgent, in 20 s",
                                                "in 20 s", "none"}));
}

// What cannot meet its goal any more waits with those that have none, in the order of arrival.
TEST_F(TierOrderTest, WhatIsLateWaitsWithThoseThatHaveNoGoal) {
  Submit("none", "flex");
  Submit("late", "chat ttft=1s");
  Submit("in time", "batch ttft=20s");
  h_->Advance(absl::Seconds(1));
  SetWaiting(5000);
  SetWaiting(0);
  EXPECT_EQ(Placed(), (std::vector<std::string>{"in time", "none", "late"}));
}

TEST_F(TierOrderTest, OneWithoutAGoalGetsItsPartOfTheTokens) {
  Submit("none", "flex");
  const int in_time = 4 * AdmissionQueue::kLatePart;
  for (int i = 0; i < in_time; ++i) Submit(absl::StrCat("r", i), "chat ttft=29s");
  SetWaiting(0);
  std::vector<std::string> placed;
  for (std::vector<std::string> more = Placed(); !more.empty(); more = Placed()) {
    for (const std::string& id : more) {
      placed.push_back(id);
      h_->Finish(id, request::FinishReason::kAborted);
    }
    SetWaiting(0);
  }
  const auto none = std::find(placed.begin(), placed.end(), "none");
  ASSERT_NE(none, placed.end());
  EXPECT_GE(none - placed.begin(), AdmissionQueue::kLatePart);
  EXPECT_LT(none - placed.begin(), in_time) << "before the last of those with a goal";
}

TEST_F(TierOrderTest, ARefusalNamesTheTier) {
  RequestInput input = CoreHarness::Input("r", 100, 10);
  input.tier = Tier("chat ttft=2s late=refuse");
  EXPECT_THAT(h_->Submit(std::move(input)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("the goal is 2s (ttft of service tier chat)")));
}

class StepGoalTest : public StepGoalFixture {
 protected:
  StepGoalTest() { Start(RouterOptions()); }
  void Submit(const std::string& id, const std::string& tier) {
    RequestInput input = CoreHarness::Input(id, 20, 10);
    input.tier = Tier(tier);
    ASSERT_OK(h_->Submit(std::move(input)));
  }
};

TEST_F(StepGoalTest, OthersDoNotMakeTheStepsLongerThanWhatRunsThereAllows) {
  Submit("chat", "chat gap=25ms");
  const std::vector<v1::StartDecode> first = Started(1);
  const uint64_t with_chat = first.empty() ? 2 : 1, other = 3 - with_chat;
  const v1::StartDecode chat = first.empty() ? Started(2).at(0) : first[0];
  EXPECT_EQ(chat.step_goal_us(), 25'000) << "the node keeps its steps short as well";
  for (int i = 0; i < 8; ++i) Submit(absl::StrCat("flex", i), "flex");
  const size_t beside = Started(with_chat).size();
  const std::vector<v1::StartDecode> elsewhere = Started(other);
  EXPECT_LE(beside, 1) << "two sequences take 20 ms, three 30";
  EXPECT_EQ(beside + elsewhere.size(), 8);
  for (const v1::StartDecode& start : elsewhere) EXPECT_EQ(start.step_goal_us(), 0);
  // Its goal ends with it.
  h_->Finish("chat", request::FinishReason::kAborted);
  Started(with_chat);
  for (int i = 0; i < 4; ++i) Submit(absl::StrCat("more", i), "flex");
  EXPECT_GE(Started(with_chat).size(), 3);
}

TEST_F(StepGoalTest, AnswersOfOneRequestHeedThem) {
  Submit("chat", "chat gap=35ms");
  const std::vector<v1::StartDecode> first = Started(1);
  const uint64_t with_chat = first.empty() ? 2 : 1;
  EXPECT_EQ(first.size() + Started(2).size(), 1);
  h_->Lose(3 - with_chat);
  RequestInput input = CoreHarness::Input("many", 20, 10);
  input.tier = Tier("flex");
  input.sequences = 8;
  ASSERT_OK(h_->Submit(std::move(input)));
  const std::vector<v1::StartDecode> leader = Started(with_chat);
  ASSERT_EQ(leader.size(), 1);
  h_->Say(with_chat, {Reserved(leader[0].leg(), 0, true), Installed(leader[0].leg(), -1)});
  EXPECT_EQ(Started(with_chat).size(), 1) << "three sequences take 30 ms, four 40";
}

TEST_F(StepGoalTest, WhereEveryNodesGoalWouldBeMissedARequestWaits) {
  Submit("chat1", "chat gap=15ms");
  Submit("chat2", "chat gap=15ms");
  EXPECT_EQ(Started(1).size(), 1);
  EXPECT_EQ(Started(2).size(), 1);
  Submit("flex", "flex");
  EXPECT_EQ(h_->core().sequences_queued(), 1);
  h_->Finish("chat1", request::FinishReason::kAborted);
  EXPECT_EQ(h_->core().sequences_queued(), 0);
}

}  // namespace
}  // namespace tandem::router
