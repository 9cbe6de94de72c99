// Goal: each filter, scorer and picker decides as its table says, and pairs are chosen together.
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "router/placement/accepts_work.h"
#include "router/placement/could_ever_fit.h"
#include "router/placement/free_blocks_scorer.h"
#include "router/placement/has_free_room.h"
#include "router/placement/not_recently_failed.h"
#include "router/placement/pair_placement.h"
#include "router/placement/picker.h"
#include "router/placement/prefix_affinity_scorer.h"
#include "router/placement/queue_depth_scorer.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);

// A decode node of 100 blocks of 4 tokens, 16 sequences at most.
Node TestNode() {
  Node node;
  node.key = NodeKey(7);
  node.role = v1::NODE_ROLE_DECODE;
  node.context_tokens = 300;
  node.block_tokens = 4;
  node.num_blocks = 100;
  node.max_sequences = 16;
  node.load.set_blocks_free(100);
  return node;
}

LegNeeds Needs(int64_t prompt, int64_t total) {
  LegNeeds needs;
  needs.prompt_tokens = prompt;
  needs.tokens_total = total;
  needs.now = kNow;
  return needs;
}

TEST(AcceptsWork, Table) {
  Node node = TestNode();
  LegNeeds needs = Needs(10, 20);
  EXPECT_TRUE(AcceptsWork(needs, {&node, 0}));
  needs.role = v1::NODE_ROLE_PREFILL;
  EXPECT_FALSE(AcceptsWork(needs, {&node, 0}));
  node.role = v1::NODE_ROLE_PREFILL;
  EXPECT_TRUE(AcceptsWork(needs, {&node, 0}));
  node.draining = true;
  EXPECT_FALSE(AcceptsWork(needs, {&node, 0}));
}

TEST(CapacityFilter, Table) {
  Node node = TestNode();
  EXPECT_TRUE(CouldEverFit(Needs(10, 300), {&node, 0}));
  EXPECT_FALSE(CouldEverFit(Needs(10, 301), {&node, 0}));  // the context
  node.context_tokens = 1000;
  EXPECT_TRUE(CouldEverFit(Needs(10, 400), {&node, 0}));
  EXPECT_FALSE(CouldEverFit(Needs(10, 401), {&node, 0}));  // the pool
  node.load.set_blocks_free(0);
  EXPECT_TRUE(CouldEverFit(Needs(10, 400), {&node, 0}));  // full now is not never
}

TEST(FreeRoomFilter, Table) {
  struct Case {
    int64_t free, cached, unconfirmed, prompt, prefix;
    int64_t running;
    bool fits;
  };
  for (const Case& c : std::vector<Case>{
           {3, 0, 0, 11, 0, 0, true},   // 11 + 1 tokens are 3 blocks
           {3, 0, 0, 12, 0, 0, false},  // 12 + 1 are 4
           {1, 2, 0, 11, 0, 0, true},   // cached blocks can be reclaimed
           {3, 0, 1, 11, 0, 0, false},  // one is promised to another leg
           {3, 0, 0, 19, 8, 0, true},   // 5 blocks, 2 of them here already
           {3, 0, 0, 11, 0, 15, true},
           {3, 0, 0, 11, 0, 16, false},  // no sequence slot
       }) {
    Node node = TestNode();
    node.load.set_blocks_free(c.free);
    node.load.set_blocks_cached(c.cached);
    node.load.set_sequences_running(c.running);
    node.blocks_unconfirmed = c.unconfirmed;
    EXPECT_EQ(HasFreeRoom(Needs(c.prompt, c.prompt + 1), {&node, c.prefix}), c.fits)
        << c.free << " " << c.cached << " " << c.prompt << " " << c.prefix << " " << c.running;
  }
}

TEST(RecentFailureFilter, Table) {
  const Node node = TestNode();
  LegNeeds needs = Needs(10, 20);
  EXPECT_TRUE(NotRecentlyFailed(needs, {&node, 0}));
  std::vector<std::pair<NodeKey, absl::Time>> failed = {{NodeKey(3), kNow + absl::Seconds(9)},
                                                        {NodeKey(7), kNow + absl::Seconds(1)}};
  needs.failed = &failed;
  EXPECT_FALSE(NotRecentlyFailed(needs, {&node, 0}));
  needs.now = kNow + absl::Seconds(1);
  EXPECT_TRUE(NotRecentlyFailed(needs, {&node, 0}));
}

