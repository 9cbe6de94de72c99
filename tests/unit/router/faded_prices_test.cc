// Goal: a price that nothing has corrected for a while fades towards its prior, so that a node, a
// link or a disk that was measured too dear is tried again; used prices stay as measured.
#include "common/cost/price_age.h"
#include "tests/unit/router/cost_placement_fixture.h"

namespace tandem::router {
namespace {

class FadedPricesTest : public CostPlacementTest {};

// A node that was dear once gets no work that would correct its price.
TEST_F(FadedPricesTest, AnUnusedNodesPriceFadesTowardsItsRoles) {
  Decode(0);
  Node& dear = Prefill(0);
  Node& usual = Prefill(1);
  cost::StepProfile stalled = Profile();
  stalled.prompt_row_us *= 100;
  fleet_.OnStepCost(dear, stalled);
  const double measured = dear.PromptUs(0, 100);
  const auto report_after = [&](absl::Duration time) {
    fleet_.SetNow(fleet_.now() + time);
    fleet_.OnLoad(dear, dear.load);
    fleet_.OnLoad(usual, usual.load);
  };
  report_after(cost::kPriceTrusted);
  EXPECT_EQ(dear.PromptUs(0, 100), measured) << "still trusted";
  report_after(20 * cost::kPriceHalfLife);
  EXPECT_NEAR(dear.PromptUs(0, 100), usual.PromptUs(0, 100), 0.01 * usual.PromptUs(0, 100));
  EXPECT_EQ(usual.PromptUs(0, 100), 500 + 100 * kRowUs) << "a cheap price stays";
  // It is tried, before a node with a queue.
  fleet_.PrefillPlaced(usual.key, 100, 100);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, dear.key);
  // A report without new samples is no sample; one sample restores the price.
  fleet_.OnStepCost(dear, stalled);
  EXPECT_LT(dear.PromptUs(0, 100), measured / 50);
  ++stalled.samples;
  fleet_.OnStepCost(dear, stalled);
  EXPECT_EQ(dear.PromptUs(0, 100), measured);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, usual.key);
}

TEST_F(FadedPricesTest, AnUnusedLinksPriceFadesTowardsAllLinks) {
  Node& decode = Decode(0);
  Node& dear = Prefill(0);
  Node& usual = Prefill(1);
  Measure(dear, decode, 0.01);
  Measure(usual, decode, 1000);
  const double measured = fleet_.TransferUs(dear, decode, 1e5);
  fleet_.SetNow(fleet_.now() + cost::kPriceTrusted);
  EXPECT_EQ(fleet_.TransferUs(dear, decode, 1e5), measured) << "still trusted";
  fleet_.SetNow(fleet_.now() + 40 * cost::kPriceHalfLife);
  const double of_all_links = fleet_.TransferUs(decode, usual, 1e5);
  EXPECT_LT(of_all_links, 1000);
  EXPECT_NEAR(fleet_.TransferUs(dear, decode, 1e5), of_all_links, 1);
  EXPECT_NEAR(fleet_.TransferUs(usual, decode, 1e5), 100, 10) << "a cheap price stays";
  fleet_.PrefillPlaced(usual.key, 100, 100);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, dear.key);
  v1::Installed slow;
  slow.set_kv_bytes_received(10'000);
  slow.set_kv_receive_ms(1000);
  fleet_.KvTransferDone(dear.key, decode.key, slow);
  EXPECT_GT(fleet_.TransferUs(dear, decode, 1e5), measured / 2) << "one sample restores it";
}

TEST_F(FadedPricesTest, AnUnusedDisksPriceFadesTowardsTheAssumedOne) {
  Node& disk = Prefill(0);
  const cost::StorageProfile dear = {
      .disk = cost::TierProfile{.read = {.bytes_per_second = 1e3, .samples = 9}}};
  const double assumed = disk.ReadUs({.disk = 80}, fleet_.now());
  fleet_.OnStorageCost(disk, dear);
  const double measured = disk.ReadUs({.disk = 80}, fleet_.now() + cost::kPriceTrusted);
  EXPECT_GT(measured, 100 * assumed);
  EXPECT_NEAR(disk.ReadUs({.disk = 80}, fleet_.now() + absl::Minutes(20)), assumed, 0.01 * assumed);
  fleet_.SetNow(fleet_.now() + absl::Minutes(20));
  fleet_.OnStorageCost(disk, dear);  // without new samples
  EXPECT_NEAR(disk.ReadUs({.disk = 80}, fleet_.now()), assumed, 0.01 * assumed);
}

}  // namespace
}  // namespace tandem::router
