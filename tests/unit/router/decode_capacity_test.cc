// Goal: requests that set no max_tokens use all decode nodes of about equal size, and go on when
// the largest one drains or is lost. A node that has left for a moment costs no request that only
// it can hold, and one that waits too long for such a node may be asked again.
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

class DecodeCapacityTest : public ::testing::Test {
 protected:
  // Blocks of 4 tokens.
  void Join(uint64_t key, int64_t blocks, const std::string& id) {
    v1::Registration node = TestRegistration(id, v1::NODE_ROLE_DECODE);
    node.set_num_blocks(blocks);
    ASSERT_OK(h_.Join(key, node));
  }
  void Submit(const std::string& id, int prompt = 10) {
    RequestInput input = CoreHarness::Input(id, prompt, 350);
    input.max_tokens_given = false;
    ASSERT_OK(h_.Submit(std::move(input)));
  }

  CoreHarness h_;
};

TEST_F(DecodeCapacityTest, NodesOfAboutEqualSizeShareRequestsWithoutALimit) {
  Join(1, 25, "d1");
  Join(2, 26, "d2");
  for (int i = 0; i < 8; ++i) Submit(absl::StrCat("r", i));
  for (const uint64_t key : {1, 2}) {
    EXPECT_GE(h_.commands()[key].size(), 3) << key;
    EXPECT_EQ(h_.NextRun(key).sequence().stop().max_tokens(), 100 - 10) << "alike everywhere";
  }
}

TEST_F(DecodeCapacityTest, AMuchSmallerNodeShortensNoAnswer) {
  Join(1, 25, "small");
  Join(2, 90, "large");
  Submit("r");
  EXPECT_EQ(h_.NextRun(2).sequence().stop().max_tokens(), 350);
  // A long prompt leaves little room: half of it must be there.
  Join(3, 80, "middle");
  Submit("long", 319);
  EXPECT_EQ(h_.NextRun(2).sequence().stop().max_tokens(), 360 - 319);
}

// Placements that find no room leave no mark.
TEST_F(DecodeCapacityTest, AFullSmallNodeShortensNoAnswerThatALargerOneTakes) {
  Join(1, 25, "small");
  ASSERT_OK(h_.Submit("fills", 90, 5));
  h_.NextRun(1);
  Submit("r");
  EXPECT_EQ(h_.core().sequences_queued(), 1);
  Join(2, 90, "large");
  EXPECT_EQ(h_.NextRun(2).sequence().stop().max_tokens(), 350);
}

TEST_F(DecodeCapacityTest, AnotherNodeServesWhatTheLargestOneWouldWhileThatDrains) {
  Join(1, 25, "small");
  Join(2, 90, "large");
  h_.Say(2, {Drains()});
  Submit("r");
  EXPECT_EQ(h_.NextRun(1).sequence().stop().max_tokens(), 90);
}

TEST_F(DecodeCapacityTest, AnAnswerGoesOnWhereLessFits) {
  Join(1, 25, "small");
  Join(2, 90, "large");
  Submit("r");
  const v1::Leg leg = h_.NextRun(2).leg();
  h_.Say(2, {Reserved(leg, 0, true), Installed(leg, -1), Generated(leg, {0, 1, 2})});
  h_.Lose(2);
  const v1::StartDecode again = h_.NextRun(1);
  EXPECT_EQ(again.sequence().delivered_tokens(), 3);
  EXPECT_EQ(again.sequence().stop().max_tokens(), 90);
}

TEST_F(DecodeCapacityTest, ARequestWaitsForANodeThatHasJustLeft) {
  Join(1, 25, "small");
  Join(2, 90, "large");
  h_.Lose(2);
  ASSERT_OK(h_.Submit("r", 200, 10)) << "it may come back";
  h_.Advance(absl::Seconds(3));
  EXPECT_EQ(h_.client("r").ends, 0);
  Join(3, 90, "large");
  EXPECT_EQ(h_.NextRun(3).leg().request_id(), "r");
  h_.Lose(3);
  ASSERT_OK(h_.Submit("t", 200, 10));
  for (int i = 0; i < 22; ++i) {
    h_.SayMessage(1, v1::NodeMessage());
    h_.Advance(absl::Milliseconds(500));
  }
  EXPECT_THAT(h_.client("t").failure, StatusIs(absl::StatusCode::kInvalidArgument,
                                               HasSubstr("the largest decode node holds 100")));
  EXPECT_THAT(h_.Submit("s", 200, 10),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("100")));
}

// The node that could hold the request drains until the request's wait is over, and is gone then:
// the client may ask again.
TEST_F(DecodeCapacityTest, ARequestThatOnlyADrainingNodeCouldHoldIsNotItsClientsMistake) {
  Join(1, 25, "small");
  Join(2, 90, "large");
  const auto hear_both = [&](absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Milliseconds(500)) {
      for (const uint64_t key : {1, 2}) h_.SayMessage(key, v1::NodeMessage());
      h_.Advance(absl::Milliseconds(500));
    }
  };
  hear_both(absl::Seconds(11));
  h_.Say(2, {Drains()});
  ASSERT_OK(h_.Submit("r", 200, 10));
  hear_both(absl::Seconds(59));
  EXPECT_EQ(h_.client("r").ends, 0);
  hear_both(absl::Seconds(2));
  EXPECT_THAT(h_.client("r").failure,
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("needs 210 tokens of KV; for 1m the decode nodes that take work "
                                 "held 100 at most")));
}

}  // namespace
}  // namespace tandem::router
