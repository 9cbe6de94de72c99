// Goal: routers hear at once that a node holds less, its debts included, and are not told the same
// thing twice, nor that it holds more.
#include "common/node/freed_room.h"

#include <gtest/gtest.h>

namespace tandem::node {
namespace {

int64_t Holding(int64_t used, int64_t owed = 0) {
  v1::NodeLoad load;
  load.set_blocks_used(used);
  if (owed > 0) load.add_debts()->set_blocks(owed);
  return FreedRoom::HeldBy(load);
}

TEST(FreedRoom, IsReportedOnceAndGrowthIsNot) {
  FreedRoom room;
  room.OnReported(Holding(5));
  EXPECT_FALSE(room.TakeDue(Holding(5)));
  EXPECT_FALSE(room.TakeDue(Holding(7)));
  EXPECT_FALSE(room.TakeDue(Holding(6))) << "routers think that it holds 5";
  EXPECT_TRUE(room.TakeDue(Holding(4)));
  EXPECT_FALSE(room.TakeDue(Holding(4)));
}

TEST(FreedRoom, TheEndOfADebtIsReported) {
  FreedRoom room;
  room.OnReported(Holding(5, 16));
  EXPECT_FALSE(room.TakeDue(Holding(5, 16)));
  EXPECT_TRUE(room.TakeDue(Holding(5)));
}

}  // namespace
}  // namespace tandem::node