TEST(Scorers, Table) {
  Node node = TestNode();
  EXPECT_EQ(PrefixAffinityScorer(Needs(10, 20), {&node, 0}), 0.0);
  EXPECT_EQ(PrefixAffinityScorer(Needs(10, 20), {&node, 5}), 0.5);
  EXPECT_EQ(PrefixAffinityScorer(Needs(10, 20), {&node, 99}), 1.0);
  EXPECT_EQ(PrefixAffinityScorer(Needs(0, 20), {&node, 0}), 0.0);

  EXPECT_EQ(FreeBlocksScorer(Needs(10, 20), {&node, 0}), 1.0);
  node.load.set_blocks_free(20);
  node.load.set_blocks_cached(10);
  EXPECT_EQ(FreeBlocksScorer(Needs(10, 20), {&node, 0}), 0.3);
  node.blocks_unconfirmed = 50;
  EXPECT_EQ(FreeBlocksScorer(Needs(10, 20), {&node, 0}), 0.0);

  EXPECT_EQ(QueueDepthScorer(Needs(10, 20), {&node, 0}), 1.0);
  node.load.set_sequences_waiting(4);
  EXPECT_EQ(QueueDepthScorer(Needs(10, 20), {&node, 0}), 0.75);
  node.load.set_sequences_waiting(99);
  EXPECT_EQ(QueueDepthScorer(Needs(10, 20), {&node, 0}), 0.0);
  node.max_sequences = 0;
  node.load.set_sequences_waiting(16);
  EXPECT_EQ(QueueDepthScorer(Needs(10, 20), {&node, 0}), 0.5);

  const LegNeeds prefill = Needs(10, 10);
  node.role = v1::NODE_ROLE_PREFILL;
  EXPECT_EQ(QueueDepthScorer(prefill, {&node, 0}), 1.0);
  node.load.set_prefill_tokens_waiting(2048);
  EXPECT_EQ(QueueDepthScorer(prefill, {&node, 0}), 0.5);
  node.prefill_tokens_ahead = 6144;
  EXPECT_EQ(QueueDepthScorer(prefill, {&node, 0}), 0.25);
}

TEST(PickBest, DrawsAmongTheBestOnly) {
  auto random = NewSeededRandom(3);
  EXPECT_EQ(PickBest({0.25}, *random), 0u);
  std::vector<int> picked(4);
  for (int i = 0; i < 1000; ++i) ++picked[PickBest({0.25, 0.75, 0.5, 0.7495}, *random)];
  EXPECT_EQ(picked[0] + picked[2], 0);
  EXPECT_GT(picked[1], 400);
  EXPECT_GT(picked[3], 400) << "within the error of the best score";
}

v1::NodeLoad LoadOf(int64_t blocks_free) {
  v1::NodeLoad load;
  load.set_blocks_total(100);
  load.set_blocks_free(blocks_free);
  return load;
}

class PairPlacementTest : public ::testing::Test {
 protected:
  PairPlacementTest() { fleet_.SetNow(kNow); }

  Node& Add(uint64_t key, const std::string& id, v1::NodeRole role) {
    Node& node = fleet_.Join(NodeKey(key), TestRegistration(id, role), kNow);
    index_.AddNode(node.slot, node.group(), 1000);
    return node;
  }
  std::optional<PlacementFailure> Place(int prompt, int total) {
    return Place(prompt, total, random_);
  }
  std::optional<PlacementFailure> Place(int prompt, int total, Random& random) {
    const auto tokens = Tokens(prompt);
    hashes_ = HashesOf(tokens);
    return PairPlacement({.local_prefill_tokens_max = 8,
                          .policy = policy_,
                          .prefill_wait_max = prefill_wait_max_},
                         fleet_, index_, random)
        .Place({prompt, total, hashes_, kNow, &failed_}, placement_);
  }
  PlacementPolicy policy_ = PlacementPolicy::kAffinity;
  absl::Duration prefill_wait_max_;
  FirstOfEqual random_;
  Fleet fleet_{TestModel(), {2000}, random_};
  PrefixIndex index_{{.entries_max = 100000}};
  std::vector<kv::BlockHash> hashes_;
  std::vector<std::pair<NodeKey, absl::Time>> failed_;
  Placement placement_;
};

