// Goal: the node whose room is kept for a sequence is the one that a look at all nodes would find,
// through joins, losses, drains, loans and loads; and finding it looks at few nodes in a fleet of
// any size. Counts take the place of a clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "router/placement/pair_placement.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);
constexpr int kNodesMax = 40;

// A fleet to which random things happen.
class RandomFleet {
 public:
  explicit RandomFleet(unsigned seed) : random_(seed) { fleet_.SetNow(kNow); }

  void Change() {
    const size_t nodes = keys_.size();
    const unsigned what = random_() % 16;
    if (nodes == 0 || (what < 2 && nodes < kNodesMax)) return Join();
    const NodeKey key = keys_[random_() % nodes];
    Node& node = *fleet_.Find(key);
    const auto blocks = static_cast<int64_t>(random_() % 4);
    if (what == 2) {
      fleet_.Remove(key);
      keys_.erase(std::find(keys_.begin(), keys_.end(), key));
    } else if (what == 3) {
      fleet_.SetDraining(node);
    } else if (what < 6) {
      fleet_.DecodePlaced(key, blocks);
    } else if (what < 8) {
      fleet_.DecodeReserved(key, blocks);
    } else if (what < 10) {
      fleet_.DecodeEnded(key, blocks);
    } else {
      Report(node);
    }
  }

  void ExpectTheChoiceOfALookAtAll() {
    std::vector<NodeKey> kept;
    for (const NodeKey key : keys_)
      if (random_() % 4 == 0) kept.push_back(key);
    PlacementRequest request;
    request.tokens_total = static_cast<int64_t>(random_() % 450);
    request.now = kNow;
    request.kept = random_() % 4 == 0 ? nullptr : &kept;
    const Node* best = nullptr;
    int64_t capacity = 0;
    for (const Node* node : fleet_.nodes()) {  // in order of node id
      if (node->role != v1::NODE_ROLE_DECODE || node->draining) continue;
      capacity = std::max(capacity, node->capacity_tokens());
      if (node->capacity_tokens() < request.tokens_total) continue;
      if (request.kept != nullptr && std::find(kept.begin(), kept.end(), node->key) != kept.end())
        continue;
      if (best == nullptr || node->blocks_available() > best->blocks_available()) best = node;
    }
    const auto found = placement_.NodeToKeep(request);
    EXPECT_EQ(fleet_.order().decode_capacity_tokens(), capacity);
    ASSERT_EQ(found.has_value(), best != nullptr);
    if (best == nullptr) return;
    EXPECT_EQ(fleet_.Find(*found)->id, best->id);
    ++found_;
  }
  int found() const { return found_; }

 private:
  void Join() {
    // Node ids come in another order than slots.
    const v1::NodeRole role = random_() % 4 == 0 ? v1::NODE_ROLE_PREFILL : v1::NODE_ROLE_DECODE;
    v1::Registration registration = TestRegistration(absl::StrCat("n", random_()), role);
    registration.set_num_blocks(20 + 10 * static_cast<int64_t>(random_() % 9));
    if (random_() % 8 == 0) {
      registration.set_lending_address("unix:address tcp:address");
      registration.set_lend_blocks_max(static_cast<int64_t>(random_() % 20));
      registration.set_lending_unit_tokens(16);
    }
    const NodeKey key(++last_key_);
    if (!fleet_.CheckJoin(key, registration).ok()) return;
    Report(fleet_.Join(key, registration, kNow));
    keys_.push_back(key);
  }
  // Of a full fleet, many nodes have as much room.
  void Report(Node& node) {
    v1::NodeLoad load;
    load.set_blocks_free(static_cast<int64_t>(random_() % 3));
    load.set_blocks_cached(static_cast<int64_t>(random_() % 3));
    load.set_sequences_running(static_cast<int64_t>(random_() % 20));
    fleet_.OnLoad(node, load);
  }

  std::mt19937 random_;
  FirstOfEqual ties_;
  Fleet fleet_{TestModel(), {kNodesMax}, ties_};
  PrefixIndex index_{{.entries_max = 1000}};
  PairPlacement placement_{{}, fleet_, index_, ties_};
  // Bound: kNodesMax.
  std::vector<NodeKey> keys_;
  uint64_t last_key_ = 0;
  int found_ = 0;
};

TEST(NodeToKeep, IsTheOneThatALookAtAllNodesFinds) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  RandomFleet fleet(seed);
  for (int i = 0; i < 20000; ++i) {
    fleet.Change();
    fleet.ExpectTheChoiceOfALookAtAll();
    if (::testing::Test::HasFailure()) FAIL() << "after " << i << " changes";
  }
  EXPECT_GT(fleet.found(), 10000);
}

// Nodes looked at to keep the last of `kept` + 1 nodes, where each node's pool is larger than the
// last one's or, of `equal` ones, all are alike.
int LooksIn(int nodes, int kept, bool equal) {
  FirstOfEqual random;
  Fleet fleet(TestModel(), {.nodes_max = nodes}, random);
  for (int i = 0; i < nodes; ++i) {
    v1::Registration registration = TestRegistration(absl::StrCat("n", i), v1::NODE_ROLE_DECODE);
    registration.set_num_blocks(equal ? 50 : 50 + i * 50 / nodes);
    fleet.Join(NodeKey(1 + i), registration, kNow);
  }
  std::vector<const Node*> taken;
  int looks = 0;
  for (int i = 0; i <= kept; ++i) {
    looks = 0;
    const Node* node = fleet.order().DecodeNodeWithMostRoom(200, [&](const Node* other) {
      ++looks;
      return std::find(taken.begin(), taken.end(), other) != taken.end();
    });
    if (node == nullptr) ADD_FAILURE() << "no node";
    taken.push_back(node);
  }
  return looks;
}

TEST(NodeToKeep, LooksAtFewNodesOfAnyFleet) {
  constexpr int kDepth = 32;  // of the tree; 13 levels are the least for 4,096 nodes
  for (const bool equal : {true, false}) {
    EXPECT_LE(LooksIn(4096, 0, equal), 2 * kDepth);
    EXPECT_LE(LooksIn(4096, 16, equal), 17 * 2 * kDepth);
    EXPECT_LE(LooksIn(4096, 16, equal), 2 * LooksIn(100, 16, equal) + 2 * kDepth);
  }
}

}  // namespace
}  // namespace tandem::router
