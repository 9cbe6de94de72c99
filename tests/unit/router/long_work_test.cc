// Goal: long work begins in order on threads of its own; what waits is bounded in number and in
// bytes; an empty queue takes a piece of any size; what never ran is destroyed.
#include "router/front_end/long_work.h"

#include <gmock/gmock.h>

#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

// Holds the queue's thread until Release.
class Blocker {
 public:
  explicit Blocker(LongWork& work, size_t bytes = 1) {
    EXPECT_OK(work.Add(bytes, [this] {
      began_.Notify();
      release_.WaitForNotification();
    }));
    began_.WaitForNotification();
  }
  void Release() { release_.Notify(); }

 private:
  absl::Notification began_, release_;
};

TEST(LongWork, RunsInOrder) {
  LongWork work(/*threads=*/1);
  Blocker blocker(work);
  std::vector<int> order;
  absl::Notification done;
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(work.Add(1, [&order, i] { order.push_back(i); }));
  }
  ASSERT_OK(work.Add(1, [&done] { done.Notify(); }));
  EXPECT_TRUE(order.empty()) << "work ran beside other work";
  blocker.Release();
  done.WaitForNotification();
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(LongWork, BoundsPiecesAndBytes) {
  LongWork work(/*threads=*/1);
  Blocker blocker(work, LongWork::kBytesMax + 1);  // alone, it may be of any size
  EXPECT_THAT(work.Add(1, [] {}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("large requests")));
  blocker.Release();
  absl::Notification empty;
  while (!work.Add(0, [&empty] { empty.Notify(); }).ok()) {
  }
  empty.WaitForNotification();

  Blocker second(work);
  ASSERT_OK(work.Add(LongWork::kBytesMax - 1, [] {}));
  EXPECT_THAT(work.Add(1, [] {}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("large requests")));
  for (size_t i = 1; i < LongWork::kPiecesMax; ++i) ASSERT_OK(work.Add(0, [] {}));
  EXPECT_THAT(work.Add(0, [] {}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("large requests")));
  second.Release();
}

TEST(LongWork, DestroysWhatNeverRan) {
  const auto held = std::make_shared<int>(0);
  {
    auto work = std::make_unique<LongWork>(/*threads=*/1);
    Blocker blocker(*work);
    ASSERT_OK(work->Add(1, [held] { ++*held; }));
    EXPECT_EQ(held.use_count(), 2);
    // The thread is busy: it sees the end before the next piece, or runs the piece and then ends.
    blocker.Release();
    work.reset();
    EXPECT_EQ(held.use_count(), 1);
  }
}

}  // namespace
}  // namespace tandem::router
