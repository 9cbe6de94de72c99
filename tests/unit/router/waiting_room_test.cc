// Goal: the router tells its queue what room there is, so that sequences that need more are passed
// over, and one that fits is placed at once however many of them wait before it; what a walk's
// bound leaves over is placed with the next ticks, though no node says anything new.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

TEST(WaitingRoom, WhatFitsIsPlacedThoughAHundredBeforeItDoNot) {
  CoreHarness h{RouterOptions()};
  h.JoinDecode(1, "d0");
  v1::NodeMessage message;
  message.mutable_load()->set_blocks_total(200);
  message.mutable_load()->set_blocks_free(50);
  h.SayMessage(1, message);
  // Tokens: 200 are free.
  for (int i = 0; i < 100; ++i) ASSERT_OK(h.Submit(absl::StrCat("large", i), 300));
  EXPECT_TRUE(h.Quiet(1));
  ASSERT_OK(h.Submit("small", 100));
  EXPECT_EQ(h.core().sequences_queued(), 100);
  ASSERT_FALSE(h.Quiet(1));
  EXPECT_EQ(h.NextRun(1).leg().request_id(), "small");
}

TEST(WaitingRoom, ATickGoesOnWithWhatAWalkLeft) {
  CoreHarness h{RouterOptions()};
  v1::Registration registration = TestRegistration("d0", v1::NODE_ROLE_DECODE);
  registration.set_num_blocks(2000);
  registration.set_max_sequences(0);
  ASSERT_OK(h.Join(1, registration));
  const auto free = [&](int64_t blocks) {
    v1::NodeMessage message;
    message.mutable_load()->set_blocks_total(2000);
    message.mutable_load()->set_blocks_free(blocks);
    h.SayMessage(1, message);
  };
  free(0);
  constexpr size_t kWaiting = AdmissionQueue::kTriedMax + 40;
  for (size_t i = 0; i < kWaiting; ++i) ASSERT_OK(h.Submit(absl::StrCat("r", i), 10));
  ASSERT_TRUE(h.Quiet(1));
  free(2000);
  EXPECT_EQ(h.commands()[1].size(), static_cast<size_t>(AdmissionQueue::kTriedMax));
  h.Advance(absl::Milliseconds(20));
  EXPECT_EQ(h.commands()[1].size(), kWaiting);
}

}  // namespace
}  // namespace tandem::router