TEST_F(PairPlacementTest, SaysWhyNot) {
  EXPECT_EQ(Place(40, 60), PlacementFailure::kNoDecodeNode);
  Add(1, "p0", v1::NODE_ROLE_PREFILL);
  EXPECT_EQ(Place(40, 60), PlacementFailure::kNoDecodeNode);
  Node& decode = Add(2, "d0", v1::NODE_ROLE_DECODE);
  EXPECT_EQ(Place(40, 60), std::nullopt);
  EXPECT_EQ(Place(40, 401), PlacementFailure::kNeverFits);
  failed_ = {{NodeKey(2), kNow + absl::Seconds(1)}};
  EXPECT_EQ(Place(40, 60), PlacementFailure::kNoRoom);
  failed_.clear();
  fleet_.OnLoad(decode, LoadOf(2));
  EXPECT_EQ(Place(40, 60), PlacementFailure::kNoRoom);
  fleet_.SetDraining(decode);
  EXPECT_EQ(Place(40, 60), PlacementFailure::kNoDecodeNode);
}

TEST(PredictedPrefillWait, IsWhatTheWaitingRowsCost) {
  Node node;
  node.role = v1::NODE_ROLE_PREFILL;
  node.load.set_prefill_tokens_waiting(1000);
  EXPECT_EQ(node.PredictedPrefillWait(40, {}, kNow), absl::ZeroDuration())
      << "nothing is known of its steps";
  node.step_cost =
      cost::StepProfile{.step_us = 500, .prompt_row_us = 10, .prompt_attended_us = 0.1};
  // 500 + 1000 rows * 10, and each attends to 20 tokens.
  EXPECT_EQ(node.PredictedPrefillWait(40, {}, kNow), absl::Microseconds(500 + 10'000 + 2'000));
  node.load.set_prefill_tokens_waiting(0);
  EXPECT_EQ(node.PredictedPrefillWait(40, {}, kNow), absl::ZeroDuration());
}

TEST_F(PairPlacementTest, APromptWaitsWhileEveryPrefillNodeBeginsTooLate) {
  for (const auto& [name, policy] : kPlacementPolicies) {
    SCOPED_TRACE(std::string(name));
    // There a decode node may compute the prompt (CostPlacementTest).
    if (policy == PlacementPolicy::kCost) continue;
    policy_ = policy;
    for (const uint64_t key : {1, 2, 3}) {
      if (const Node* node = fleet_.Find(NodeKey(key))) index_.DropNode(node->slot);
      fleet_.Remove(NodeKey(key));
    }
    prefill_wait_max_ = absl::Milliseconds(10);
    Node& decode = Add(1, "d0", v1::NODE_ROLE_DECODE);
    EXPECT_EQ(Place(40, 60), std::nullopt) << "without prefill nodes decode nodes compute prompts";
    for (const int i : {2, 3}) {
      Node& prefill = Add(static_cast<uint64_t>(i), absl::StrCat("p", i), v1::NODE_ROLE_PREFILL);
      prefill.step_cost = cost::StepProfile{.prompt_row_us = 10};
      fleet_.PrefillPlaced(prefill.key, 1001, 1001);  // 10.01 ms
    }
    EXPECT_EQ(Place(40, 60), PlacementFailure::kPrefillBusy);
    EXPECT_EQ(Place(8, 60), std::nullopt) << "a decode node computes so few tokens itself";
    const auto hashes = HashesOf(Tokens(40));
    index_.Store(decode.slot, hashes);
    EXPECT_EQ(Place(40, 60), std::nullopt) << "nor is much left of a prompt that it holds";
    index_.Remove(decode.slot, hashes);
    prefill_wait_max_ = absl::ZeroDuration();
    EXPECT_EQ(Place(40, 60), std::nullopt) << "no limit";
    prefill_wait_max_ = absl::Microseconds(10'010);
    EXPECT_EQ(Place(40, 60), std::nullopt) << "at the limit";
    EXPECT_TRUE(placement_.prefill.has_value());
  }
}

TEST_F(PairPlacementTest, ABusyHolderOfAPrefixGivesWay) {
  prefill_wait_max_ = absl::Milliseconds(10);
  Add(1, "d0", v1::NODE_ROLE_DECODE);
  Node& holder = Add(2, "p0", v1::NODE_ROLE_PREFILL);
  Add(3, "p1", v1::NODE_ROLE_PREFILL);
  index_.Store(holder.slot, HashesOf(Tokens(40)));
  holder.step_cost = cost::StepProfile{.prompt_row_us = 10};
  ASSERT_EQ(Place(40, 60), std::nullopt);
  EXPECT_EQ(placement_.prefill, NodeKey(2));
  fleet_.PrefillPlaced(holder.key, 1001, 1001);
  ASSERT_EQ(Place(40, 60), std::nullopt);
  EXPECT_EQ(placement_.prefill, NodeKey(3));
}

TEST_F(PairPlacementTest, TiesAreBrokenAtRandomAndInterleavedModeHasNoPrefillNode) {
  Add(1, "d1", v1::NODE_ROLE_DECODE);
  Add(2, "d0", v1::NODE_ROLE_DECODE);
  std::map<NodeKey, int> placed;
  const auto random = NewSeededRandom(1);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(Place(40, 60, *random), std::nullopt);
    ++placed[placement_.decode];
    EXPECT_FALSE(placement_.prefill.has_value());
  }
  EXPECT_GT(placed[NodeKey(1)], 400);
  EXPECT_GT(placed[NodeKey(2)], 400);
}

