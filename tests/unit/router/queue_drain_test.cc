// Goal: a client that is refused because there is too much is told to ask again when nodes are
// predicted to have taken it: by hand for fleets of known costs, within bounds, and no matter what
// nodes say.
#include "router/core/queue_drain.h"

#include <limits>
#include <memory>
#include <string>

#include "common/rpc/cost_convert.h"
#include "common/rpc/retry_after.h"
#include "router/placement/predicted_times.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);
constexpr double kPromptTokens = 100;

// A prompt of 100 tokens takes 200 ms alone, a step of one generated row 2 ms.
cost::StepProfile Profile() {
  return {.step_us = 1000,
          .prompt_row_us = 1990,
          .generated_row_us = 1000,
          .sampled_row_us = 0,
          .relative_error = 0.01,
          .median_relative_error = 0.01,
          .samples = 100};
}

class QueueDrainTest : public ::testing::Test {
 protected:
  QueueDrainTest() { fleet_.SetNow(kNow); }

  Node& Add(const std::string& id, v1::NodeRole role) {
    Node& node = fleet_.Join(NodeKey(++keys_), TestRegistration(id, role), kNow);
    fleet_.OnStepCost(node, Profile());
    return node;
  }
  void Runs(Node& node, int sequences) {
    v1::NodeLoad load;
    load.set_blocks_total(100);
    load.set_blocks_free(100);
    load.set_sequences_running(sequences);
    fleet_.OnLoad(node, load);
  }
  double PerSecond() const { return QueueDrain::SequencesPerSecond(fleet_, kPromptTokens); }
  int64_t Seconds(int64_t waiting, absl::Time now = kNow) {
    return drain_.RetrySeconds(
        fleet_, waiting, [] { return kPromptTokens; }, absl::Minutes(1), now);
  }

  FirstOfEqual random_;
  Fleet fleet_{TestModel(), {100}, random_};
  QueueDrain drain_;
  uint64_t keys_ = 0;
};

TEST_F(QueueDrainTest, TheSlowerHalfOfThePairsDecides) {
  constexpr double kAnswer = PredictedTimes::kAnswerTokens;
  Node& decode = Add("d0", v1::NODE_ROLE_DECODE);
  Runs(decode, 9);
  // Nine answers of 256 tokens, each step 10 ms; the node computes the prompts as well.
  EXPECT_NEAR(PerSecond(), 1 / (kAnswer * 0.010 / 9 + 0.200), 1e-6);
  Add("p0", v1::NODE_ROLE_PREFILL);
  EXPECT_NEAR(PerSecond(), 9 / (kAnswer * 0.010), 1e-6);  // 3.5; the prefill node could take five
  Runs(Add("d1", v1::NODE_ROLE_DECODE), 9);
  EXPECT_NEAR(PerSecond(), 5, 1e-6);
  fleet_.SetDraining(*fleet_.Find(NodeKey(1)));
  EXPECT_NEAR(PerSecond(), 9 / (kAnswer * 0.010), 1e-6);
}

TEST_F(QueueDrainTest, LongerQueuesTakeLonger) {
  Add("p0", v1::NODE_ROLE_PREFILL);
  Runs(Add("d0", v1::NODE_ROLE_DECODE), 99);  // 3.8 a second
  EXPECT_EQ(Seconds(1), 1);
  EXPECT_EQ(Seconds(38), 10);
  EXPECT_EQ(Seconds(76), 20);
  EXPECT_EQ(Seconds(8192), QueueDrain::kRetrySecondsMax);
}

TEST_F(QueueDrainTest, PredictsAgainWhenLoadsHaveBeenReported) {
  Add("p0", v1::NODE_ROLE_PREFILL);
  Node& decode = Add("d0", v1::NODE_ROLE_DECODE);
  Runs(decode, 1);  // 1.95 a second
  EXPECT_EQ(Seconds(39), 20);
  Runs(decode, 99);
  EXPECT_EQ(Seconds(39), 20);
  EXPECT_EQ(Seconds(39, kNow + QueueDrain::kRefreshEvery), 11);
}

