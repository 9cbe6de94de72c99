// Goal: due time and priority decide who is computed first, and no flood of urgent or short work
// keeps a sequence waiting for more than a stated time.
#include "common/request/queue_order.h"

#include <limits>
#include <optional>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "common/node/sequence_scheduler.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

using request::kAdvantageMax;
using request::kDueMax;
using request::kPriorityLevel;
using request::ParseQueueOrder;
using request::QueueOrder;
using request::RankOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(RankOf, PriorityCountsAsWaitingAndIsBounded) {
  const auto rank = [](QueueOrder order, int32_t priority, absl::Duration compute) {
    return RankOf(order, kStart, {.priority = priority}, compute) - kStart;
  };
  constexpr absl::Duration kCompute = absl::Seconds(3);
  EXPECT_EQ(rank(QueueOrder::kArrival, 7, kCompute), absl::ZeroDuration());
  EXPECT_EQ(rank(QueueOrder::kPriority, 7, kCompute), absl::Seconds(7));
  EXPECT_EQ(rank(QueueOrder::kPriority, -7, kCompute), absl::Seconds(-7));
  EXPECT_EQ(rank(QueueOrder::kShortestPrompt, 7, kCompute), absl::Seconds(10));
  for (const QueueOrder order : {QueueOrder::kPriority, QueueOrder::kShortestPrompt}) {
    EXPECT_EQ(rank(order, std::numeric_limits<int32_t>::max(), kCompute), kAdvantageMax);
    EXPECT_EQ(rank(order, std::numeric_limits<int32_t>::min(), kCompute), -kAdvantageMax);
  }
  EXPECT_EQ(rank(QueueOrder::kShortestPrompt, 0, absl::InfiniteDuration()), kAdvantageMax);
}

TEST(RankOf, WhatIsDueSoonerCountsAsEarlierAndIsBounded) {
  const auto rank = [](QueueOrder order, int32_t priority, absl::Duration due) {
    return RankOf(order, kStart, {priority, due}, absl::ZeroDuration()) - kStart;
  };
  constexpr auto kInfinite = absl::InfiniteDuration();
  EXPECT_EQ(rank(QueueOrder::kPriority, 0, kInfinite), absl::ZeroDuration());
  for (const QueueOrder order : {QueueOrder::kPriority, QueueOrder::kShortestPrompt}) {
    EXPECT_EQ(rank(order, 0, kDueMax), rank(order, 0, kInfinite));
    EXPECT_EQ(rank(order, 0, 3 * kDueMax), rank(order, 0, kInfinite));
    EXPECT_EQ(rank(order, 0, absl::Seconds(10)) - rank(order, 0, absl::Seconds(1)),
              absl::Seconds(9));
    // Priority counts beside the nearest and the farthest due time.
    for (const absl::Duration due : {absl::ZeroDuration(), kDueMax})
      for (const int32_t priority : {-10, 10})
        EXPECT_EQ(rank(order, priority, due) - rank(order, 0, due), priority * kPriorityLevel);
    // What a peer may say.
    for (const int64_t us : {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{0},
                             int64_t{1}, std::numeric_limits<int64_t>::max()}) {
      EXPECT_LE(rank(order, 0, ParseFirstTokenDue(us)), absl::ZeroDuration()) << us;
      EXPECT_GE(rank(order, 0, ParseFirstTokenDue(us)), -kDueMax) << us;
    }
    EXPECT_EQ(rank(order, 0, ParseFirstTokenDue(-1)), absl::ZeroDuration()) << "no time is set";
    EXPECT_EQ(rank(order, 0, absl::Seconds(-9)), -kDueMax);
    EXPECT_EQ(rank(order, std::numeric_limits<int32_t>::max(), kDueMax), kAdvantageMax);
    EXPECT_EQ(rank(order, std::numeric_limits<int32_t>::min(), absl::ZeroDuration()),
              -kAdvantageMax);
  }
  EXPECT_EQ(rank(QueueOrder::kArrival, 0, absl::Microseconds(1)), absl::ZeroDuration());
}

TEST(RankOf, OrdersHaveNames) {
  EXPECT_EQ(*ParseQueueOrder("fcfs"), QueueOrder::kArrival);
  EXPECT_EQ(*ParseQueueOrder("priority"), QueueOrder::kPriority);
  EXPECT_EQ(*ParseQueueOrder("shortest-prompt"), QueueOrder::kShortestPrompt);
  EXPECT_THAT(ParseQueueOrder("lifo"), testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                                         HasSubstr("\"lifo\", expected fcfs")));
}

