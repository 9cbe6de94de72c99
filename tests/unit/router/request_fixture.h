// The scripted fleet that tests of one request share: two decode and two prefill nodes, and the way
// to each state.
#pragma once

#include "common/telemetry/log.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {

inline constexpr uint64_t kD0 = 1, kD1 = 2, kP0 = 3, kP1 = 4;

class RequestTest : public ::testing::Test {
 protected:
  RequestTest() { SetLogLevel(LogLevel::kError); }
  void JoinAll() {
    h_.JoinDecode(kD0, "d0");
    h_.JoinDecode(kD1, "d1");
    h_.JoinPrefill(kP0, "p0");
    h_.JoinPrefill(kP1, "p1");
  }
  // Brings request "r" to each state; legs are those of d0 and p0.
  void ToReserving() {
    ASSERT_OK(h_.Submit("r"));
    d_ = h_.NextRun(kD0).leg();
  }
  void ToPrefilling() {
    ToReserving();
    h_.Say(kD0, {Reserved(d_)});
    p_ = h_.NextPrefill(kP0).leg();
  }
  void ToInstalling() {
    ToPrefilling();
    h_.Say(kP0, {Generated(p_, {0}), PrefillFinished(p_, 100, 0)});
  }
  void ToGenerating() {
    ToInstalling();
    h_.Say(kD0, {Installed(d_, 0)});
    h_.Say(kD0, {Generated(d_, {1, 2})});
  }
  // A retried placement on `key` runs to its end without a prefill node's help.
  void FinishLocally(uint64_t key, int from, int to) {
    const v1::StartDecode run = h_.NextRun(key);
    EXPECT_EQ(run.sequence().delivered_tokens(), from);
    ASSERT_EQ(run.sequence().prompt_size(), 100 + from);
    for (int i = 0; i < from; ++i) EXPECT_EQ(run.sequence().prompt(100 + i), 500 + i);
    h_.Say(key, {Reserved(run.leg(), 0, true)});
    std::vector<int> rest;
    for (int i = from; i < to; ++i) rest.push_back(i);
    h_.Say(key, {Installed(run.leg(), -1), Generated(run.leg(), rest)});
    ExpectDone(to);
  }
  void ExpectDone(int tokens) {
    ClientView& client = h_.client("r");
    ASSERT_TRUE(client.done.has_value()) << client.failure;
    ASSERT_EQ(client.tokens.size(), static_cast<size_t>(tokens));
    for (int i = 0; i < tokens; ++i) EXPECT_EQ(client.tokens[i], 500 + i);
    EXPECT_EQ(client.done->reason, request::FinishReason::kLength);
    h_.ExpectEmpty();
  }

  CoreHarness h_;
  v1::Leg d_, p_;
};

}  // namespace tandem::router
