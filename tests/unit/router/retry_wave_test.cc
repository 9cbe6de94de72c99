// Goal: when many sequences lose their nodes at once, each is tried again before the queue deadline
// ends it: none fails while there is room.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

constexpr uint64_t kLost = 1, kLeft = 2;

v1::Registration LargeNode(const std::string& id) {
  v1::Registration registration = TestRegistration(id, v1::NODE_ROLE_DECODE);
  registration.set_num_blocks(1 << 20);
  registration.set_max_sequences(65536);
  return registration;
}

TEST(RetryWave, IsPlacedBeforeTheQueueDeadline) {
  SetLogLevel(LogLevel::kError);
  // Beyond its burst the budget makes 200 retries a second: these would take 10 s.
  constexpr int kSequences = 1024 + 2000;
  CoreHarness h({.node_lost_after = absl::Minutes(1), .queue_deadline = absl::Seconds(2)});
  ASSERT_OK(h.Join(kLost, LargeNode("lost")));
  for (int i = 0; i < kSequences; ++i) ASSERT_OK(h.Submit(absl::StrCat(i), /*prompt=*/8));
  ASSERT_EQ(h.commands()[kLost].size(), kSequences);
  ASSERT_OK(h.Join(kLeft, LargeNode("left")));
  h.Lose(kLost);
  for (absl::Duration waited; waited < absl::Seconds(3); waited += absl::Milliseconds(10))
    h.Advance(absl::Milliseconds(10));
  EXPECT_EQ(h.commands()[kLeft].size(), kSequences);
  for (int i = 0; i < kSequences; ++i)
    EXPECT_OK(h.client(absl::StrCat(i)).failure) << "sequence " << i;
}

}  // namespace
}  // namespace tandem::router
