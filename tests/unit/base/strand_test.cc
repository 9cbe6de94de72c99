// Goal: a Strand processes each item once, in order, on one thread at a time: on the thread that
// pushed it, on the thread that is combining, or on the fallback thread once a pushing thread has
// processed kPushedItemsMax items. It leaves no item behind.
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

TEST(Strand, ThePushingThreadProcessesItsItem) {
  std::vector<int> seen;
  std::thread::id combiner;
  IntQueue queue(1, [&](std::vector<int>& items) {
    seen.insert(seen.end(), items.begin(), items.end());
    combiner = std::this_thread::get_id();
  });
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.Push(2));
  EXPECT_EQ(seen, (std::vector<int>{1, 2}));
  EXPECT_EQ(combiner, std::this_thread::get_id());
}

TEST(Strand, ItemsThatProcessPushesFollowItAndDoNotWaitForRoom) {
  std::vector<int> seen;
  bool processing = false;
  IntQueue* queue = nullptr;
  IntQueue real(1, [&](std::vector<int>& items) {
    EXPECT_FALSE(std::exchange(processing, true)) << "process calls nest";
    for (const int item : items) {
      seen.push_back(item);
      // Two items where there is room for one: only the combining thread makes room.
      if (item == 1) {
        EXPECT_TRUE(queue->Push(2) && queue->Push(3));
      }
    }
    processing = false;
  });
  queue = &real;
  EXPECT_TRUE(queue->Push(1));
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3}));
}

TEST(Strand, TheFallbackThreadTakesOverAfterAPushingThreadsShare) {
  constexpr int kItems = 100;
  std::map<std::thread::id, int> processed;
  IntQueue* queue = nullptr;
  IntQueue real(kItems + 1, [&](std::vector<int>& items) {
    processed[std::this_thread::get_id()] += static_cast<int>(items.size());
    for (const int item : items) {
      for (int i = 1; item == 0 && i < kItems; ++i) EXPECT_TRUE(queue->TryPush(i));
    }
  });
  queue = &real;
  EXPECT_TRUE(queue->TryPush(0));
  const int share = static_cast<int>(IntQueue::kPushedItemsMax);
  EXPECT_EQ(processed[std::this_thread::get_id()], share);
  EXPECT_EQ(queue->size(), static_cast<size_t>(kItems - share));
  EXPECT_TRUE(queue->TryPush(kItems)) << "the fallback thread combines next: the item only waits";
  EXPECT_EQ(processed[std::this_thread::get_id()], share);
  queue->Close();
  std::thread fallback([&] { queue->RunFallback(absl::Hours(1)); });
  const std::thread::id fallback_id = fallback.get_id();
  fallback.join();
  EXPECT_EQ(processed[fallback_id], kItems + 1 - share);
  EXPECT_EQ(queue->size(), 0u);
}

TEST(Strand, LowPriorityItemsFollowAllOthersAFewAtATime) {
  constexpr int kLow = 3 * static_cast<int>(IntQueue::kLowItemsMax);
  constexpr int kFirstLow = 1000;
  std::vector<int> seen, expected;
  IntQueue* queue = nullptr;
  IntQueue real(2 * kLow, [&](std::vector<int>& items) {
    size_t low = 0;
    for (const int item : items) {
      seen.push_back(item);
      if (item >= kFirstLow) ++low;
      // Pushed while low-priority items are processed: precedes the rest of them.
      if (item == kFirstLow) {
        EXPECT_TRUE(queue->TryPush(2));
      }
      for (int i = 0; item == 0 && i < kLow; ++i) EXPECT_TRUE(queue->TryPushLow(kFirstLow + i));
      if (item == 0) {
        EXPECT_TRUE(queue->TryPush(1));
      }
    }
    EXPECT_LE(low, IntQueue::kLowItemsMax);
  });
  queue = &real;
  EXPECT_TRUE(real.TryPush(0));
  const size_t share = IntQueue::kPushedItemsMax;
  EXPECT_EQ(seen.size(), share);
  real.Close();
  EXPECT_FALSE(real.TryPushLow(kFirstLow));
  std::thread fallback([&] { real.RunFallback(absl::Hours(1)); });
  fallback.join();
  for (int i = 0; i < kLow; ++i) expected.push_back(kFirstLow + i);
  expected.insert(expected.begin(), {0, 1});
  expected.insert(expected.begin() + static_cast<std::ptrdiff_t>(share), 2);
  EXPECT_EQ(seen, expected);
}

TEST(Strand, OtherThreadsLeaveTheirItemsToTheCombiner) {
  std::vector<int> seen;
  std::thread::id combiner;
  absl::Notification begun, go_on;
  IntQueue queue(2, [&](std::vector<int>& items) {
    if (!begun.HasBeenNotified()) {
      begun.Notify();
      go_on.WaitForNotification();
    }
    seen.insert(seen.end(), items.begin(), items.end());
    combiner = std::this_thread::get_id();
  });
  std::thread first([&] { EXPECT_TRUE(queue.Push(1)); });
  begun.WaitForNotification();
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_TRUE(queue.TryPush(3));
  EXPECT_FALSE(queue.TryPush(4)) << "two items wait, the capacity";
  EXPECT_EQ(queue.refused_count(), 1u);
  // Waits for room; the combiner that makes room then processes it.
  std::thread fourth([&] { EXPECT_TRUE(queue.Push(5)); });
  go_on.Notify();
  first.join();
  fourth.join();
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3, 5}));
  EXPECT_NE(combiner, std::this_thread::get_id());
}

