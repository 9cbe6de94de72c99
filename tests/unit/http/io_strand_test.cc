// Goal: what is posted runs once and in order, and a burst wakes the I/O thread once; another
// thread runs work itself only while the I/O thread is idle and no work waits for it.
#include "router/front_end/http/io_strand.h"

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <thread>
#include <vector>

namespace tandem::router {
namespace {

class IoStrandTest : public testing::Test {
 protected:
  void Post(int number) {
    box_.Post([this, number] { ran_.push_back(number); });
  }
  // How many times the I/O thread was woken since the last call.
  size_t Run() {
    context_.restart();
    return context_.poll();
  }

  boost::asio::io_context context_{1};
  IoStrand box_{context_};
  std::vector<int> ran_;
};

TEST_F(IoStrandTest, ABurstWakesOnceAndRunsInOrder) {
  for (int i = 0; i < 3; ++i) Post(i);
  EXPECT_EQ(Run(), 1u);
  EXPECT_EQ(ran_, (std::vector<int>{0, 1, 2}));
  Post(3);
  EXPECT_EQ(Run(), 1u);
  EXPECT_EQ(ran_.back(), 3);
  EXPECT_EQ(Run(), 0u);
}

TEST_F(IoStrandTest, WorkThatPostsRunsInAnotherRound) {
  box_.Post([this] { Post(1); });
  EXPECT_EQ(Run(), 2u);
  EXPECT_EQ(ran_, std::vector<int>{1});
}

TEST_F(IoStrandTest, WorkForAnIdleThreadRunsAtOnce) {
  box_.RunOrPost([this] { ran_.push_back(1); });
  EXPECT_EQ(ran_, std::vector<int>{1});
  EXPECT_EQ(Run(), 0u);
}

TEST_F(IoStrandTest, WorkDoesNotPassWhatWaits) {
  Post(1);
  box_.RunOrPost([this] { ran_.push_back(2); });
  EXPECT_TRUE(ran_.empty());
  Run();
  EXPECT_EQ(ran_, (std::vector<int>{1, 2}));
}

TEST_F(IoStrandTest, WorkDoesNotRunWithinAHandler) {
  box_.Enter([this] {
    std::thread other([this] { box_.RunOrPost([this] { ran_.push_back(1); }); });
    other.join();  // it did not wait either
    EXPECT_TRUE(ran_.empty());
  });
  Run();
  EXPECT_EQ(ran_, std::vector<int>{1});
}

TEST_F(IoStrandTest, TheIoThreadsOwnWorkComesAfterItsHandler) {
  box_.Post([this] {
    box_.RunOrPost([this] { ran_.push_back(2); });
    ran_.push_back(1);
  });
  Run();
  EXPECT_EQ(ran_, (std::vector<int>{1, 2}));
}

// What handlers and others write is not guarded by anything else.
TEST_F(IoStrandTest, NoTwoThreadsAreAtIt) {
  constexpr int kEach = 2000;
  int runs = 0;
  std::vector<std::thread> others;
  auto work = boost::asio::make_work_guard(context_);
  std::thread io([this] { context_.run(); });
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([this, &runs] {
      for (int k = 0; k < kEach; ++k) box_.RunOrPost([&runs] { ++runs; });
    });
  }
  for (std::thread& other : others) other.join();
  work.reset();
  io.join();
  EXPECT_EQ(runs, 3 * kEach);
}

}  // namespace
}  // namespace tandem::router
