// Goal: each placement policy of the comparison chooses by its own criterion, and none chooses a
// node that the filters drop.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "router/placement/pair_placement.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);

class PoliciesTest : public ::testing::Test {
 protected:
  // Decode nodes d0, d1, ... have the keys 1, 2, ...; prefill nodes p0, p1, ... 101, 102, ...
  void Join(int decode_nodes, int prefill_nodes) {
    for (int i = 0; i < decode_nodes; ++i) Add(1 + i, absl::StrCat("d", i), v1::NODE_ROLE_DECODE);
    for (int i = 0; i < prefill_nodes; ++i)
      Add(101 + i, absl::StrCat("p", i), v1::NODE_ROLE_PREFILL);
  }
  Node& Add(uint64_t key, const std::string& id, v1::NodeRole role) {
    Node& node = fleet_.Join(NodeKey(key), TestRegistration(id, role), kNow);
    index_.AddNode(node.slot, node.group(), 1000);
    return node;
  }
  std::unique_ptr<PairPlacement> With(PlacementPolicy policy) {
    return std::make_unique<PairPlacement>(
        PairPlacement::Options{.local_prefill_tokens_max = 8, .policy = policy}, fleet_, index_,
        *random_);
  }
  // Places a prompt of 40 tokens that begins with `first`.
  Placement Place(PairPlacement& placer, TokenId first = 1) {
    const auto hashes = HashesOf(Tokens(40, first));
    Placement placement;
    EXPECT_EQ(placer.Place({40, 60, hashes, kNow, &failed_}, placement), std::nullopt);
    return placement;
  }

  std::unique_ptr<Random> random_ = NewSeededRandom(1);
  Fleet fleet_{TestModel(), {100}, *random_};
  PrefixIndex index_{{.entries_max = 100000}};
  std::vector<std::pair<NodeKey, absl::Time>> failed_;
};

// The decision lists every node that was weighed, with scores that make up its score, and marks the
// nodes of the placement, which have the best one.
TEST_F(PoliciesTest, APlacementTellsWhatItWeighed) {
  Join(3, 2);
  const auto hashes = HashesOf(Tokens(40));
  index_.Store(fleet_.Find(NodeKey(2))->slot, hashes);
  for (const PlacementPolicy policy : {PlacementPolicy::kAffinity, PlacementPolicy::kRandom}) {
    PairPlacement placer({.local_prefill_tokens_max = 8, .policy = policy, .explains = true},
                         fleet_, index_, *random_);
    const Placement placement = Place(placer);
    ASSERT_NE(placement.decision, nullptr);
    const v1::PlacementDecision& decision = *placement.decision;
    EXPECT_EQ(decision.policy(), NameOf(policy));
    EXPECT_EQ(decision.prompt_tokens(), 40);
    const bool weighed = policy == PlacementPolicy::kAffinity;
    EXPECT_EQ(decision.decode_nodes_size(), weighed ? 3 : 1);
    EXPECT_EQ(decision.prefill_nodes_size(), weighed ? 2 : 1);
    double best = 0;
    for (const auto& node : decision.decode_nodes()) best = std::max(best, node.pair_score());
    for (const auto& node : decision.decode_nodes()) {
      EXPECT_EQ(node.chosen(), node.node_id() == fleet_.Find(placement.decode)->id.value());
      if (node.chosen()) {
        EXPECT_EQ(node.pair_score(), best);
      }
      double sum = 0, weights = 0;
      for (const auto& score : node.scores()) {
        sum += score.weight() * score.score();
        weights += score.weight();
      }
      EXPECT_EQ(weights > 0, weighed);
      if (weighed) {
        EXPECT_DOUBLE_EQ(sum / weights, node.score());
      }
    }
  }
  EXPECT_EQ(Place(*With(PlacementPolicy::kAffinity)).decision, nullptr);
}

TEST_F(PoliciesTest, RoundRobinTakesTurnsAndPassesOverNodesThatMayNot) {
  Join(3, 2);
  const auto placer = With(PlacementPolicy::kRoundRobin);
  const auto next = [&] {
    const Placement placed = Place(*placer);
    return std::pair(placed.decode.value(), placed.prefill->value());
  };
  EXPECT_EQ(next(), std::pair(uint64_t{1}, uint64_t{101}));
  EXPECT_EQ(next(), std::pair(uint64_t{2}, uint64_t{102}));
  EXPECT_EQ(next(), std::pair(uint64_t{3}, uint64_t{101}));
  EXPECT_EQ(next(), std::pair(uint64_t{1}, uint64_t{102}));
  failed_ = {{NodeKey(2), kNow + absl::Seconds(1)}};
  EXPECT_EQ(next().first, 3u);
  EXPECT_EQ(next().first, 1u);
}

