// Goal: one placement looks at as many nodes in a fleet of 1,000 as in one of 100, and at no more
// than its bound, whether all nodes have room, most are passed over, or many hold the prompt.
// Counts take the place of a clock.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/placement/pair_placement.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);
constexpr int kPrompt = 100;

int looks = 0;  // since a test set it to 0
bool Counted(const LegNeeds& /*needs*/, const Candidate& /*candidate*/) {
  ++looks;
  return true;
}
// One node in 20 of each role passes.
bool CountedAndMostlyRefused(const LegNeeds& /*needs*/, const Candidate& candidate) {
  ++looks;
  return candidate.node->slot / 2 % 20 == 0;  // roles alternate
}

class LookedAt {
 public:
  // Half of the nodes prefill. Those of the first `holders` slots hold the prompt.
  explicit LookedAt(int nodes, int holders = 0) : hashes_(HashesOf(Tokens(kPrompt))) {
    fleet_.SetNow(kNow);
    for (int i = 0; i < nodes; ++i) {
      const bool prefills = i % 2 == 0;
      const v1::NodeRole role = prefills ? v1::NODE_ROLE_PREFILL : v1::NODE_ROLE_DECODE;
      Node& node = fleet_.Join(NodeKey(1 + i), TestRegistration(absl::StrCat("n", i), role), kNow);
      index_.AddNode(node.slot, node.group(), 1000);
      v1::NodeLoad load;
      load.set_blocks_free(100);
      fleet_.OnLoad(node, load);
      if (i < holders) index_.Store(node.slot, hashes_);
    }
  }
  // Nodes that the finder looks at for one leg, with this filter.
  int ForALeg(v1::NodeRole role, Filter filter) {
    LegNeeds needs;
    needs.role = role;
    needs.prompt_tokens = kPrompt;
    needs.tokens_total = kPrompt + 20;
    needs.now = kNow;
    const auto holders = index_.DeepestHolders(hashes_, CandidateFinder::kHolders, 0);
    looks = 0;
    const LegCriteria criteria = {{filter}, {}};
    const auto found =
        CandidateFinder(fleet_, index_).Find(criteria, needs, hashes_, holders[GroupOf(role)]);
    EXPECT_FALSE(found.empty());
    return looks;
  }
  // Nodes of both roles that one decision weighs, and one of each is chosen.
  int WeighedBy(PlacementPolicy policy) {
    PairPlacement placement(
        {.local_prefill_tokens_max = 8, .fetch_tokens_min = 8, .policy = policy, .explains = true},
        fleet_, index_, random_);
    const PlacementRequest request{kPrompt, kPrompt + 20, hashes_, kNow, nullptr};
    Placement placed;
    EXPECT_EQ(placement.Place(request, placed), std::nullopt);
    return placed.decision->decode_nodes_size() + placed.decision->prefill_nodes_size();
  }

 private:
  FirstOfEqual random_;
  Fleet fleet_{TestModel(), {2000}, random_};
  PrefixIndex index_{{.entries_max = 100'000}};
  const std::vector<kv::BlockHash> hashes_;
};

TEST(NodesLookedAt, AsManyForALegInALargeFleetAsInASmallOne) {
  constexpr auto kBound =
      static_cast<int>(CandidateFinder::kHolders + CandidateFinder::kVisitedMax);
  for (const int holders : {0, 4, 100})
    for (const v1::NodeRole role : {v1::NODE_ROLE_PREFILL, v1::NODE_ROLE_DECODE})
      for (const Filter filter : {&Counted, &CountedAndMostlyRefused}) {
        SCOPED_TRACE(absl::StrCat(holders, " holders, role ", role, ", ",
                                  filter == &Counted ? "all pass" : "one in 20 passes"));
        const int in_small = LookedAt(100, holders).ForALeg(role, filter);
        const int in_large = LookedAt(1000, holders).ForALeg(role, filter);
        EXPECT_EQ(in_small, in_large);
        EXPECT_GE(in_small, static_cast<int>(CandidateFinder::kLeastLoaded));
        EXPECT_LE(in_small, kBound);
      }
}

TEST(NodesLookedAt, AsManyAreWeighedInALargeFleetAsInASmallOne) {
  constexpr auto kBound =
      static_cast<int>(2 * (CandidateFinder::kHolders + CandidateFinder::kLeastLoaded));
  for (const int holders : {0, 4, 100})
    for (const PlacementPolicy policy : {PlacementPolicy::kCost, PlacementPolicy::kAffinity}) {
      SCOPED_TRACE(absl::StrCat(holders, " holders, policy ", NameOf(policy)));
      const int in_small = LookedAt(100, holders).WeighedBy(policy);
      const int in_large = LookedAt(1000, holders).WeighedBy(policy);
      EXPECT_EQ(in_small, in_large);
      EXPECT_GE(in_small, 2);
      EXPECT_LE(in_small, kBound);
    }
}

}  // namespace
}  // namespace tandem::router
