// Goal: when the machine's wall clock steps, forwards or back, no process notices: the clock that
// all deadlines, rates and cost models are measured with goes on as before. This program's
// clock_gettime takes the C library's place and steps the wall clock.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "absl/time/clock.h"
#include "common/runtime/clock.h"

namespace {
std::atomic<int64_t> wall_step_s = 0;
}  // namespace

extern "C" int clock_gettime(clockid_t clock, struct timespec* time) {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += wall_step_s;
  return result;
}

namespace tandem {
namespace {

TEST(ClockSteps, NoDeadlineMoves) {
  const Clock& clock = RealClock();
  const absl::Time began = clock.Now();
  absl::Time before = began;
  for (const int64_t step : {3600, -3600, 86400 * 365, -86400 * 365, 0}) {
    wall_step_s = step;
    EXPECT_NEAR(absl::ToDoubleSeconds(absl::Now() - began), static_cast<double>(step), 600)
        << "the wall clock did not step";
    const absl::Time now = clock.Now();
    EXPECT_GE(now, before) << "after a step of " << step << " s";
    EXPECT_LT(now - began, absl::Minutes(10)) << "after a step of " << step << " s";
    before = now;
  }
}

}  // namespace
}  // namespace tandem