TEST(Strand, CloseEndsWaitsAndRefuses) {
  absl::Notification begun, go_on;
  int processed = 0;
  IntQueue queue(1, [&](std::vector<int>& items) {
    if (!begun.HasBeenNotified()) {
      begun.Notify();
      go_on.WaitForNotification();
    }
    processed += static_cast<int>(items.size());
  });
  std::thread first([&] { EXPECT_TRUE(queue.Push(1)); });
  begun.WaitForNotification();
  EXPECT_TRUE(queue.Push(2));
  std::thread waiting([&] { EXPECT_FALSE(queue.Push(3)); });
  queue.Close();
  waiting.join();
  EXPECT_FALSE(queue.TryPush(4));
  std::thread fallback([&] { queue.RunFallback(absl::Hours(1)); });
  go_on.Notify();
  fallback.join();  // only after the pushing thread has stopped combining
  EXPECT_EQ(processed, 2);
  first.join();
}

TEST(Strand, TheFallbackThreadCallsProcessWhenNoItemComes) {
  absl::Notification twice;
  int times = 0;
  IntQueue queue(1, [&](std::vector<int>& items) {
    EXPECT_TRUE(items.empty());
    if (++times == 2) twice.Notify();
  });
  std::thread fallback([&] { queue.RunFallback(absl::Milliseconds(1)); });
  twice.WaitForNotification();
  queue.Close();
  fallback.join();
}

struct Tagged {
  int producer = 0;
  int number = 0;
};

// Threads that push at random; `process` sometimes pushes too. The state that `process` uses has no
// lock, so ThreadSanitizer reports two calls that overlap, or that do not see each other's writes.
class RandomThreads {
 public:
  explicit RandomThreads(uint64_t seed)
      : random_(seed),
        producers_(2 + static_cast<int>(random_() % 4)),
        // One entry a producer for high-priority items, one for low-priority items, and a last one
        // for the items that `process` pushes.
        next_(2 * static_cast<size_t>(producers_) + 1, 0),
        accepted_(next_.size(), 0),
        queue_(1 + random_() % 12, [this](std::vector<Tagged>& items) { Process(items); }) {}

  void Run() {
    std::thread fallback([this] { queue_.RunFallback(absl::Milliseconds(1)); });
    std::vector<std::thread> threads;
    for (int i = 0; i < producers_; ++i) {
      threads.emplace_back([this, i, seed = random_()] { Produce(i, seed); });
    }
    for (std::thread& thread : threads) thread.join();
    queue_.Close();
    fallback.join();
    EXPECT_EQ(queue_.size(), 0u);
    EXPECT_EQ(next_, accepted_) << "accepted items differ from processed items";
    EXPECT_LE(most_of_a_pusher_.load(), IntQueue::kPushedItemsMax);
  }

 private:
  static constexpr int kItems = 400;

  void Produce(int producer, uint64_t seed) {
    std::mt19937_64 random(seed);
    int number = 0, low = 0;
    for (int i = 0; i < kItems; ++i) {
      processed_here_ = 0;
      const Tagged item{producer, number};
      switch (random() % 3) {
        case 0:
          if (queue_.Push(item)) ++number;
          break;
        case 1:
          if (queue_.TryPush(item)) ++number;
          break;
        default:
          if (queue_.TryPushLow({producers_ + producer, low})) ++low;
      }
      size_t most = most_of_a_pusher_;
      while (most < processed_here_ &&
             !most_of_a_pusher_.compare_exchange_weak(most, processed_here_)) {
      }
    }
    accepted_[static_cast<size_t>(producer)] = number;
    accepted_[static_cast<size_t>(producers_ + producer)] = low;
  }

  void Process(std::vector<Tagged>& items) {
    EXPECT_EQ(processing_.fetch_add(1), 0) << "two threads combine";
    for (const Tagged& item : items) {
      EXPECT_EQ(next_[static_cast<size_t>(item.producer)]++, item.number) << "out of order";
      if (item.producer == 2 * producers_ || item.number % 7 != 0) continue;
      if (queue_.Push({2 * producers_, accepted_.back()})) ++accepted_.back();
    }
    processed_here_ += items.size();
    processing_.fetch_sub(1);
  }

  std::mt19937_64 random_;
  const int producers_;
  std::vector<int> next_;      // the next number expected; used by the combiner
  std::vector<int> accepted_;  // each entry used by its producer; the last one by the combiner
  std::atomic<int> processing_{0};
  std::atomic<size_t> most_of_a_pusher_{0};
  static thread_local size_t processed_here_;
  Strand<Tagged> queue_;
};

thread_local size_t RandomThreads::processed_here_ = 0;

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
