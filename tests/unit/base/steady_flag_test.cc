// Goal: who waits for the flag learns of it, also when it is set before or while it waits, and does
// not wait longer than it wants to.
#include "common/base/steady_flag.h"

#include <gtest/gtest.h>

#include <thread>

namespace tandem {
namespace {

TEST(SteadyFlag, IsAwaitedUntilItIsSet) {
  SteadyFlag flag;
  EXPECT_FALSE(flag.Await(absl::ZeroDuration()));
  EXPECT_FALSE(flag.Await(absl::Milliseconds(1)));
  std::thread setter([&] { flag.Set(true); });
  EXPECT_TRUE(flag.Await(absl::Seconds(60)));
  setter.join();
  EXPECT_TRUE(flag.Await(absl::InfiniteDuration())) << "it is set already";
  flag.Set(false);
  EXPECT_FALSE(flag.Await(absl::ZeroDuration())) << "it was taken back";
}

}  // namespace
}  // namespace tandem
