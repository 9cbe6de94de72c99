// Goal: the prefix index finds the nodes with the longest prefixes as a plain map of sets would,
// never names a node for a block it does not hold, stays within its bounds, and forgets a node
// entirely.
#include "router/fleet/prefix_index.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "common/runtime/random.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {
namespace {

using Runs = std::map<NodeSlot, int>;

Runs Found(const PrefixIndex& index, const std::vector<kv::BlockHash>& hashes) {
  Runs runs;
  for (const auto& matches : index.DeepestHolders(hashes, 1000, 0))
    for (const PrefixIndex::Match& match : matches) runs[match.slot] = match.blocks;
  return runs;
}

void AddDecodeNodes(PrefixIndex& index, int count, int64_t entries_max = 1000) {
  for (int slot = 0; slot < count; ++slot)
    index.AddNode(static_cast<NodeSlot>(slot), kDecodeNodes, entries_max);
}

TEST(PrefixIndex, FindsEachNodesRunFromTheStart) {
  //            b0   b1   b2   b3
  //   node 0   x    x    x
  //   node 1   x         x    x      a hole ends the run
  //   node 2        x    x           without the first block nothing is of use
  const auto b = HashesOf(Tokens(16));
  PrefixIndex index({.entries_max = 100});
  AddDecodeNodes(index, 3);
  index.Store(0, {b[0], b[1], b[2]});
  index.Store(1, {b[0], b[2], b[3]});
  index.Store(2, {b[1], b[2]});
  EXPECT_EQ(index.RunOn(0, b), 3);
  EXPECT_EQ(index.RunOn(1, b), 1);
  EXPECT_EQ(index.RunOn(2, b), 0);
  EXPECT_EQ(Found(index, b).count(2), 0u);
  EXPECT_EQ(index.entries(), 8);
  index.Remove(0, {b[1]});
  EXPECT_EQ(index.RunOn(0, b), 1);
  EXPECT_TRUE(Found(index, {}).empty());
}

TEST(PrefixIndex, EventsThatComeTwiceOrOutOfOrderDoNoHarm) {
  const auto b = HashesOf(Tokens(16));
  PrefixIndex index({.entries_max = 100});
  AddDecodeNodes(index, 2);
  index.Remove(0, {b[0], b[1]});  // before anything was stored
  EXPECT_EQ(index.entries(), 0);
  for (int times = 0; times < 3; ++times) index.Store(0, {b[0], b[1], b[2]});
  index.Store(0, {b[2], b[1], b[0]});  // a child before its parent
  EXPECT_EQ(index.entries(), 3);
  EXPECT_EQ(index.RunOn(0, b), 3);
  for (int times = 0; times < 3; ++times) index.Remove(0, {b[1]});
  index.Remove(1, {b[0]});  // another node's
  EXPECT_EQ(index.entries(), 2);
  EXPECT_EQ(index.RunOn(0, b), 1);
  index.Store(0, {b[1]});
  EXPECT_EQ(index.RunOn(0, b), 3);
  index.DropNode(0);
  EXPECT_EQ(index.entries(), 0);
  EXPECT_TRUE(Found(index, b).empty());
}

TEST(PrefixIndex, ListsTheLongestRunsOfEachGroupFirst) {
  const auto b = HashesOf(Tokens(40));
  PrefixIndex index({.entries_max = 1000});
  for (NodeSlot slot = 0; slot < 20; ++slot) {
    index.AddNode(slot, slot % 2 == 0 ? kPrefillNodes : kDecodeNodes, 100);
    index.Store(slot, absl::MakeConstSpan(b).first(slot / 2));  // 0 to 9 blocks
  }
  const PrefixIndex::Matches matches = index.DeepestHolders(b, 3, 0);
  ASSERT_EQ(matches[kPrefillNodes].size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(matches[kPrefillNodes][i].slot, 18 - 2 * i);
    EXPECT_EQ(matches[kDecodeNodes][i].slot, 19 - 2 * i);
    EXPECT_EQ(matches[kDecodeNodes][i].blocks, 9 - i);
  }
  index.SetGroup(19, kNoGroup);
  EXPECT_EQ(index.DeepestHolders(b, 3, 0)[kDecodeNodes][0].slot, 17);
  EXPECT_TRUE(index.HeldBy(kPrefillNodes, b[8]));
  EXPECT_FALSE(index.HeldBy(kDecodeNodes, b[8])) << "its only holder drains";
}

// A node that has lost the prompt's first block holds no run of it, however many blocks follow.
TEST(PrefixIndex, AHolderWithoutTheFirstBlockMakesNoSearchLong) {
  const auto b = HashesOf(Tokens(4 * 2000));
  ASSERT_EQ(b.size(), 2000u);
  PrefixIndex index({.entries_max = 10000});
  AddDecodeNodes(index, 2, 5000);
  index.Store(0, absl::MakeConstSpan(b).first(700));
  index.Store(1, absl::MakeConstSpan(b).subspan(1));
  const int64_t before = index.lengths_searched();
  EXPECT_EQ(Found(index, b), (Runs{{0, 700}}));
  EXPECT_LE(index.lengths_searched() - before, 32);
}

TEST(PrefixIndex, AmongEqualRunsThoseFromTheGivenSlotOnComeFirst) {
  const auto b = HashesOf(Tokens(8));
  for (const int nodes : {10, 200}) {  // single entries, a row
    PrefixIndex index({.entries_max = 1000});
    AddDecodeNodes(index, nodes);
    for (int slot = 0; slot < nodes; ++slot) index.Store(static_cast<NodeSlot>(slot), b);
    const auto matches = index.DeepestHolders(b, 3, static_cast<NodeSlot>(nodes - 2))[kDecodeNodes];
    ASSERT_EQ(matches.size(), 3u);
    EXPECT_EQ(matches[0].slot, nodes - 2);
    EXPECT_EQ(matches[1].slot, nodes - 1);
    EXPECT_EQ(matches[2].slot, 0);
  }
}

TEST(PrefixIndex, KeepsTheTierOfABlock) {
  const auto b = HashesOf(Tokens(4));
  for (const int nodes : {3, 100}) {  // single entries, a row
    PrefixIndex index({.entries_max = 1000});
    AddDecodeNodes(index, nodes);
    for (int slot = 0; slot < nodes; ++slot)
      index.Store(static_cast<NodeSlot>(slot), b, static_cast<Tier>(1 + slot % 3));
    EXPECT_EQ(index.TierOn(0, b[0]), Tier::kDevice);
    EXPECT_EQ(index.TierOn(1, b[0]), Tier::kHost);
    EXPECT_EQ(index.TierOn(2, b[0]), Tier::kDisk);
    index.Store(2, b, Tier::kDevice);
    EXPECT_EQ(index.TierOn(2, b[0]), Tier::kDevice);
    EXPECT_EQ(index.entries(), nodes);
    index.Remove(2, b);
    EXPECT_EQ(index.TierOn(2, b[0]), std::nullopt);
  }
}

TEST(PrefixIndex, ANodeCannotHoldMoreThanItsPool) {
  const auto b = HashesOf(Tokens(40));
  PrefixIndex index({.entries_max = 100});
  AddDecodeNodes(index, 1, 3);
  index.Store(0, b);
  EXPECT_EQ(index.entries(), 3);
  EXPECT_EQ(index.evicted(), 7);
  EXPECT_EQ(index.RunOn(0, b), 3);
  index.Remove(0, {b[0]});
  index.Store(0, {b[0]});
  EXPECT_EQ(index.entries(), 3);
}

TEST(PrefixIndex, AtItsBoundItForgetsWhatNoPlacementUsed) {
  const auto used = HashesOf(Tokens(40));
  PrefixIndex index({.entries_max = 100});
  AddDecodeNodes(index, 2);
  index.Store(0, used);
  int kept = 0;
  for (int chain = 0; chain < 100; ++chain) {
    index.Store(1, HashesOf(Tokens(40, 1000 * (chain + 1))));
    ASSERT_LE(index.entries(), 100);
    kept += index.RunOn(0, used) == 10 ? 1 : 0;
    index.Touch(0, used);
  }
  EXPECT_EQ(kept, 100);
  EXPECT_EQ(index.evicted(), 10 + 1000 - index.entries());
  EXPECT_EQ(index.entries(), 100);
}

// A hostile fleet could mark everything as used. Room is made all the same.
TEST(PrefixIndex, MakesRoomWhenEverythingIsUsed) {
  PrefixIndex index({.entries_max = 2000});
  AddDecodeNodes(index, 1, 100000);
  for (int chain = 0; chain < 100; ++chain) {
    const auto b = HashesOf(Tokens(400, 1000 * chain));
    index.Store(0, b);
    index.Touch(0, b);
    ASSERT_LE(index.entries(), 2000);
  }
}

// Random stores, removals and nodes that leave and join, against a plain map of sets.
class History {
 public:
  History(uint64_t seed, const PrefixIndex::Options& options, int nodes)
      : random_(NewSeededRandom(seed)), index_(options), held_(nodes) {
    for (int c = 0; c < 40; ++c) {  // chains that share prefixes
      auto tokens = Tokens(256);
      for (size_t i = 6 * c; i < tokens.size(); ++i) tokens[i] += 1000 * (c + 1);
      chains_.push_back(HashesOf(tokens));
    }
    for (int slot = 0; slot < nodes; ++slot) Join(slot);
  }

