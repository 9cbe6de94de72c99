// Goal: a Strand's items are worked off once each, in order, by one thread at a time: by who
// brings them, by who is at it already, or by the owner when that is more than a guest's share; and
// none is left behind.
#include "common/base/strand.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <random>
#include <thread>

#include "absl/synchronization/notification.h"

namespace tandem {
namespace {

using IntQueue = Strand<int>;

TEST(Strand, WhoBringsAnItemWorksItOff) {
  std::vector<int> seen;
  std::thread::id worker;
  IntQueue queue(1, [&](std::vector<int>& items) {
    seen.insert(seen.end(), items.begin(), items.end());
    worker = std::this_thread::get_id();
  });
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.Push(2));
  EXPECT_EQ(seen, (std::vector<int>{1, 2}));
  EXPECT_EQ(worker, std::this_thread::get_id());
}

TEST(Strand, WhatWorkPushesComesAfterItAndDoesNotWaitForRoom) {
  std::vector<int> seen;
  bool at_it = false;
  IntQueue* queue = nullptr;
  IntQueue real(1, [&](std::vector<int>& items) {
    EXPECT_FALSE(std::exchange(at_it, true)) << "work within work";
    for (const int item : items) {
      seen.push_back(item);
      // Two where there is room for one: nobody else could make room.
      if (item == 1) {
        EXPECT_TRUE(queue->Push(2) && queue->Push(3));
      }
    }
    at_it = false;
  });
  queue = &real;
  EXPECT_TRUE(queue->Push(1));
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3}));
}

TEST(Strand, AGuestHandsOverWhatIsMoreThanItsShare) {
  constexpr int kItems = 100;
  std::map<std::thread::id, int> worked;
  IntQueue* queue = nullptr;
  IntQueue real(kItems + 1, [&](std::vector<int>& items) {
    worked[std::this_thread::get_id()] += static_cast<int>(items.size());
    for (const int item : items) {
      for (int i = 1; item == 0 && i < kItems; ++i) EXPECT_TRUE(queue->TryPush(i));
    }
  });
  queue = &real;
  EXPECT_TRUE(queue->TryPush(0));
  const int share = static_cast<int>(IntQueue::kPushedItemsMax);
  EXPECT_EQ(worked[std::this_thread::get_id()], share);
  EXPECT_EQ(queue->size(), static_cast<size_t>(kItems - share));
  EXPECT_TRUE(queue->TryPush(kItems)) << "the turn is the owner's now: it only waits";
  EXPECT_EQ(worked[std::this_thread::get_id()], share);
  queue->Close();
  std::thread owner([&] { queue->RunOwner(absl::Hours(1)); });
  const std::thread::id host_id = owner.get_id();
  owner.join();
  EXPECT_EQ(worked[host_id], kItems + 1 - share);
  EXPECT_EQ(queue->size(), 0u);
}

TEST(Strand, LateItemsComeAfterAllOthersAFewAtATime) {
  constexpr int kLate = 3 * static_cast<int>(IntQueue::kLowItemsMax);
  constexpr int kFirstLate = 1000;
  std::vector<int> seen, expected;
  IntQueue* queue = nullptr;
  IntQueue real(2 * kLate, [&](std::vector<int>& items) {
    size_t late = 0;
    for (const int item : items) {
      seen.push_back(item);
      if (item >= kFirstLate) ++late;
      // Comes while late ones are worked off: goes before the rest of these.
      if (item == kFirstLate) {
        EXPECT_TRUE(queue->TryPush(2));
      }
      for (int i = 0; item == 0 && i < kLate; ++i) EXPECT_TRUE(queue->TryPushLow(kFirstLate + i));
      if (item == 0) {
        EXPECT_TRUE(queue->TryPush(1));
      }
    }
    EXPECT_LE(late, IntQueue::kLowItemsMax);
  });
  queue = &real;
  EXPECT_TRUE(real.TryPush(0));
  const size_t share = IntQueue::kPushedItemsMax;
  EXPECT_EQ(seen.size(), share);
  real.Close();
  EXPECT_FALSE(real.TryPushLow(kFirstLate));
  std::thread owner([&] { real.RunOwner(absl::Hours(1)); });
  owner.join();
  for (int i = 0; i < kLate; ++i) expected.push_back(kFirstLate + i);
  expected.insert(expected.begin(), {0, 1});
  expected.insert(expected.begin() + static_cast<std::ptrdiff_t>(share), 2);
  EXPECT_EQ(seen, expected);
}

TEST(Strand, OthersLeaveTheirsToWhoHasTheTurn) {
  std::vector<int> seen;
  std::thread::id worker;
  absl::Notification begun, go_on;
  IntQueue queue(2, [&](std::vector<int>& items) {
    if (!begun.HasBeenNotified()) {
      begun.Notify();
      go_on.WaitForNotification();
    }
    seen.insert(seen.end(), items.begin(), items.end());
    worker = std::this_thread::get_id();
  });
  std::thread first([&] { EXPECT_TRUE(queue.Push(1)); });
  begun.WaitForNotification();
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_TRUE(queue.TryPush(3));
  EXPECT_FALSE(queue.TryPush(4)) << "two wait, its bound";
  EXPECT_EQ(queue.refused_count(), 1u);
  // Waits for room, and is then worked off by the one that made it.
  std::thread fourth([&] { EXPECT_TRUE(queue.Push(5)); });
  go_on.Notify();
  first.join();
  fourth.join();
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3, 5}));
  EXPECT_NE(worker, std::this_thread::get_id());
}

