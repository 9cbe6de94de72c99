// Goal: tenants share a full queue by weight. One that fills it gets no other refused, and a
// request that nodes have begun is never the one that goes.
#include "absl/strings/str_cat.h"
#include "common/rpc/retry_after.h"
#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

constexpr int kQueueMax = 12;

class QueueBoundTest : public ::testing::Test {
 protected:
  static RouterOptions Options() {
    RouterOptions options;
    options.queue_max = kQueueMax;
    return options;
  }

  void SetUp() override {
    v1::Registration registration = TestRegistration("d0", v1::NODE_ROLE_DECODE);
    registration.set_max_sequences(1);
    ASSERT_OK(h_.Join(1, registration));
    ASSERT_OK(Submit("eve", 1, "runs"));
  }
  absl::Status Submit(const std::string& tenant, double weight, const std::string& id) {
    RequestInput input = CoreHarness::Input(id, 100, 10);
    input.share = {tenant, weight, 0};
    return h_.Submit(std::move(input));
  }
  // Submits as many of the tenant's requests, and returns how many were accepted.
  int Flood(const std::string& tenant, double weight, int requests) {
    int accepted = 0;
    for (int i = 0; i < requests; ++i)
      if (Submit(tenant, weight, absl::StrCat(tenant, i)).ok()) ++accepted;
    return accepted;
  }
  int Failed(const std::string& tenant, int requests) {
    int failed = 0;
    for (int i = 0; i < requests; ++i)
      if (!h_.client(absl::StrCat(tenant, i)).failure.ok()) ++failed;
    return failed;
  }

  CoreHarness h_{Options()};
};

TEST_F(QueueBoundTest, ATenantThatFillsItGetsNoOtherRefused) {
  EXPECT_EQ(Flood("eve", 1, kQueueMax + 5), kQueueMax);
  ASSERT_OK(Submit("bob", 1, "b"));
  EXPECT_EQ(h_.core().sequences_queued(), kQueueMax);
  // The last of the larger tenant's went, and is told when to ask again.
  const absl::Status& gone = h_.client(absl::StrCat("eve", kQueueMax - 1)).failure;
  EXPECT_THAT(gone, StatusIs(absl::StatusCode::kResourceExhausted,
                             HasSubstr("12 sequences wait for placement")));
  EXPECT_TRUE(gone.GetPayload(rpc::kRetryAfterPayload).has_value());
  EXPECT_EQ(Failed("eve", kQueueMax), 1);
  // Bob's place is not taken back.
  EXPECT_FALSE(Submit("eve", 1, "again").ok());
  EXPECT_OK(h_.client("b").failure);
}

TEST_F(QueueBoundTest, IsSharedByWeight) {
  EXPECT_EQ(Flood("eve", 1, kQueueMax), kQueueMax);
  // Twice the weight: two thirds of the places, and then refusals.
  EXPECT_EQ(Flood("bob", 2, kQueueMax), 2 * kQueueMax / 3);
  EXPECT_EQ(Failed("eve", kQueueMax), 2 * kQueueMax / 3);
  EXPECT_EQ(Failed("bob", 2 * kQueueMax / 3), 0);
}

TEST_F(QueueBoundTest, ARequestThatNodesHaveBegunStays) {
  EXPECT_EQ(Flood("eve", 1, kQueueMax - 1), kQueueMax - 1);
  // The request that ran has an answer's beginning, and waits again after its node was lost.
  const v1::Leg leg = h_.NextRun(1).leg();
  h_.Say(1, {Reserved(leg, 0, true), Generated(leg, {5})});
  h_.Lose(1);
  EXPECT_EQ(h_.core().sequences_queued(), kQueueMax);
  EXPECT_EQ(Flood("bob", 1, kQueueMax), kQueueMax / 2);
  EXPECT_OK(h_.client("runs").failure);
  EXPECT_EQ(Failed("eve", kQueueMax), kQueueMax / 2);
}

// The queue is longer than its bound, because a node's sequences came back: a request of another
// tenant costs one request its place all the same.
TEST_F(QueueBoundTest, ANewcomerTakesOnePlace) {
  v1::Registration registration = TestRegistration("d1", v1::NODE_ROLE_DECODE);
  registration.set_max_sequences(4);
  registration.set_num_blocks(1000);
  ASSERT_OK(h_.Join(2, registration));
  for (int i = 0; i < 4; ++i) ASSERT_OK(Submit("eve", 1, absl::StrCat("there", i)));
  for (int i = 0; i < 4; ++i) {
    const v1::Leg leg = h_.NextRun(2).leg();
    h_.Say(2, {Reserved(leg, 0, true), Generated(leg, {5})});
  }
  EXPECT_EQ(Flood("eve", 1, kQueueMax), kQueueMax);
  h_.Lose(2);
  EXPECT_EQ(h_.core().sequences_queued(), kQueueMax + 4);
  ASSERT_OK(Submit("bob", 1, "b"));
  EXPECT_EQ(Failed("eve", kQueueMax), 1);
  EXPECT_EQ(h_.core().sequences_queued(), kQueueMax + 4);
}

// All answers of a request go together.
TEST_F(QueueBoundTest, ARequestOfSeveralAnswersGoesWhole) {
  RequestInput several = CoreHarness::Input("several", 100, 10);
  several.sequences = 4;
  several.share = {"eve", 1, 0};
  EXPECT_EQ(Flood("eve", 1, kQueueMax - 1), kQueueMax - 1);
  ASSERT_OK(h_.Submit(std::move(several)));
  ASSERT_OK(Submit("bob", 1, "b"));
  EXPECT_FALSE(h_.client("several").failure.ok());
  EXPECT_EQ(h_.core().sequences_queued(), kQueueMax);
}

}  // namespace
}  // namespace tandem::router
