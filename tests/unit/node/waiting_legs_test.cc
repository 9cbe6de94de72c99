// Goal: while a sequence waits for memory, its router hears of it again and again, though seldom,
// and of no other one.
#include <gmock/gmock.h>

#include <map>

#include "tests/unit/node/decode_core_fixture.h"

namespace tandem::decode_node {
namespace {

constexpr int kTokens = 60;

// Two sequences of seven blocks each in a pool of eight: the second is preempted until the first
// has ended.
class WaitingLegTest : public DecodeCoreTest {
 protected:
  static v1::NodeCommand Long(const std::string& id) {
    v1::NodeCommand command = Run(id, 40, -1);
    v1::SequenceSpec& sequence = *command.mutable_start_decode()->mutable_sequence();
    sequence.mutable_stop()->set_max_tokens(kTokens);
    sequence.set_cache_salt(id);  // they share nothing
    return command;
  }
  void Count(const node::NodeActions& actions) {
    for (const auto& [router, event] : actions.events) {
      ended_ += event.has_leg_finished() ? 1 : 0;
      for (const v1::TokensGenerated::Step& step : event.tokens().steps()) {
        const std::string& id = step.leg().request_id();
        tokens_[id] += step.tokens_size();
        if (step.tokens().empty()) ++waits_[id];
      }
    }
  }

  std::map<std::string, int> tokens_, waits_;
  int ended_ = 0;
};

TEST_F(WaitingLegTest, AreReportedWhileTheyWait) {
  step_time_ = absl::Milliseconds(100);
  Send(Long("a"));
  Send(Long("b"));
  absl::Duration without_token;
  for (int step = 0; step < 4 * kTokens && ended_ < 2; ++step) {
    const int before = tokens_["b"];
    Count(Step());
    core_->OnTick(now_);
    Count(resources_->TakeActions());
    if (before > 0 && tokens_["b"] == before && ended_ < 2) without_token += step_time_;
  }
  EXPECT_EQ(resources_->counters().preemptions(), 1);
  EXPECT_EQ(tokens_["a"], kTokens);
  EXPECT_EQ(tokens_["b"], kTokens);
  EXPECT_EQ(waits_["a"], 0);
  const auto intervals = static_cast<int>(without_token / DecodeCore::kWaitingInterval);
  EXPECT_GT(intervals, 2);
  EXPECT_NEAR(waits_["b"], intervals, 1);
}

// It stays in the batch: no other sequence can be preempted for it.
TEST_F(WaitingLegTest, AreReportedWhileTheyLackTheBlocksOfALease) {
  Send(Long("a"));
  v1::NodeCommand receiving = Run("b", 40);
  receiving.mutable_start_decode()->mutable_sequence()->set_cache_salt("b");
  receiving.mutable_start_decode()->set_deadline_s(120);
  const node::NodeActions reserved = Send(receiving);
  ASSERT_EQ(reserved.events.size(), 1u);
  const uint64_t lease = reserved.events[0].second.reserved().lease_id();
  for (int step = 0, before = -1; step < kTokens && tokens_["a"] > before; ++step) {
    before = tokens_["a"];
    Count(Step());
  }
  ASSERT_GT(tokens_["a"], 0);
  ASSERT_LT(tokens_["a"], kTokens);
  const auto tick = [&](absl::Duration time) {
    const absl::Time end = now_ + time;
    for (; now_ < end; now_ += absl::Milliseconds(100)) {
      core_->OnTick(now_);
      Count(resources_->TakeActions());
      Count(Step());
    }
  };
  tick(absl::Seconds(3));
  EXPECT_EQ(waits_["a"], absl::Seconds(3) / DecodeCore::kWaitingInterval);
  Send(Abort("b"));
  Send(transfer::LeaseDrained{LeaseId(lease)});
  Count(Step());
  tick(absl::Seconds(1));
  EXPECT_EQ(waits_["a"], absl::Seconds(3) / DecodeCore::kWaitingInterval) << "it goes on";
  EXPECT_EQ(waits_["b"], 0);
}

}  // namespace
}  // namespace tandem::decode_node