  // Changes up to 64 blocks. `closed`: nodes hold prefixes without holes.
  int64_t Step(bool closed) {
    const auto slot = static_cast<NodeSlot>(random_->Below(held_.size()));
    auto& held = held_[slot];
    const auto& chain = chains_[random_->Below(chains_.size())];
    const uint64_t action = random_->Below(1000);
    if (action == 0) {
      index_.DropNode(slot);
      held.clear();
      Join(slot);
      return 1;
    }
    const bool stores = action < 600;
    size_t from = random_->Below(chain.size()), count = chain.size() - from;
    if (stores && closed) from = 0;
    if (!closed) count = 1 + random_->Below(count);
    const auto span = absl::MakeConstSpan(chain).subspan(from, count);
    if (stores) {
      const Tier tier = kTiers[random_->Below(std::size(kTiers))];
      index_.Store(slot, span, tier);
      for (const auto& hash : span) held[hash] = tier;
      return static_cast<int64_t>(span.size());
    }
    // Where the chain branches off, the blocks behind it belong to others too.
    for (const auto& hash : span) held.erase(hash);
    index_.Remove(slot, span);
    if (closed)
      for (const auto& other : chains_) RemoveBehindAHole(slot, other);
    return static_cast<int64_t>(span.size());
  }

  void CheckExactly() {
    const auto& query = chains_[random_->Below(chains_.size())];
    Runs expected;
    for (size_t slot = 0; slot < held_.size(); ++slot) {
      const int run = Run(slot, query);
      if (run > 0) expected[static_cast<NodeSlot>(slot)] = run;
      ASSERT_EQ(index_.RunOn(static_cast<NodeSlot>(slot), query), run) << "slot " << slot;
    }
    ASSERT_EQ(Found(index_, query), expected);
  }

