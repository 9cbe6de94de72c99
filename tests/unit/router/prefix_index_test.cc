// Goal: the prefix index answers as a plain map of sets would, stays within its bounds, and forgets
// a node entirely.
#include "router/fleet/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "common/runtime/random.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {
namespace {

std::map<NodeSlot, int> AsMap(const std::vector<PrefixIndex::Match>& matches) {
  std::map<NodeSlot, int> map;
  for (const auto& match : matches) map[match.slot] = match.blocks;
  return map;
}

TEST(PrefixIndex, FindsEachNodesLongestRunFromTheStart) {
  //            b0   b1   b2   b3
  //   node 0   x    x    x
  //   node 1   x         x    x      a hole ends the run
  //   node 2        x    x           without the first block nothing is of use
  const auto b = HashesOf(Tokens(16));
  PrefixIndex index(100);
  for (NodeSlot slot = 0; slot < 3; ++slot) index.AddNode(slot, 100);
  index.Store(0, {b[0], b[1], b[2]});
  index.Store(1, {b[0], b[2], b[3]});
  index.Store(2, {b[1], b[2]});
  EXPECT_EQ(AsMap(index.LongestPrefixes(b)), (std::map<NodeSlot, int>{{0, 3}, {1, 1}}));
  EXPECT_EQ(index.entries(), 8);
  EXPECT_EQ(index.hashes(), 4);
  index.Remove(0, {b[1]});
  EXPECT_EQ(AsMap(index.LongestPrefixes(b)), (std::map<NodeSlot, int>{{0, 1}, {1, 1}}));
  EXPECT_TRUE(index.LongestPrefixes({}).empty());
}

TEST(PrefixIndex, ANodeCannotHoldMoreThanItsPool) {
  const auto b = HashesOf(Tokens(40));
  PrefixIndex index(100);
  index.AddNode(0, 3);
  index.Store(0, b);
  EXPECT_EQ(index.entries(), 3);
  EXPECT_EQ(index.evicted(), 7);
  EXPECT_TRUE(index.LongestPrefixes(b).empty());  // the oldest went, and with it the run
}

TEST(PrefixIndex, TheLeastRecentlyUsedNodesEntriesGoFirst) {
  const auto a = HashesOf(Tokens(16)), b = HashesOf(Tokens(16, 500));
  PrefixIndex index(6);
  index.AddNode(0, 100);
  index.AddNode(1, 100);
  index.Store(0, a);
  index.Touch(0);
  index.Store(1, b);  // the third and fourth make node 1 lose its own: node 0 was used since
  EXPECT_EQ(index.entries(), 6);
  EXPECT_EQ(AsMap(index.LongestPrefixes(a)), (std::map<NodeSlot, int>{{0, 4}}));
  index.Touch(1);
  index.Store(1, {b[0]});
  EXPECT_EQ(index.entries(), 6);
  EXPECT_TRUE(index.LongestPrefixes(a).empty());
}

// Against the naive index, under random stores, removals and node losses.
TEST(PrefixIndex, EqualsTheNaiveIndexOnRandomHistories) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    auto random = NewSeededRandom(seed);
    std::vector<std::vector<kv::BlockHash>> chains;
    for (int c = 0; c < 4; ++c) {  // chains that share prefixes
      auto tokens = Tokens(48);
      for (size_t i = 12 * c; i < tokens.size(); ++i) tokens[i] += 100 * c;
      chains.push_back(HashesOf(tokens));
    }
    constexpr int kNodes = 12;  // more than a holder list's inline eight
    PrefixIndex index(1 << 20);
    std::map<NodeSlot, std::set<kv::BlockHash>> naive;
    for (NodeSlot slot = 0; slot < kNodes; ++slot) {
      index.AddNode(slot, 1000);
      naive[slot];
    }
    for (int step = 0; step < 2000; ++step) {
      const auto slot = static_cast<NodeSlot>(random->Below(kNodes));
      const auto& chain = chains[random->Below(chains.size())];
      const uint64_t action = random->Below(100);
      const size_t from = action < 50 ? 0 : random->Below(chain.size());
      const size_t count = 1 + random->Below(chain.size() - from);
      const auto span = absl::MakeConstSpan(chain).subspan(from, count);
      if (action < 70) {
        index.Store(slot, span);
        naive[slot].insert(span.begin(), span.end());
      } else if (action < 98) {
        index.Remove(slot, span);
        for (const auto& hash : span) naive[slot].erase(hash);
      } else {
        index.DropNode(slot);
        index.AddNode(slot, 1000);
        naive[slot].clear();
      }
      std::map<NodeSlot, int> expected;
      const auto& query = chains[random->Below(chains.size())];
      for (const auto& [node, held] : naive) {
        int run = 0;
        while (run < static_cast<int>(query.size()) && held.count(query[run]) > 0) ++run;
        if (run > 0) expected[node] = run;
      }
      ASSERT_EQ(AsMap(index.LongestPrefixes(query)), expected) << "step " << step;
    }
    int64_t entries = 0;
    for (const auto& [node, held] : naive) entries += held.size();
    EXPECT_EQ(index.entries(), entries);
    for (NodeSlot slot = 0; slot < kNodes; ++slot) index.DropNode(slot);
    EXPECT_EQ(index.entries(), 0);
    EXPECT_EQ(index.hashes(), 0);
  }
}

// A node that stores and removes the same few blocks for ever must not grow the index.
TEST(PrefixIndex, ChurnStaysBoundedAndDropsClean) {
  const auto b = HashesOf(Tokens(40));
  PrefixIndex index(8);
  index.AddNode(0, 100);
  index.AddNode(1, 4);
  for (int i = 0; i < 10000; ++i) {
    index.Store(i % 2, {b[i % 10], b[(i + 1) % 10]});
    if (i % 3 == 0) index.Remove(i % 2, {b[(i + 1) % 10]});
    ASSERT_LE(index.entries(), 8);
  }
  index.DropNode(0);
  ASSERT_LE(index.entries(), 4);
  index.DropNode(1);
  EXPECT_EQ(index.entries(), 0);
}

}  // namespace
}  // namespace tandem::router