TEST_F(QueueDrainTest, StaysWithinBoundsWhateverNodesSay) {
  EXPECT_EQ(Seconds(5), QueueDrain::kRetrySecondsMax) << "no node";
  const auto retry = [&](absl::Duration longest) {
    return QueueDrain().RetrySeconds(
        fleet_, 50, [] { return kPromptTokens; }, longest, kNow);
  };
  EXPECT_EQ(retry(absl::Seconds(7)), 7);
  EXPECT_EQ(retry(absl::ZeroDuration()), 1);
  Node& decode = Add("d0", v1::NODE_ROLE_DECODE);
  for (const double us : {0.0, 1e-300, 1e300, std::numeric_limits<double>::infinity()}) {
    fleet_.OnStepCost(decode, {.step_us = us, .prompt_row_us = us, .generated_row_us = us});
    const int64_t seconds = QueueDrain().RetrySeconds(
        fleet_, 50, [] { return kPromptTokens; }, absl::Seconds(30), kNow);
    EXPECT_GE(seconds, 1) << us;
    EXPECT_LE(seconds, 30) << us;
  }
}

std::string RetryAfter(const absl::Status& status) {
  return std::string(status.GetPayload(rpc::kRetryAfterPayload).value_or(absl::Cord("none")));
}

// A decode node that runs one sequence at a time: 256 steps of 2 ms and a prompt of 200 ms each.
class RefusalHints : public ::testing::Test {
 protected:
  void Start(const RouterOptions& options) {
    h_ = std::make_unique<CoreHarness>(options);
    v1::Registration registration = TestRegistration("d0", v1::NODE_ROLE_DECODE);
    registration.set_max_sequences(1);
    ASSERT_OK(h_->Join(1, registration));
    v1::NodeMessage message;
    *message.mutable_step_cost() = rpc::ToWire(Profile());
    h_->SayMessage(1, message);
  }
  std::unique_ptr<CoreHarness> h_;
};

TEST_F(RefusalHints, AFullQueue) {
  RouterOptions options;
  options.queue_max = 60;
  Start(options);
  for (int i = 0; i <= 60; ++i) ASSERT_OK(h_->Submit(absl::StrCat("r", i)));
  const absl::Status refused = h_->Submit("too many");
  EXPECT_THAT(refused, testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                         ::testing::HasSubstr("60 sequences wait")));
  EXPECT_EQ(RetryAfter(refused), "44") << "61 sequences";
}

TEST_F(RefusalHints, TooManyRequests) {
  RouterOptions options;
  options.requests_max = 20;
  Start(options);
  for (int i = 0; i < 20; ++i) ASSERT_OK(h_->Submit(absl::StrCat("r", i)));
  RequestInput input = CoreHarness::Input("too many", 100, 10);
  input.sequences = 9;
  const absl::Status refused = h_->Submit(std::move(input));
  EXPECT_THAT(refused, testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                         ::testing::HasSubstr("runs 20 sequences; 9 more")));
  EXPECT_EQ(RetryAfter(refused), "7") << "9 sequences";
}

TEST_F(RefusalHints, TooManyBytes) {
  RouterOptions options;
  options.request_bytes_max = 20 * CoreHarness::Input("r", 100, 10).HeldBytesMax();
  Start(options);
  for (int i = 0; i < 20; ++i) ASSERT_OK(h_->Submit(absl::StrCat("r", i)));
  RequestInput input = CoreHarness::Input("too many", 100, 10);
  input.sequences = 9;  // less than 9 times the bytes: they share a prompt
  const absl::Status refused = h_->Submit(std::move(input));
  EXPECT_THAT(refused, testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                         ::testing::HasSubstr("would exceed its limit")));
  EXPECT_EQ(RetryAfter(refused), "7");
}

TEST_F(RefusalHints, TheQueuesDeadline) {
  RouterOptions options;
  options.queue_deadline = absl::Seconds(10);
  Start(options);
  for (int i = 0; i < 6; ++i) ASSERT_OK(h_->Submit(absl::StrCat("r", i)));
  for (int i = 0; i < 6; ++i) {
    h_->SayMessage(1, v1::NodeMessage());
    h_->Advance(absl::Seconds(2));
  }
  const absl::Status refused = h_->client("r1").failure;
  EXPECT_THAT(refused, testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                         ::testing::HasSubstr("no decode node had room")));
  EXPECT_EQ(RetryAfter(refused), "5") << "6 sequences: the node did not answer the first one";
}

}  // namespace
}  // namespace tandem::router
