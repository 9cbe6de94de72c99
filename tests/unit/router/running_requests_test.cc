// Goal: a list of running requests has each once, oldest first, with where it runs and how far it
// is; it is bounded, it ends with its requests, and a prefix keeps it to one tenant's names.
#include "router/core/running_requests.h"

#include "common/telemetry/log.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

class RunningRequestsTest : public ::testing::Test {
 protected:
  RunningRequestsTest() { SetLogLevel(LogLevel::kError); }

  v1::ListRequestsResponse List(RunningQuery query = {}) {
    return h_.core().ListRunning(query, h_.now());
  }

  CoreHarness h_;
};

TEST_F(RunningRequestsTest, ARequestIsListedFromItsQueueToItsEnd) {
  ASSERT_OK(h_.Submit("r", 100, 3));
  ASSERT_EQ(List().requests_size(), 1);
  EXPECT_EQ(List().requests(0).state(), "queued");
  EXPECT_EQ(List().requests(0).decode_node(), "");
  h_.JoinDecode(1, "d0");
  const v1::Leg leg = h_.NextRun(1).leg();
  EXPECT_EQ(List().requests(0).state(), "reserving");
  h_.Say(1, {Reserved(leg, 0, true), Generated(leg, {0, 1})});
  h_.Advance(absl::Seconds(2));
  ASSERT_EQ(List().requests_size(), 1);
  const v1::RunningRequest running = List().requests(0);
  EXPECT_EQ(running.request_id(), "r");
  EXPECT_EQ(running.state(), "generating");
  EXPECT_EQ(running.age_s(), 2);
  EXPECT_EQ(running.prompt_tokens(), 100);
  EXPECT_EQ(running.output_tokens(), 2);
  EXPECT_EQ(running.decode_node(), "d0");
  EXPECT_EQ(running.prefill_node(), "");
  EXPECT_EQ(running.attempts(), 1);
  EXPECT_EQ(running.sequences(), 1);
  h_.Finish("r", request::FinishReason::kStop);
  EXPECT_EQ(List().requests_size(), 0);
}

TEST_F(RunningRequestsTest, AnAnswerOfSeveralSequencesIsOneRequest) {
  h_.JoinDecode(1, "d0");
  RequestInput input = CoreHarness::Input("three", 100, 3);
  input.sequences = 3;
  ASSERT_OK(h_.Submit(input));
  ASSERT_EQ(List().requests_size(), 1);
  EXPECT_EQ(List().requests(0).sequences(), 3);
}

TEST_F(RunningRequestsTest, TheOldestComeFirstAndTheListIsBounded) {
  for (int i = 0; i < 5; ++i) ASSERT_OK(h_.Submit(absl::StrCat("r", i)));
  const v1::ListRequestsResponse two = List({.limit = 2});
  ASSERT_EQ(two.requests_size(), 2);
  EXPECT_EQ(two.requests(0).request_id(), "r0");
  EXPECT_EQ(two.requests(1).request_id(), "r1");
  EXPECT_EQ(List({.limit = 100}).requests_size(), 5);
}

TEST_F(RunningRequestsTest, APrefixKeepsTheListToOneTenant) {
  ASSERT_OK(h_.Submit("a/1"));
  ASSERT_OK(h_.Submit("ab/1"));
  const v1::ListRequestsResponse own = List({.id_prefix = "a/"});
  ASSERT_EQ(own.requests_size(), 1);
  EXPECT_EQ(own.requests(0).request_id(), "a/1");
}

// A tenant whose requests all lie behind those of others sees none, and the core looks at no more.
TEST_F(RunningRequestsTest, ALookExaminesABoundedNumberOfSequences) {
  RouterOptions options;
  options.requests_max = options.queue_max = RunningQuery::kExaminedMax + 1;
  CoreHarness h(options);
  for (int64_t i = 0; i < RunningQuery::kExaminedMax; ++i)
    ASSERT_OK(h.Submit(absl::StrCat("other/", i), 1, 1));
  ASSERT_OK(h.Submit("own/1", 1, 1));
  EXPECT_EQ(h.core().ListRunning({.id_prefix = "own/"}, h.now()).requests_size(), 0);
  h.Finish("other/0", request::FinishReason::kAborted);
  EXPECT_EQ(h.core().ListRunning({.id_prefix = "own/"}, h.now()).requests_size(), 1);
}

}  // namespace
}  // namespace tandem::router