  // What it finds is true, if perhaps not whole: the node holds the run's two ends.
  void CheckTruth() {
    const auto& query = chains_[random_->Below(chains_.size())];
    for (const auto& [slot, blocks] : Found(index_, query)) {
      ASSERT_EQ(held_[slot].count(query[0]), 1u);
      ASSERT_EQ(held_[slot].count(query[blocks - 1]), 1u);
    }
  }

  // And that each block has the tier that was told last.
  void CheckCount() {
    size_t entries = 0;
    for (size_t slot = 0; slot < held_.size(); ++slot) {
      entries += held_[slot].size();
      for (const auto& [hash, tier] : held_[slot])
        ASSERT_EQ(index_.TierOn(static_cast<NodeSlot>(slot), hash), tier) << "slot " << slot;
    }
    ASSERT_EQ(index_.entries(), static_cast<int64_t>(entries));
  }

  void DropAll() {
    for (size_t slot = 0; slot < held_.size(); ++slot) index_.DropNode(static_cast<NodeSlot>(slot));
    ASSERT_EQ(index_.entries(), 0);
  }

  PrefixIndex& index() { return index_; }

 private:
  void Join(int slot) {
    index_.AddNode(static_cast<NodeSlot>(slot), slot % 3 == 0 ? kPrefillNodes : kDecodeNodes,
                   100000);
  }
  int Run(size_t slot, const std::vector<kv::BlockHash>& query) const {
    int run = 0;
    while (run < static_cast<int>(query.size()) && held_[slot].count(query[run]) > 0) ++run;
    return run;
  }
  void RemoveBehindAHole(NodeSlot slot, const std::vector<kv::BlockHash>& chain) {
    const auto behind = absl::MakeConstSpan(chain).subspan(Run(slot, chain));
    for (const auto& hash : behind) held_[slot].erase(hash);
    index_.Remove(slot, behind);
  }

