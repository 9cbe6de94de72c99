// Goal: a router that joins, or joins again, learns at once that a node drains, and places no
// request there.
#include "tests/unit/node/decode_core_fixture.h"
#include "tests/unit/node/stored_blocks_fixture.h"

namespace tandem::decode_node {
namespace {

TEST_F(DecodeCoreTest, ARouterThatJoinsWhileTheNodeDrainsIsTold) {
  Send(Run("r", 20, /*local_max=*/1000));
  EXPECT_TRUE(resources_->JoinEvents().empty());
  core_->BeginDrain(now_, absl::Seconds(10));
  EXPECT_FALSE(core_->idle()) << "a leg still runs";
  const std::vector<v1::NodeEvent> events = resources_->JoinEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(events[0].has_draining());
}

// Before what it stores: the router may place requests between two events.
TEST_F(StoredBlocksTest, ThatTheNodeDrainsComesBeforeWhatItStores) {
  Serve("a", 1, 4);
  Crowd();
  core_->BeginDrain(now_, absl::Seconds(10));
  const std::vector<v1::NodeEvent> events = resources_->JoinEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(events[0].has_draining());
  EXPECT_TRUE(events[1].has_blocks_stored());
}

}  // namespace
}  // namespace tandem::decode_node
