// Goal: what is posted runs once and in order, and a burst wakes the I/O thread once.
#include "router/http/post_box.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::router {
namespace {

class PostBoxTest : public testing::Test {
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
  PostBox box_{context_};
  std::vector<int> ran_;
};

TEST_F(PostBoxTest, ABurstWakesOnceAndRunsInOrder) {
  for (int i = 0; i < 3; ++i) Post(i);
  EXPECT_EQ(Run(), 1u);
  EXPECT_EQ(ran_, (std::vector<int>{0, 1, 2}));
  Post(3);
  EXPECT_EQ(Run(), 1u);
  EXPECT_EQ(ran_.back(), 3);
  EXPECT_EQ(Run(), 0u);
}

TEST_F(PostBoxTest, WorkThatPostsRunsInAnotherRound) {
  box_.Post([this] { Post(1); });
  EXPECT_EQ(Run(), 2u);
  EXPECT_EQ(ran_, std::vector<int>{1});
}

}  // namespace
}  // namespace tandem::router