  std::unique_ptr<Random> random_;
  PrefixIndex index_;
  std::vector<std::vector<kv::BlockHash>> chains_;
  static constexpr Tier kTiers[] = {Tier::kDevice, Tier::kHost, Tier::kDisk};
  std::vector<std::map<kv::BlockHash, Tier>> held_;
};

// 2^20 block events; TANDEM_INDEX_EVENTS=10000000 for a longer run.
int64_t EventsWanted() {
  const char* wanted = std::getenv("TANDEM_INDEX_EVENTS");
  return wanted == nullptr ? 1 << 20 : std::atoll(wanted);
}

TEST(PrefixIndex, EqualsThePlainIndexWhereNodesHoldPrefixes) {
  int64_t events = 0;
  for (uint64_t seed = 1; events < EventsWanted(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    // As many nodes as make rows of a block's holders, and single entries again.
    History history(seed, {.entries_max = 1 << 20, .seed = seed}, seed % 2 == 0 ? 12 : 130);
    for (int step = 0; step < 1500; ++step) {
      events += history.Step(/*closed=*/true);
      if (step % 10 != 0) continue;
      ASSERT_NO_FATAL_FAILURE(history.CheckExactly()) << "step " << step;
    }
    ASSERT_NO_FATAL_FAILURE(history.CheckCount());
    ASSERT_NO_FATAL_FAILURE(history.DropAll());
  }
}

TEST(PrefixIndex, FindsOnlyWhatIsThereWhereNodesHaveHoles) {
  int64_t events = 0;
  for (uint64_t seed = 1; events < EventsWanted(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    History history(seed, {.entries_max = 1 << 20, .seed = seed}, seed % 2 == 0 ? 12 : 130);
    for (int step = 0; step < 5000; ++step) {
      events += history.Step(/*closed=*/false);
      if (step % 10 != 0) continue;
      ASSERT_NO_FATAL_FAILURE(history.CheckTruth()) << "step " << step;
    }
    ASSERT_NO_FATAL_FAILURE(history.CheckCount());
    ASSERT_NO_FATAL_FAILURE(history.DropAll());
  }
}

// At its bound it forgets, but still says nothing that is not so.
TEST(PrefixIndex, ForgetsAtItsBoundWithoutLies) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    History history(seed, {.entries_max = 3000, .seed = seed}, seed % 2 == 0 ? 12 : 130);
    for (int step = 0; step < 5000; ++step) {
      history.Step(/*closed=*/false);
      ASSERT_LE(history.index().entries(), 3000);
      if (step % 10 != 0) continue;
      ASSERT_NO_FATAL_FAILURE(history.CheckTruth()) << "step " << step;
    }
    EXPECT_GT(history.index().evicted(), 0);
    ASSERT_NO_FATAL_FAILURE(history.DropAll());
  }
}

// With tags of 8 bits nearly all blocks share theirs with others. Runs are then too long or too
// short, but counts and bounds hold.
TEST(PrefixIndex, SurvivesTagsThatCollide) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    History history(seed, {.entries_max = 1 << 20, .seed = seed, .tag_bits = 8}, 130);
    for (int step = 0; step < 5000; ++step) history.Step(/*closed=*/false);
    EXPECT_LE(history.index().entries(), 256 * 130);
    EXPECT_GE(history.index().entries(), 0);
    ASSERT_NO_FATAL_FAILURE(history.DropAll());
  }
}

