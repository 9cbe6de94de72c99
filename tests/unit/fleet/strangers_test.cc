// Goal: of streams that have not registered, those of the source that has the most make room.
#include "router/process/strangers.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::router {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(Strangers, TheSourceWithTheMostGivesOneUp) {
  Strangers strangers;
  uint64_t key = 0;
  const auto add = [&](const std::string& source) {
    ++key;
    strangers.Add(NodeKey(key), source, kStart + absl::Seconds(key));
  };
  add("busy");                                    // 1
  for (int i = 0; i < 3; ++i) add("flood");       // 2, 3, 4
  for (int i = 0; i < 2; ++i) add("restarting");  // 5, 6
  EXPECT_EQ(strangers.ToGiveUp(), NodeKey(2));
  EXPECT_TRUE(strangers.Erase(NodeKey(2)));
  EXPECT_FALSE(strangers.Erase(NodeKey(2)));
  // Two sources have two each.
  EXPECT_EQ(strangers.ToGiveUp(), NodeKey(3));
  EXPECT_TRUE(strangers.Erase(NodeKey(3)));
  EXPECT_EQ(strangers.ToGiveUp(), NodeKey(5));
  EXPECT_TRUE(strangers.Erase(NodeKey(5)));
  // One each: the oldest.
  EXPECT_EQ(strangers.ToGiveUp(), NodeKey(1));
  EXPECT_EQ(strangers.size(), 3u);
}

TEST(Strangers, TheOldestIsDueFirst) {
  Strangers strangers;
  EXPECT_EQ(strangers.OpenedBy(kStart), std::nullopt);
  strangers.Add(NodeKey(1), "a", kStart);
  strangers.Add(NodeKey(2), "b", kStart + absl::Seconds(1));
  EXPECT_EQ(strangers.OpenedBy(kStart - absl::Seconds(1)), std::nullopt);
  EXPECT_EQ(strangers.OpenedBy(kStart), NodeKey(1));
  EXPECT_TRUE(strangers.Erase(NodeKey(1)));
  EXPECT_EQ(strangers.OpenedBy(kStart), std::nullopt);
  EXPECT_EQ(strangers.OpenedBy(kStart + absl::Seconds(1)), NodeKey(2));
}

}  // namespace
}  // namespace tandem::router
