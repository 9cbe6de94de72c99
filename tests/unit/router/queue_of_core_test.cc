// Goal: what waits in the router's queue is placed past what has no room, beside what nodes hold,
// and in the tenants' turns; one node is kept for what has waited for long.
#include <gtest/gtest.h>

#include "common/telemetry/log.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

class QueueOfCoreTest : public ::testing::Test {
 protected:
  QueueOfCoreTest() { SetLogLevel(LogLevel::kError); }
  void Free(uint64_t key, int64_t blocks) {
    v1::NodeMessage load;
    load.mutable_load()->set_blocks_total(100);
    load.mutable_load()->set_blocks_free(blocks);
    h_.SayMessage(key, load);
  }
  CoreHarness h_;
};

// A large request waits for room. Small ones go on where they do not delay it, for as long as it
// waits; once its node has drained it is placed before all younger ones.
TEST_F(QueueOfCoreTest, OneThatFindsNoRoomHoldsUpNobodyElsewhere) {
  h_.JoinDecode(1, "d0");
  h_.JoinDecode(2, "d1");
  Free(1, 10);
  Free(2, 8);
  ASSERT_OK(h_.Submit("large", 300));
  h_.Advance(absl::Seconds(2));
  for (int i = 0; i < 30; ++i) {
    ASSERT_OK(h_.Submit(absl::StrCat("small", i), 10));
    EXPECT_EQ(h_.NextRun(2).leg().request_id(), absl::StrCat("small", i));
    EXPECT_TRUE(h_.Quiet(1)) << "its room is kept";
    h_.Finish(absl::StrCat("small", i), request::FinishReason::kAborted);
    h_.Next(2);
    Free(1, 10 + i);
    Free(2, 40);  // more than d0 has; the node that is kept stays the same
    h_.Advance(absl::Seconds(1));
  }
  Free(1, 90);
  EXPECT_EQ(h_.NextRun(1).leg().request_id(), "large");
  ASSERT_OK(h_.Submit("after", 10));
  EXPECT_EQ(h_.NextRun(2).leg().request_id(), "after");
}

// Many answers to one long prompt find no room beside it. One node is kept for them, and younger
// requests go on at the others.
TEST_F(QueueOfCoreTest, ManyAnswersKeepOneNode) {
  for (const uint64_t key : {1, 2, 3}) h_.JoinDecode(key, absl::StrCat("d", key));
  Free(1, 90);
  Free(2, 20);
  Free(3, 20);
  RequestInput many = CoreHarness::Input("many", 300, 10);
  many.sequences = 16;
  ASSERT_OK(h_.Submit(std::move(many)));
  const v1::Leg leader = h_.NextRun(1).leg();
  h_.Say(1, {Reserved(leader, 0, true)});
  Free(1, 0);
  h_.Say(1, {Installed(leader, -1), Generated(leader, {0})});
  for (int second = 0; second < 3; ++second) {
    h_.Advance(absl::Seconds(1));
    Free(1, 0);
    Free(2, 20);
    Free(3, 20);
  }
  EXPECT_EQ(h_.core().sequences_queued(), 15);
  ASSERT_OK(h_.Submit("young", 10));
  EXPECT_EQ(h_.core().sequences_queued(), 15) << "the young one waits for a node that is kept";
}

// A longer prompt needs less room than a shorter one, if its beginning lies on the node.
TEST_F(QueueOfCoreTest, WhatANodeHoldsNeedsNoRoom) {
  h_.JoinDecode(1, "d0");
  v1::NodeEvent stored;
  stored.mutable_blocks_stored()->set_hashes(kv::PackHashes(HashesOf(Tokens(320))));
  h_.Say(1, {stored});
  Free(1, 20);
  RequestInput other = CoreHarness::Input("other", 100, 10);
  other.prompt = Tokens(100, 500);
  ASSERT_OK(h_.Submit(std::move(other)));
  EXPECT_TRUE(h_.Quiet(1)) << "26 blocks do not fit in 20";
  ASSERT_OK(h_.Submit("held", 350));
  EXPECT_EQ(h_.NextRun(1).leg().request_id(), "held");
}

// It comes to lie there while the sequence waits.
TEST_F(QueueOfCoreTest, WhatANodeComesToHoldNeedsNoRoom) {
  h_.JoinDecode(1, "d0");
  Free(1, 20);
  ASSERT_OK(h_.Submit("long", 350));
  EXPECT_TRUE(h_.Quiet(1));
  v1::NodeEvent stored;
  stored.mutable_blocks_stored()->set_hashes(kv::PackHashes(HashesOf(Tokens(320))));
  h_.Say(1, {stored});
  h_.Advance(absl::Milliseconds(10));
  EXPECT_EQ(h_.NextRun(1).leg().request_id(), "long");
}

// One tenant's backlog does not delay another's requests. What was computed is charged, an answer's
// tokens included; a tenant of twice the weight gets twice as much.
TEST_F(QueueOfCoreTest, TenantsTakeTurns) {
  h_.JoinDecode(1, "d0");
  const auto submit = [&](const std::string& tenant, int number, double weight) {
    RequestInput input = CoreHarness::Input(absl::StrCat(tenant, number), 150, 10);
    input.share = {tenant, weight};
    ASSERT_OK(h_.Submit(std::move(input)));
  };
  Free(1, 0);
  for (int i = 0; i < 12; ++i) submit("a", i, 1);
  for (int i = 0; i < 12; ++i) submit("b", i, 2);
  std::string order;
  for (int i = 0; i < 12; ++i) {
    Free(1, 40);
    const std::string id = h_.NextRun(1).leg().request_id();
    order += id[0];
    ASSERT_TRUE(h_.Quiet(1)) << "there is room for one";
    Free(1, 0);
    h_.Finish(id, request::FinishReason::kAborted);
    h_.Next(1);
  }
  EXPECT_EQ(order, "abbabbabbabb");
}

}  // namespace
}  // namespace tandem::router
