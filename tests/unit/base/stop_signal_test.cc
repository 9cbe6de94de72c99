// Goal: SIGTERM, SIGINT and SIGHUP are an event for a main function; SIGHUP is none where nohup
// ignores it, and only SIGTERM and SIGINT end a process that drains already.
#include "common/runtime/stop_signal.h"

#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace tandem {
namespace {

sigset_t Blocked() {
  sigset_t set;
  pthread_sigmask(SIG_SETMASK, nullptr, &set);
  return set;
}

class StopSignals : public ::testing::Test {
 protected:
  ~StopSignals() override {
    signal(SIGHUP, SIG_DFL);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  const sigset_t before_ = Blocked();
};

TEST_F(StopSignals, AreAwaited) {
  ASSERT_OK_AND_ASSIGN(const auto stop, StopSignal::Create());
  EXPECT_EQ(stop->Wait(absl::ZeroDuration()), 0);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    raise(signal);
    EXPECT_EQ(stop->Wait(absl::Seconds(60)), signal);
  }
}

TEST_F(StopSignals, LeaveSighupIgnored) {
  signal(SIGHUP, SIG_IGN);
  ASSERT_OK_AND_ASSIGN(const auto stop, StopSignal::Create());
  raise(SIGHUP);
  EXPECT_EQ(stop->Wait(absl::ZeroDuration()), 0);
}

TEST_F(StopSignals, KeepSighupFromEndingADrain) {
  ASSERT_OK_AND_ASSIGN(const auto stop, StopSignal::Create());
  stop->Restore();
  const sigset_t blocked = Blocked();
  EXPECT_EQ(sigismember(&blocked, SIGTERM), 0);
  EXPECT_EQ(sigismember(&blocked, SIGINT), 0);
  EXPECT_EQ(sigismember(&blocked, SIGHUP), 1);
  raise(SIGHUP);
  EXPECT_EQ(stop->Wait(absl::Seconds(60)), SIGHUP);
}

}  // namespace
}  // namespace tandem