class QueueOrderTest : public ::testing::Test {
 protected:
  // One sequence at a time; a prompt's row takes a millisecond.
  void Start(QueueOrder order) {
    SchedulerOptions options{.spec = (*engine::NewHashEngine({}))->spec(),
                             .num_blocks = 256,
                             .max_batch_tokens = 4096,
                             .max_sequences = 1,
                             .queue_order = order};
    for (int64_t rows = 2; rows < 40; ++rows) {
      cost::StepShape shape;
      shape.Add(0, rows, false);
      options.step_cost.Observe(shape, 1000.0 * static_cast<double>(rows));
    }
    scheduler_.emplace(options);
  }
  void Add(absl::Duration after, int32_t priority, int64_t prompt_tokens = 8,
           absl::Duration due_within = absl::InfiniteDuration()) {
    SequenceInput input;
    input.prompt.assign(prompt_tokens, ++prompts_);
    input.stop.max_tokens = 1;
    input.priority = priority;
    input.arrived = kStart + after;
    input.first_token_within = due_within;
    const auto id = scheduler_->Admit(input, /*generates=*/false);
    EXPECT_OK(id.status());
    scheduler_->Schedule(*id);
  }
  // The sequence that the next step computes; it then leaves.
  uint64_t Next() {
    EXPECT_EQ(scheduler_->PlanStep().size(), 1u);
    const SequenceId id = scheduler_->planned().front().id;
    EXPECT_OK(scheduler_->FinishStep(std::vector<engine::SampledToken>(1)).status);
    scheduler_->Release(id);
    return id.value();
  }
  std::vector<uint64_t> All() {
    std::vector<uint64_t> order;
    while (scheduler_->size() > 0) order.push_back(Next());
    return order;
  }

  std::optional<SequenceScheduler> scheduler_;
  TokenId prompts_ = 0;
};

TEST_F(QueueOrderTest, UrgentGoesFirstWithinWhatPriorityIsWorth) {
  Start(QueueOrder::kPriority);
  Add(absl::ZeroDuration(), 0);
  Add(absl::Seconds(1), -5);  // urgent: as if it had come four seconds before the first
  Add(absl::Seconds(6), -5);  // urgent, and too late to pass the first
  Add(absl::Seconds(6), 0);
  EXPECT_THAT(All(), ElementsAre(2, 1, 3, 4));
  Start(QueueOrder::kArrival);
  Add(absl::ZeroDuration(), 0);
  Add(absl::Seconds(1), -5);
  EXPECT_THAT(All(), ElementsAre(1, 2));
}

TEST_F(QueueOrderTest, AFloodOfTheMostUrgentDelaysTheLeastUrgentForABoundedTime) {
  Start(QueueOrder::kPriority);
  Add(absl::ZeroDuration(), std::numeric_limits<int32_t>::max());
  // One a second arrives and one a second is computed.
  for (int second = 1; second < 1000; ++second) {
    Add(absl::Seconds(second), std::numeric_limits<int32_t>::min());
    if (Next() != 1) continue;
    EXPECT_EQ(absl::Seconds(second), 2 * kAdvantageMax);
    return;
  }
  FAIL() << "the first sequence was never computed";
}

TEST_F(QueueOrderTest, TheFirstThatIsDueIsComputedFirst) {
  for (const QueueOrder order : {QueueOrder::kPriority, QueueOrder::kShortestPrompt}) {
    Start(order);
    Add(absl::ZeroDuration(), 0, 8, absl::Seconds(60));
    Add(absl::Seconds(1), 0, 8);  // no due time: as in 20 s
    Add(absl::Seconds(2), 0, 8, absl::Milliseconds(200));
    Add(absl::Seconds(3), 0, 8, absl::Seconds(10));
    Add(absl::Seconds(3), -9, 8, absl::Seconds(10));  // as in 1 s
    EXPECT_THAT(All(), ElementsAre(3, 5, 4, 1, 2));
  }
  Start(QueueOrder::kArrival);
  Add(absl::ZeroDuration(), 0, 8, absl::Seconds(60));
  Add(absl::Seconds(1), 0, 8, absl::Milliseconds(200));
  EXPECT_THAT(All(), ElementsAre(1, 2));
}

TEST_F(QueueOrderTest, AFloodOfWhatIsDueDelaysWhatIsDueLastForABoundedTime) {
  Start(QueueOrder::kPriority);
  Add(absl::ZeroDuration(), 0, 8, absl::Hours(1));
  // One a second arrives and one a second is computed.
  for (int second = 1; second < 1000; ++second) {
    Add(absl::Seconds(second), 0, 8, absl::Microseconds(1));
    if (Next() != 1) continue;
    EXPECT_EQ(absl::Seconds(second), kDueMax);
    return;
  }
  FAIL() << "the first sequence was never computed";
}

TEST_F(QueueOrderTest, AShortPromptPassesALongOneThatHasNotWaitedForLong) {
  Start(QueueOrder::kShortestPrompt);
  Add(absl::ZeroDuration(), 0, 2008);  // two seconds more than the others
  Add(absl::Seconds(1), 0);
  Add(absl::Seconds(3), 0);
  EXPECT_THAT(All(), ElementsAre(2, 1, 3));
}

}  // namespace
}  // namespace tandem::node