TEST_F(PairPlacementTest, PrefixesAndLoadDecideBothLegs) {
  Add(1, "d0", v1::NODE_ROLE_DECODE);
  Node& d1 = Add(2, "d1", v1::NODE_ROLE_DECODE);
  Node& p0 = Add(3, "p0", v1::NODE_ROLE_PREFILL);
  Node& p1 = Add(4, "p1", v1::NODE_ROLE_PREFILL);
  const auto hashes = HashesOf(Tokens(40));
  index_.Store(d1.slot, absl::MakeConstSpan(hashes).subspan(0, 5));
  index_.Store(p1.slot, hashes);
  ASSERT_EQ(Place(40, 60), std::nullopt);
  EXPECT_EQ(placement_.decode, NodeKey(2));
  EXPECT_EQ(placement_.decode_cached_tokens, 20);
  EXPECT_EQ(placement_.prefill, NodeKey(4));
  EXPECT_EQ(placement_.prefill_cached_tokens, 39);  // the last token is always computed
  fleet_.PrefillPlaced(p1.key, 1000, 1000);
  for (int i = 0; i < 15; ++i) fleet_.DecodePlaced(d1.key, 0);
  ASSERT_EQ(Place(40, 60), std::nullopt);
  EXPECT_EQ(placement_.decode, NodeKey(1));
  EXPECT_EQ(placement_.prefill, NodeKey(4));  // its prefix still outweighs an empty queue
  index_.Remove(p1.slot, hashes);
  ASSERT_EQ(Place(40, 60), std::nullopt);
  EXPECT_EQ(placement_.prefill, NodeKey(3));
  fleet_.SetDraining(p0);
  failed_ = {{NodeKey(4), kNow + absl::Seconds(1)}};
  ASSERT_EQ(Place(40, 60), std::nullopt);
  EXPECT_FALSE(placement_.prefill.has_value());
}

TEST_F(PairPlacementTest, APairThatSharesMemoryWinsATie) {
  Add(1, "d0", v1::NODE_ROLE_DECODE);
  Add(2, "d1", v1::NODE_ROLE_DECODE).host = "here";
  Add(3, "p0", v1::NODE_ROLE_PREFILL);
  Add(4, "p1", v1::NODE_ROLE_PREFILL).host = "here";
  ASSERT_EQ(Place(40, 60), std::nullopt);
  EXPECT_EQ(placement_.decode, NodeKey(2));
  EXPECT_EQ(placement_.prefill, NodeKey(4));
}

// The nodes that placement looks at first are all full, too small, avoided or kept; one that it
// would reach last has room.
TEST_F(PairPlacementTest, FindsTheOneNodeWithRoomAmongAThousand) {
  std::vector<NodeKey> kept;
  for (uint64_t key = 1; key <= 1000; ++key) {
    Node& node = Add(key, absl::StrCat("d", key), v1::NODE_ROLE_DECODE);
    if (key % 3 == 0) failed_.push_back({node.key, kNow + absl::Seconds(1)});
    if (key % 3 == 1) kept.push_back(node.key);
    if (key % 3 == 2) fleet_.OnLoad(node, LoadOf(2));
  }
  Node& last = Add(1001, "last", v1::NODE_ROLE_DECODE);
  fleet_.OnLoad(last, LoadOf(11));
  for (int i = 0; i < 15; ++i) fleet_.DecodePlaced(last.key, 0);
  PairPlacement placer({.local_prefill_tokens_max = 8}, fleet_, index_, random_);
  PlacementRequest request{40, 60, {}, kNow, &failed_};
  request.kept = &kept;
  ASSERT_EQ(placer.Place(request, placement_), std::nullopt);
  EXPECT_EQ(placement_.decode, last.key);
  fleet_.DecodePlaced(last.key, 1);
  EXPECT_EQ(placer.Place(request, placement_), PlacementFailure::kNoRoom);
}

