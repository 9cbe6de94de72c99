// Goal: a price that nothing has corrected for a while fades towards its prior, so that a node, a
// link or a disk that was measured too dear is tried again; used prices stay as measured.
#include "absl/strings/str_cat.h"
#include "common/cost/price_age.h"
#include "router/placement/pair_placement.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);
constexpr double kRowUs = 1000;  // of a prompt

cost::StepProfile Profile() {
  return {.step_us = 500,
          .prompt_row_us = kRowUs,
          .generated_row_us = 100,
          .sampled_row_us = 0,
          .relative_error = 0.01,
          .median_relative_error = 0.01,
          .samples = 100};
}

class FadedPricesTest : public ::testing::Test {
 protected:
  FadedPricesTest() { fleet_.SetNow(kNow); }

  Node& Add(uint64_t key, const std::string& id, v1::NodeRole role) {
    v1::Registration registration = TestRegistration(id, role);
    registration.set_kv_bytes_per_block(1000 * kBlockTokens);
    Node& node = fleet_.Join(NodeKey(key), registration, kNow);
    index_.AddNode(node.slot, node.group(), 1000);
    fleet_.OnStepCost(node, Profile());
    return node;
  }
  Node& Prefill(int i) { return Add(100 + i, absl::StrCat("p", i), v1::NODE_ROLE_PREFILL); }
  Node& Decode(int i) { return Add(1 + i, absl::StrCat("d", i), v1::NODE_ROLE_DECODE); }
  // Transfers that moved bytes at this rate.
  void Measure(const Node& from, const Node& to, double bytes_per_us) {
    for (int i = 0; i < 40; ++i) {
      const int64_t bytes = 10'000 * (1 + i % 8);
      v1::Installed installed;
      installed.set_kv_bytes_received(bytes);
      installed.set_kv_receive_ms(static_cast<double>(bytes) / bytes_per_us / 1e3);
      fleet_.KvTransferDone(from.key, to.key, installed);
    }
  }

  std::optional<PlacementFailure> Place(int prompt) {
    const auto tokens = Tokens(prompt);
    hashes_ = HashesOf(tokens);
    return PairPlacement({.local_prefill_tokens_max = 8,
                          .fetch_tokens_min = 8,
                          .policy = PlacementPolicy::kCost},
                         fleet_, index_, random_)
        .Place({prompt, prompt + 20, hashes_, fleet_.now(), &failed_}, placement_);
  }

  FirstOfEqual random_;
  Fleet fleet_{TestModel(), {2000}, random_};
  PrefixIndex index_{{.entries_max = 100000}};
  std::vector<kv::BlockHash> hashes_;
  std::vector<std::pair<NodeKey, absl::Time>> failed_;
  Placement placement_;
};

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
  const cost::StorageProfile dear = {.read = {.bytes_per_second = 1e3, .samples = 9}};
  const double assumed = disk.ReadUs(80, fleet_.now());
  fleet_.OnStorageCost(disk, dear);
  const double measured = disk.ReadUs(80, fleet_.now() + cost::kPriceTrusted);
  EXPECT_GT(measured, 100 * assumed);
  EXPECT_NEAR(disk.ReadUs(80, fleet_.now() + absl::Minutes(20)), assumed, 0.01 * assumed);
  fleet_.SetNow(fleet_.now() + absl::Minutes(20));
  fleet_.OnStorageCost(disk, dear);  // without new samples
  EXPECT_NEAR(disk.ReadUs(80, fleet_.now()), assumed, 0.01 * assumed);
}

}  // namespace
}  // namespace tandem::router
