// Goal: a thread that spins politely learns that another wants its processor, and stops for a
// while.
#include "common/runtime/polite_spin.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>

namespace tandem {
namespace {

TEST(PoliteSpin, EndsWhereAnotherThreadWantsTheProcessor) {
  std::atomic<bool> stop{false}, runs{false};
  bool told = false, told_again = false;
  std::thread waiter([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    // Inherits the one processor.
    std::thread busy([&] {
      runs = true;
      while (!stop) continue;
    });
    while (!runs) std::this_thread::yield();
    PoliteSpin spin;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (spin.Yield() && std::chrono::steady_clock::now() < give_up) continue;
    told = std::chrono::steady_clock::now() < give_up;
    stop = true;
    busy.join();
    told_again = !spin.Yield();
  });
  waiter.join();
  EXPECT_TRUE(told);
  EXPECT_TRUE(told_again) << "right after it, without another thread";
}

}  // namespace
}  // namespace tandem
