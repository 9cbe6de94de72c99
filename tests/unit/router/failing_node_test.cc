// Goal: a node that fails each leg at once looks idle, and so the best. It gets fewer and fewer new
// requests, is tried again after a while, and is as good as before when it was mended.
#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

class FailingNodeTest : public ::testing::Test {
 protected:
  FailingNodeTest() {
    SetLogLevel(LogLevel::kError);
    h_.JoinDecode(kD0, "d0");
    h_.JoinDecode(kD1, "d1");
    *empty_.mutable_load() = h_.core().fleet().Find(NodeKey(kD0))->load;
  }
  void Pass(absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= absl::Milliseconds(500)) {
      for (const uint64_t key : {kD0, kD1}) h_.SayMessage(key, empty_);
      h_.Advance(absl::Milliseconds(500));
    }
  }
  static v1::NodeEvent StepFailed(const v1::Leg& leg, absl::StatusCode code) {
    v1::NodeEvent event = LegFailed(leg, /*sender_side=*/false);
    *event.mutable_leg_failed()->mutable_status() = WireStatus(code, "an illegal memory access");
    return event;
  }
  // One request from its start to its end; d0 fails each leg with `code`. Whether d0 had one.
  bool Request(absl::StatusCode code = absl::StatusCode::kInternal) {
    const std::string id = absl::StrCat("r", ++requests_);
    EXPECT_OK(h_.Submit(id));
    for (int i = 0; i < 20 && h_.Quiet(kD0) && h_.Quiet(kD1); ++i) Pass(absl::Milliseconds(500));
    const bool tried = !h_.Quiet(kD0);
    if (tried) {
      const v1::Leg leg = h_.NextRun(kD0).leg();
      h_.Say(kD0, {Reserved(leg, 0, true), StepFailed(leg, code)});
    }
    for (int i = 0; i < 20 && h_.Quiet(kD1); ++i) Pass(absl::Milliseconds(500));
    EXPECT_TRUE(h_.Quiet(kD0)) << "one request goes there twice";
    const v1::Leg leg = h_.NextRun(kD1).leg();
    h_.Say(kD1, {Reserved(leg, 0, true), Installed(leg, -1),
                 Generated(leg, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9})});
    EXPECT_TRUE(h_.client(id).done.has_value()) << h_.client(id).failure;
    return tried;
  }
  int Tries(int requests, absl::StatusCode code = absl::StatusCode::kInternal) {
    int tries = 0;
    for (int i = 0; i < requests; ++i) {
      tries += int{Request(code)};
      Pass(absl::Seconds(1));
    }
    return tries;
  }

  CoreHarness h_;
  v1::NodeMessage empty_;  // of a node that has nothing to do
  int requests_ = 0;
};

TEST_F(FailingNodeTest, GetsFewOfTheNewRequests) {
  EXPECT_TRUE(Request()) << "of equal nodes the first";
  EXPECT_LE(Tries(40), 3);
}

TEST_F(FailingNodeTest, IsTriedAgain) {
  EXPECT_TRUE(Request());
  EXPECT_FALSE(Request());
  Pass(absl::Minutes(5));
  EXPECT_TRUE(Request());
}

TEST_F(FailingNodeTest, ANodeWithoutRoomOrWithOthersDamageIsNotBlamed) {
  Request(absl::StatusCode::kUnavailable);
  Request(absl::StatusCode::kDataLoss);
  Request(absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(h_.core().fleet().Find(NodeKey(kD0))->record.FailedUs(h_.now()), 0);
}

TEST(NodeRecordTest, AStepThatFailsCountsOnceForAllItsLegs) {
  const absl::Time now = absl::UnixEpoch();
  NodeRecord one, many;
  one.OnFailedLeg(now);
  for (int i = 0; i < 50; ++i) many.OnFailedLeg(now);
  EXPECT_GT(one.FailedUs(now), 0);
  EXPECT_EQ(one.FailedUs(now), many.FailedUs(now));
  many.OnFailedLeg(now + absl::Seconds(1));
  EXPECT_GT(many.FailedUs(now + absl::Seconds(1)), one.FailedUs(now + absl::Seconds(1)));
  EXPECT_LT(one.FailedUs(now + 10 * NodeRecord::kHalfLife), one.FailedUs(now) / 1000);
}

}  // namespace
}  // namespace tandem::router