// A thousand requests between two load reports do not all go to one node.
TEST_F(PairPlacementTest, EqualNodesShareTheRequestsBetweenTwoReports) {
  const auto random = NewSeededRandom(2);
  for (uint64_t key = 1; key <= 100; ++key) Add(key, absl::StrCat("d", key), v1::NODE_ROLE_DECODE);
  std::map<NodeKey, int> placed;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(Place(40, 60, *random), std::nullopt);
    fleet_.DecodePlaced(placement_.decode, 0);
    ++placed[placement_.decode];
  }
  EXPECT_EQ(placed.size(), 100u);
  for (const auto& [node, count] : placed) EXPECT_LE(count, 11);
}

TEST_F(PairPlacementTest, AReplacementPrefillNodeIsNotTheOneThatFailed) {
  Add(1, "d0", v1::NODE_ROLE_DECODE);
  Add(3, "p0", v1::NODE_ROLE_PREFILL);
  Add(4, "p1", v1::NODE_ROLE_PREFILL);
  failed_ = {{NodeKey(3), kNow + absl::Seconds(1)}};
  PairPlacement placer({.local_prefill_tokens_max = 8}, fleet_, index_, random_);
  const PlacementRequest request{40, 60, {}, kNow, &failed_};
  EXPECT_EQ(placer.PlacePrefill(request, NodeKey(1))->node, NodeKey(4));
  failed_.push_back({NodeKey(4), kNow + absl::Seconds(1)});
  EXPECT_FALSE(placer.PlacePrefill(request, NodeKey(1)).has_value());
  EXPECT_FALSE(placer.PlacePrefill(request, NodeKey(99)).has_value());
}

TEST_F(PairPlacementTest, APairWhoseKvTransfersFailIsInBackoffForAWhile) {
  Add(1, "d0", v1::NODE_ROLE_DECODE);
  Add(3, "p0", v1::NODE_ROLE_PREFILL);
  Add(4, "p1", v1::NODE_ROLE_PREFILL);
  PairPlacement placer({.local_prefill_tokens_max = 8}, fleet_, index_, random_);
  const auto prefill_at = [&](absl::Time now) {
    Placement placement;
    EXPECT_FALSE(placer.Place({40, 60, {}, now, &failed_}, placement).has_value());
    const auto beside = placer.PlacePrefill({40, 60, {}, now, &failed_}, NodeKey(1));
    EXPECT_EQ(placement.prefill.has_value(), beside.has_value());
    return placement.prefill.value_or(NodeKey(0));
  };
  fleet_.KvTransferFailed(NodeKey(3), NodeKey(1), kNow);
  EXPECT_EQ(prefill_at(kNow), NodeKey(3)) << "one failure may be bad luck";
  fleet_.KvTransferFailed(NodeKey(3), NodeKey(1), kNow);
  EXPECT_EQ(prefill_at(kNow), NodeKey(4));
  EXPECT_EQ(prefill_at(kNow + absl::Seconds(2)), NodeKey(3)) << "it is tried again";
  // It fails again: longer. The other pair as well: the decode node computes.
  for (int i = 0; i < 2; ++i) fleet_.KvTransferFailed(NodeKey(4), NodeKey(1), kNow);
  fleet_.KvTransferFailed(NodeKey(3), NodeKey(1), kNow);
  EXPECT_EQ(prefill_at(kNow), NodeKey(0));
  EXPECT_EQ(prefill_at(kNow + absl::Milliseconds(1500)), NodeKey(4));
  v1::Installed installed;
  fleet_.KvTransferDone(NodeKey(3), NodeKey(1), installed);
  EXPECT_EQ(prefill_at(kNow), NodeKey(3)) << "a KV transfer succeeded";
  // A node that joins anew begins anew.
  for (int i = 0; i < 2; ++i) fleet_.KvTransferFailed(NodeKey(3), NodeKey(1), kNow);
  index_.DropNode(fleet_.Find(NodeKey(3))->slot);
  fleet_.Remove(NodeKey(3));
  Add(5, "p0", v1::NODE_ROLE_PREFILL);
  EXPECT_EQ(prefill_at(kNow), NodeKey(5));
}

}  // namespace
}  // namespace tandem::router
