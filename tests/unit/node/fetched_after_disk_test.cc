// Goal: a prompt keeps its place while its beginning is read from the node's disk and then fetched
// from another node: what came after it is not computed before it.
#include <gmock/gmock.h>

#include "tests/unit/node/stored_blocks_fixture.h"

namespace tandem::decode_node {
namespace {

class FetchedAfterDisk : public StoredBlocksTest {
 protected:
  // Without a step, which would compute what is there.
  void Send(const v1::NodeCommand& command) {
    core_->OnCommand(kRouter, command, now_);
    Take();
  }
};

TEST_F(FetchedAfterDisk, KeepsThePlaceOfItsArrival) {
  Serve("earlier", /*kind=*/1, /*blocks=*/2);
  Crowd();
  events_.clear();
  v1::NodeCommand first = Prompt("first", /*kind=*/1, /*blocks=*/4);
  first.mutable_start_decode()->set_fetch_from_node_id("decode-1");
  first.mutable_start_decode()->set_fetch_from_incarnation(77);
  first.mutable_start_decode()->set_fetch_blocks(3);
  Send(first);
  ASSERT_EQ(pending_.size(), 1u) << "it reads two blocks from disk";
  now_ += absl::Milliseconds(10);
  Send(Prompt("second", /*kind=*/2, /*blocks=*/1));
  now_ += absl::Milliseconds(10);
  ServeAll();
  ASSERT_TRUE(events_.back().has_blocks_wanted()) << "it fetches one more";
  now_ += absl::Milliseconds(10);
  const LeaseId lease(events_.back().blocks_wanted().lease_id());
  core_->OnTransfer(transfer::LeaseInstalled{.lease = lease, .epoch = Epoch(1)}, now_);
  Take();
  ASSERT_TRUE(events_.back().has_reserved());
  const auto slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].tokens.size(), 4 * kBlockTokens + 1);
  EXPECT_EQ(slices[1].tokens.size(), kBlockTokens + 1);
}

}  // namespace
}  // namespace tandem::decode_node
