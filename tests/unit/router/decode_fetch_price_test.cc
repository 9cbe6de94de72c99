// Goal: without prefill nodes the policy `cost` counts on what decode nodes fetch, also over a link
// without a measurement; beside prefill nodes it does not.
#include "tests/unit/router/cost_placement_fixture.h"

namespace tandem::router {
namespace {

// What another node holds counts for a decode node that computes alone as for a prefill node.
TEST_F(CostPlacementTest, ADecodeNodeAloneFetchesWhatAnotherOneHolds) {
  Node& holder = Decode(0);
  Node& idle = Decode(1);
  Measure(holder, idle, 100);  // 80 tokens of 1,000 bytes: 0.8 ms
  index_.Store(holder.slot, absl::MakeConstSpan(HashesOf(Tokens(100))).first(80 / kBlockTokens));
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.decode, holder.key) << "no copy is needed there";
  // Four sequences there would each wait four times as long as this prompt for the way here.
  for (int i = 0; i < 4; ++i) fleet_.DecodePlaced(holder.key, 0);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.decode, idle.key);
  EXPECT_NEAR(Shown("d1", "fetch"), 0.8 + 1, 0.1);
  EXPECT_NEAR(Shown("d1", "compute"), (500 + 20 * kRowUs) / 1e3, 0.1);
}

// A token's KV of 2 MB is computed in 1 ms. At 1 GB/s it would never be fetched, so no fetch would
// tell that the link is quicker, or slower.
TEST_F(CostPlacementTest, ALinkWithoutAMeasurementIsTriedUntilItIsKnownToBeSlow) {
  Node& holder = Decode(0);
  Node& idle = Decode(1);
  holder.kv_bytes_per_token = idle.kv_bytes_per_token = 2e6;
  index_.Store(holder.slot, absl::MakeConstSpan(HashesOf(Tokens(100))).first(80 / kBlockTokens));
  for (int i = 0; i < 4; ++i) fleet_.DecodePlaced(holder.key, 0);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_GT(Shown("d1", "fetch"), 0);
  Measure(holder, idle, 1000);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(Shown("d1", "fetch"), 0);
}

// A node gives up a fetch after 2 s. It is asked to fetch what comes in half of that, and computes
// the rest.
TEST_F(CostPlacementTest, AFetchBringsWhatComesInTime) {
  Node& holder = Decode(0);
  Node& idle = Decode(1);
  constexpr double kSlowRowUs = 50'000;
  cost::StepProfile slow = Profile();
  slow.prompt_row_us = kSlowRowUs;
  fleet_.OnStepCost(idle, slow);
  Measure(holder, idle, 0.05);  // 80 tokens of 1,000 bytes: 1.6 s
  index_.Store(holder.slot, absl::MakeConstSpan(HashesOf(Tokens(100))).first(80 / kBlockTokens));
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_NEAR(Shown("d1", "fetch"), 48 * 20 + 1, 5) << "twelve blocks; thirteen are too many";
  EXPECT_NEAR(Shown("d1", "compute"), (500 + 52 * kSlowRowUs) / 1e3, 0.1);
}

// What lies in the holder's storage comes last. A fetch that leaves it out does not wait for it.
TEST_F(CostPlacementTest, AFetchThatIsCutReadsLess) {
  Node& holder = Decode(0);
  Node& idle = Decode(1);
  Measure(holder, idle, 1000);
  fleet_.OnStorageCost(holder,
                       {.disk = cost::TierProfile{
                            .read = {.fixed_us = 500, .bytes_per_second = 20'000, .samples = 9}}});
  // 60 tokens on disk, which is read at 20 tokens a second; 20 in memory.
  const FetchTimes fetch = fleet_.Fetching(holder, idle, 0, 80, {.disk = 60});
  EXPECT_EQ(fetch.tokens, 20 + 16);
  EXPECT_LE(fetch.fetch_us, 1e6);
  EXPECT_NEAR(fetch.saved_us, 36 * kRowUs, 1);
}

// Nothing is known of a link before two fetches over it have succeeded, and one that fails tells
// nothing. So both are small enough for a slow link: 125 MB.
TEST_F(CostPlacementTest, ALinkWithoutAMeasurementIsAskedForLittle) {
  Node& holder = Decode(0);
  Node& idle = Decode(1);
  idle.kv_bytes_per_token = 10e6;
  EXPECT_EQ(fleet_.Fetching(holder, idle, 0, 80, {}).tokens, 12);
  idle.kv_bytes_per_token = 1e6;
  EXPECT_EQ(fleet_.Fetching(holder, idle, 0, 80, {}).tokens, 80);
  idle.kv_bytes_per_token = 10e6;
  Measure(holder, idle, 1000);
  EXPECT_EQ(fleet_.Fetching(holder, idle, 0, 80, {}).tokens, 80);
}

// In a large fleet most links are never measured. Where the others are quick, fetches over them are
// small enough for one that is eight times slower, until one brings nothing.
TEST_F(CostPlacementTest, ALinkWithoutAMeasurementIsTakenForAUsualOne) {
  Node& holder = Decode(0);
  Node& idle = Decode(1);
  Node& other = Decode(2);
  Measure(holder, other, 2000);  // 2 GB/s, so 250 MB in a second at an eighth
  idle.kv_bytes_per_token = 10e6;
  EXPECT_EQ(fleet_.Fetching(holder, idle, 0, 80, {}).tokens, 24);
  fleet_.FetchFailed(holder.key, idle.key);
  EXPECT_EQ(fleet_.Fetching(holder, idle, 0, 80, {}).tokens, 12);
  Measure(holder, idle, 100);  // as slow as that
  EXPECT_EQ(fleet_.Fetching(holder, idle, 0, 80, {}).tokens, 8) << "80 MB in 0.8 s";
}

// One block is fetched however large it is: a link that nothing is fetched over stays unmeasured.
TEST_F(CostPlacementTest, ALinkWithoutAMeasurementIsAskedForOneLargeBlock) {
  Node& holder = Decode(0);
  Node& idle = Decode(1);
  Node& other = Decode(2);
  Measure(holder, other, 1000);
  idle.kv_bytes_per_token = 125e6;
  const FetchTimes fetch = fleet_.Fetching(holder, idle, 0, 80, {});
  EXPECT_EQ(fetch.tokens, kBlockTokens);
  EXPECT_GT(fetch.fetch_us, 0);
}

// Beside prefill nodes, a fetch makes no decode node cheaper: those compute the prompt.
TEST_F(CostPlacementTest, WhereThereArePrefillNodesTheyFetch) {
  Node& holder = Decode(0);
  Decode(1);
  Node& prefill = Prefill(0);
  index_.Store(holder.slot, absl::MakeConstSpan(HashesOf(Tokens(100))).first(96 / kBlockTokens));
  for (int i = 0; i < 60; ++i) fleet_.DecodePlaced(holder.key, 0);
  holder.max_sequences = 100;
  Measure(holder, prefill, 100);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, prefill.key);
  EXPECT_GT(Shown("p0", "fetch"), 0);
}

}  // namespace
}  // namespace tandem::router
