// Goal: a router that believes what it reads last knows the newest load, whichever thread tells it.
#include "common/node/published_load.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"

namespace tandem::node {
namespace {

v1::NodeLoad LoadOf(int64_t blocks) {
  v1::NodeLoad load;
  load.set_blocks_total(blocks);
  return load;
}

// A heartbeat that is being sent tells of 1. What is published meanwhile is sent afterwards.
TEST(PublishedLoad, NoLoadIsSentAfterANewerOne) {
  PublishedLoad load;
  load.Set(LoadOf(1));
  std::vector<int64_t> sent;  // guarded by the order of the calls
  absl::Notification begun;
  std::thread engine;
  load.SendAgain([&](const v1::NodeLoad& heartbeat) {
    engine = std::thread([&] {
      begun.Notify();
      load.Send(LoadOf(2),
                [&](const v1::NodeLoad& event) { sent.push_back(event.blocks_total()); });
    });
    begun.WaitForNotification();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    sent.push_back(heartbeat.blocks_total());
  });
  engine.join();
  load.SendAgain([&](const v1::NodeLoad& next) { sent.push_back(next.blocks_total()); });
  EXPECT_EQ(sent, (std::vector<int64_t>{1, 2, 2}));
}

}  // namespace
}  // namespace tandem::node