TEST(Strand, CloseEndsWaitsAndRefuses) {
  absl::Notification begun, go_on;
  int worked = 0;
  IntQueue queue(1, [&](std::vector<int>& items) {
    if (!begun.HasBeenNotified()) {
      begun.Notify();
      go_on.WaitForNotification();
    }
    worked += static_cast<int>(items.size());
  });
  std::thread first([&] { EXPECT_TRUE(queue.Push(1)); });
  begun.WaitForNotification();
  EXPECT_TRUE(queue.Push(2));
  std::thread waiting([&] { EXPECT_FALSE(queue.Push(3)); });
  queue.Close();
  waiting.join();
  EXPECT_FALSE(queue.TryPush(4));
  std::thread owner([&] { queue.RunOwner(absl::Hours(1)); });
  go_on.Notify();
  owner.join();  // not before the guest has given the turn back
  EXPECT_EQ(worked, 2);
  first.join();
}

TEST(Strand, TheHostWorksWhenNothingIsBrought) {
  absl::Notification twice;
  int times = 0;
  IntQueue queue(1, [&](std::vector<int>& items) {
    EXPECT_TRUE(items.empty());
    if (++times == 2) twice.Notify();
  });
  std::thread owner([&] { queue.RunOwner(absl::Milliseconds(1)); });
  twice.WaitForNotification();
  queue.Close();
  owner.join();
}

struct Tagged {
  int producer = 0;
  int number = 0;
};

// Threads that push at random; `work` sometimes pushes too. All of it without a lock: whatever two
// turns did at once, or without having seen each other, a thread sanitizer reports.
class RandomThreads {
 public:
  explicit RandomThreads(uint64_t seed)
      : random_(seed),
        producers_(2 + static_cast<int>(random_() % 4)),
        // What each pushes, and what it pushes late; one more: what work itself pushes.
        next_(2 * static_cast<size_t>(producers_) + 1, 0),
        accepted_(next_.size(), 0),
        queue_(1 + random_() % 12, [this](std::vector<Tagged>& items) { Work(items); }) {}

  void Run() {
    std::thread owner([this] { queue_.RunOwner(absl::Milliseconds(1)); });
    std::vector<std::thread> threads;
    for (int i = 0; i < producers_; ++i) {
      threads.emplace_back([this, i, seed = random_()] { Produce(i, seed); });
    }
    for (std::thread& thread : threads) thread.join();
    queue_.Close();
    owner.join();
    EXPECT_EQ(queue_.size(), 0u);
    EXPECT_EQ(next_, accepted_) << "what was accepted is not what was worked off";
    EXPECT_LE(most_of_a_guest_.load(), IntQueue::kPushedItemsMax);
  }

 private:
  static constexpr int kItems = 400;

  void Produce(int producer, uint64_t seed) {
    std::mt19937_64 random(seed);
    int number = 0, late = 0;
    for (int i = 0; i < kItems; ++i) {
      worked_here_ = 0;
      const Tagged item{producer, number};
      switch (random() % 3) {
        case 0:
          if (queue_.Push(item)) ++number;
          break;
        case 1:
          if (queue_.TryPush(item)) ++number;
          break;
        default:
          if (queue_.TryPushLow({producers_ + producer, late})) ++late;
      }
      size_t most = most_of_a_guest_;
      while (most < worked_here_ && !most_of_a_guest_.compare_exchange_weak(most, worked_here_)) {
      }
    }
    accepted_[static_cast<size_t>(producer)] = number;
    accepted_[static_cast<size_t>(producers_ + producer)] = late;
  }

  void Work(std::vector<Tagged>& items) {
    EXPECT_EQ(at_it_.fetch_add(1), 0) << "two have the turn";
    for (const Tagged& item : items) {
      EXPECT_EQ(next_[static_cast<size_t>(item.producer)]++, item.number) << "out of order";
      if (item.producer == 2 * producers_ || item.number % 7 != 0) continue;
      if (queue_.Push({2 * producers_, accepted_.back()})) ++accepted_.back();
    }
    worked_here_ += items.size();
    at_it_.fetch_sub(1);
  }

  std::mt19937_64 random_;
  const int producers_;
  std::vector<int> next_;      // whoever has the turn
  std::vector<int> accepted_;  // each producer's; the last one whoever has the turn
  std::atomic<int> at_it_{0};
  std::atomic<size_t> most_of_a_guest_{0};
  static thread_local size_t worked_here_;
  Strand<Tagged> queue_;
};

thread_local size_t RandomThreads::worked_here_ = 0;

TEST(Strand, RandomThreadsLoseAndRepeatNothing) {
  constexpr uint64_t kWorlds = 40;
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  for (uint64_t i = 0; i < kWorlds && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed + i);
    RandomThreads(seed + i).Run();
  }
}

}  // namespace
}  // namespace tandem