// The table's answers depend on calls and seed alone.
TEST(PrefixIndex, IsDeterministic) {
  std::vector<Runs> first;
  for (int run = 0; run < 2; ++run) {
    History history(5, {.entries_max = 2000, .seed = 9}, 30);
    std::vector<Runs> found;
    for (int step = 0; step < 3000; ++step) {
      history.Step(/*closed=*/false);
      found.push_back(Found(history.index(), HashesOf(Tokens(256))));
    }
    if (run == 0) first = found;
    EXPECT_EQ(found, first);
  }
}

// A row takes as much memory for two holders as for all nodes, so rows count as many entries.
TEST(PrefixIndex, RowsWhoseNodesHaveLeftAreBoundedToo) {
  constexpr int64_t kEntriesMax = 4000;
  constexpr int kNodes = PrefixIndex::kNarrowMax + 1;
  PrefixIndex index({.entries_max = kEntriesMax});
  index.AddNode(0, kDecodeNodes, 100000);
  for (int round = 0; round < 20; ++round) {
    const auto b = HashesOf(Tokens(4 * 40, 1000 * round));
    index.Store(0, b);
    for (NodeSlot slot = 1; slot < kNodes; ++slot) {
      index.AddNode(slot, kDecodeNodes, 100000);
      index.Store(slot, b);
    }
    for (NodeSlot slot = 1; slot < kNodes; ++slot) index.DropNode(slot);
    ASSERT_LE(index.rows(), kEntriesMax / PrefixIndex::kWideMin) << "round " << round;
  }
}

// When a holder stores such a block again, its row goes.
TEST(PrefixIndex, ABlockWhoseNodesHaveLeftHasSingleEntriesAgain) {
  const auto b = HashesOf(Tokens(4 * 40));
  PrefixIndex index({.entries_max = 10000});
  constexpr int kNodes = PrefixIndex::kNarrowMax + 1;
  AddDecodeNodes(index, kNodes);
  for (NodeSlot slot = 0; slot < kNodes; ++slot) index.Store(slot, b, Tier::kHost);
  EXPECT_EQ(index.rows(), 40);
  for (NodeSlot slot = 2; slot < kNodes; ++slot) index.DropNode(slot);
  index.Store(0, b, Tier::kDisk);
  EXPECT_EQ(index.rows(), 0);
  EXPECT_EQ(index.entries(), 80);
  EXPECT_EQ(Found(index, b), (Runs{{0, 40}, {1, 40}}));
  EXPECT_EQ(index.TierOn(0, b[39]), Tier::kDisk);
  EXPECT_EQ(index.TierOn(1, b[39]), Tier::kHost);
}

// Nodes that come and go for ever leave stale entries behind; these must not add up.
TEST(PrefixIndex, NodesThatComeAndGoDoNotGrowTheTable) {
  PrefixIndex index({.entries_max = 1 << 20});
  int64_t most = 0;
  for (int visit = 0; visit < 400; ++visit) {
    AddDecodeNodes(index, 1, 1000);
    for (int chain = 0; chain < 10; ++chain)
      index.Store(0, HashesOf(Tokens(400, 1000 * (10 * visit + chain))));
    EXPECT_EQ(index.entries(), 1000);
    most = std::max(most, index.table_entries());
    index.DropNode(0);
  }
  EXPECT_EQ(index.entries(), 0);
  EXPECT_LE(most, static_cast<int64_t>(HolderTable::kSegmentEntries));
}

}  // namespace
}  // namespace tandem::router
