// Goal: a status is as fresh as its asker may expect while few ask; however many ask, the core
// makes only so many a second; each caller is answered once.
#include "router/front_end/status_board.h"

#include <gtest/gtest.h>

#include <thread>

#include "common/telemetry/log.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

class StatusBoardTest : public ::testing::Test {
 protected:
  StatusBoardTest() { SetLogLevel(LogLevel::kError); }

  CoreHarness h_;
  int made_ = 0;  // on the strand
  absl::Time now_ = absl::UnixEpoch();
  Inbox inbox_{4096, [this](std::vector<InboxItem>& items) {
                 for (InboxItem& item : items) {
                   std::get<CoreCall>(item).call(h_.core(), h_.now());
                   ++made_;
                 }
               }};
  StatusBoard board_{inbox_};
};

TEST_F(StatusBoardTest, ShowsWhatHasJustHappened) {
  for (int i = 0; i < 10; ++i) {
    h_.JoinDecode(static_cast<uint64_t>(i + 1), absl::StrCat("d", i));
    int nodes = -1;
    board_.Read(now_, [&](const StatusBoard::Status& status) { nodes = status->nodes_size(); });
    EXPECT_EQ(nodes, i + 1);
  }
  EXPECT_EQ(made_, 10);
}

TEST_F(StatusBoardTest, MakesOnlySoManyASecond) {
  int answers = 0;
  const auto ask = [&] {
    board_.Read(now_, [&](const StatusBoard::Status& status) { answers += status != nullptr; });
  };
  for (int i = 0; i < 1000; ++i) ask();
  EXPECT_EQ(answers, 1000);
  EXPECT_EQ(made_, StatusBoard::kFreshPerSecond);
  now_ += absl::Seconds(1);
  ask();
  EXPECT_EQ(made_, StatusBoard::kFreshPerSecond + 1);
}

TEST_F(StatusBoardTest, AnswersEveryAskerOnce) {
  constexpr int kThreads = 4, kAsks = 5000;
  std::atomic<int> answers{0};
  // Who finds neither room to wait nor a status is told so. From the first one on there is one.
  board_.Read(now_, [&](const StatusBoard::Status& status) { answers += status != nullptr; });
  ASSERT_EQ(answers, 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kAsks; ++i)
        board_.Read(now_, [&](const StatusBoard::Status& status) { answers += status != nullptr; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  // What is left for the strand's fallback thread.
  std::thread fallback([&] { inbox_.RunFallback(absl::Milliseconds(1)); });
  inbox_.Close();
  fallback.join();
  EXPECT_EQ(answers, 1 + kThreads * kAsks);
  EXPECT_LE(made_, StatusBoard::kFreshPerSecond);
}

TEST_F(StatusBoardTest, SaysWhenThereIsNone) {
  inbox_.Close();
  bool none = false;
  board_.Read(now_, [&](const StatusBoard::Status& status) { none = status == nullptr; });
  EXPECT_TRUE(none);
}

}  // namespace
}  // namespace tandem::router