TEST_F(PoliciesTest, RandomUsesAllNodesAlike) {
  Join(4, 0);
  const auto placer = With(PlacementPolicy::kRandom);
  std::map<NodeKey, int> placed;
  for (int i = 0; i < 1000; ++i) ++placed[Place(*placer).decode];
  ASSERT_EQ(placed.size(), 4u);
  for (const auto& [node, count] : placed) EXPECT_GT(count, 200) << node.value();
}

TEST_F(PoliciesTest, LeastLoadedIgnoresPrefixes) {
  Join(3, 3);
  index_.Store(fleet_.Find(NodeKey(1))->slot, HashesOf(Tokens(40)));
  index_.Store(fleet_.Find(NodeKey(101))->slot, HashesOf(Tokens(40)));
  for (const uint64_t key : {1, 2}) fleet_.DecodePlaced(NodeKey(key), 1);
  for (const uint64_t key : {101, 103}) fleet_.PrefillPlaced(NodeKey(key), 10, 10);
  const auto placer = With(PlacementPolicy::kLeastLoaded);
  EXPECT_EQ(Place(*placer).decode, NodeKey(3));
  EXPECT_EQ(Place(*placer).prefill, NodeKey(102));
}

TEST_F(PoliciesTest, PrefixOnlyIgnoresLoadAndIsRandomWithoutAPrefix) {
  Join(3, 3);
  const auto hashes = HashesOf(Tokens(40));
  index_.Store(fleet_.Find(NodeKey(2))->slot, absl::MakeConstSpan(hashes).first(3));
  index_.Store(fleet_.Find(NodeKey(3))->slot, absl::MakeConstSpan(hashes).first(2));
  for (int i = 0; i < 15; ++i) fleet_.DecodePlaced(NodeKey(2), 1);
  const auto placer = With(PlacementPolicy::kPrefixOnly);
  std::set<NodeKey> prefills, others;
  for (int i = 0; i < 100; ++i) {
    const Placement placed = Place(*placer);
    EXPECT_EQ(placed.decode, NodeKey(2));
    EXPECT_EQ(placed.decode_cached_tokens, 12);
    prefills.insert(*placed.prefill);
    others.insert(Place(*placer, 500).decode);
  }
  EXPECT_EQ(prefills.size(), 3u);
  EXPECT_EQ(others.size(), 3u);
}

TEST_F(PoliciesTest, ConsistentHashMovesOnlyThePromptsOfANodeThatLeaves) {
  Join(10, 0);
  const auto placer = With(PlacementPolicy::kConsistentHash);
  std::map<TokenId, NodeKey> before;
  std::map<NodeKey, int> share;
  for (TokenId first = 1; first <= 900; ++first) {
    before[first] = Place(*placer, first).decode;
    ++share[before[first]];
    EXPECT_EQ(Place(*placer, first).decode, before[first]);
  }
  ASSERT_EQ(share.size(), 10u);
  for (const auto& [node, count] : share) EXPECT_GT(count, 45) << node.value();
  index_.DropNode(fleet_.Find(NodeKey(4))->slot);
  fleet_.Remove(NodeKey(4));
  for (const auto& [first, node] : before) {
    const NodeKey after = Place(*placer, first).decode;
    EXPECT_EQ(after == node, node != NodeKey(4)) << first;
  }
}

// As for the default policy: no node that drains, is full, is avoided, or whose KV transfers fail.
TEST_F(PoliciesTest, AllKeepTheFilters) {
  Join(3, 2);
  fleet_.SetDraining(*fleet_.Find(NodeKey(1)));
  for (int i = 0; i < 16; ++i) fleet_.DecodePlaced(NodeKey(2), 0);
  for (int i = 0; i < 2; ++i) fleet_.KvTransferFailed(NodeKey(101), NodeKey(3), kNow);
  for (const auto& [name, policy] : kPlacementPolicies) {
    SCOPED_TRACE(name);
    const auto placer = With(policy);
    for (int i = 0; i < 20; ++i) {
      const Placement placed = Place(*placer, 1 + i);
      EXPECT_EQ(placed.decode, NodeKey(3));
      EXPECT_EQ(placed.prefill, NodeKey(102));
      EXPECT_EQ(placer->PlacePrefill({40, 60, {}, kNow, &failed_}, NodeKey(3))->node, NodeKey(102));
    }
    failed_ = {{NodeKey(3), kNow + absl::Seconds(1)}};
    Placement placement;
    EXPECT_EQ(placer->Place({40, 60, {}, kNow, &failed_}, placement), PlacementFailure::kNoRoom);
    EXPECT_EQ(placer->Place({40, 401, {}, kNow, &failed_}, placement),
              PlacementFailure::kNeverFits);
    failed_.clear();
  }
}

}  // namespace
}  // namespace tandem::router
