// Goal: on any machine the shares of a host's nodes are disjoint, whole cores of one memory each,
// and leave a core to the rest; where that is impossible, no
// node gets a share.
#include "cli/cluster/processor_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace tandem::cli {
namespace {

// `memories` × `cores` × `siblings` processors, numbered as Linux does on two-socket machines:
// first siblings of all cores, then second ones.
Processors Machine(int32_t memories, int32_t cores, int32_t siblings) {
  Processors machine;
  for (int32_t id = 0; id < memories * cores * siblings; ++id) {
    const int32_t core = id % (memories * cores);
    machine.usable.push_back({id, core, core / cores});
  }
  machine.granted = static_cast<double>(machine.usable.size());
  return machine;
}

TEST(ProcessorShares, TwoNodesOfTwoSocketsHaveOneEach) {
  const Processors machine = Machine(2, 16, 2);
  const ProcessorShare first = ShareOf(machine, 0, 2), second = ShareOf(machine, 1, 2);
  EXPECT_EQ(first.threads, 15);
  EXPECT_EQ(first.cpus, "0-14,32-46");
  EXPECT_EQ(second.threads, 15);
  EXPECT_EQ(second.cpus, "16-30,48-62");
  EXPECT_EQ(ShareOf(machine, 0, 1).cpus, "0-14,32-46") << "one engine, one memory";
  EXPECT_EQ(ShareOf(machine, 2, 4).cpus, "8-14,40-46");
}

TEST(ProcessorShares, FewCoresAreLeftToTheKernel) {
  EXPECT_EQ(ShareOf(Machine(1, 2, 1), 1, 2).cpus, "");
  EXPECT_EQ(ShareOf(Machine(1, 2, 1), 1, 2).threads, 1);
  EXPECT_EQ(ShareOf(Machine(1, 2, 1), 4, 5).threads, 1) << "more nodes than cores";
  EXPECT_EQ(ShareOf(Machine(1, 4, 1), 0, 2).cpus, "") << "nothing would be left for the router";
  EXPECT_EQ(ShareOf(Machine(1, 4, 1), 0, 2).threads, 2);
  EXPECT_EQ(ShareOf(Machine(1, 7, 1), 1, 2).cpus, "") << "three cores are too few for a node alone";
  EXPECT_EQ(ShareOf(Machine(1, 7, 1), 1, 2).threads, 3);
  EXPECT_EQ(ShareOf(Machine(1, 9, 1), 1, 2).cpus, "4-7");
}

TEST(ProcessorShares, ALimitOfTimePinsNobody) {
  Processors machine = Machine(1, 64, 1);
  machine.granted = 6.5;
  EXPECT_EQ(ShareOf(machine, 0, 2).cpus, "");
  EXPECT_EQ(ShareOf(machine, 0, 2).threads, 3);
  machine.granted = 0.5;
  EXPECT_EQ(ShareOf(machine, 0, 2).threads, 1);
}

// Memory nodes of the cores that a share names, and all cores it names.
struct Named {
  std::set<int32_t> cores, memories;
  size_t processors = 0;
};
Named Resolve(const Processors& machine, const std::string& cpus) {
  Named named;
  const std::vector<int32_t> ids = ParseProcessorList(cpus).value();
  for (const int32_t id : ids) {
    const auto found = std::find_if(machine.usable.begin(), machine.usable.end(),
                                    [&](const Processor& processor) { return processor.id == id; });
    EXPECT_NE(found, machine.usable.end()) << id;
    named.cores.insert(found->core);
    named.memories.insert(found->memory_node);
    ++named.processors;
  }
  return named;
}

TEST(ProcessorShares, AreDisjointWholeCoresOfOneMemory) {
  const auto seed = std::random_device()();
  std::mt19937 random(seed);
  const auto draw = [&](int32_t least, int32_t most) {
    return std::uniform_int_distribution<int32_t>(least, most)(random);
  };
  for (int round = 0; round < 500; ++round) {
    const int32_t memories = draw(1, 4), cores = draw(1, 40), siblings = draw(1, 2);
    const int nodes = draw(1, 24);
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << " round " << round << ": " << memories << " x " << cores
                 << " x " << siblings << ", " << nodes << " nodes");
    const Processors machine = Machine(memories, cores, siblings);
    std::set<int32_t> taken;
    int pinned = 0;
    for (int i = 0; i < nodes; ++i) {
      const ProcessorShare share = ShareOf(machine, i, nodes);
      ASSERT_GE(share.threads, 1);
      if (share.cpus.empty()) continue;
      ++pinned;
      const Named named = Resolve(machine, share.cpus);
      EXPECT_GE(share.threads, 4);
      EXPECT_EQ(named.memories.size(), 1u);
      EXPECT_EQ(named.cores.size(), static_cast<size_t>(share.threads));
      EXPECT_EQ(named.processors, named.cores.size() * static_cast<size_t>(siblings));
      for (const int32_t core : named.cores) EXPECT_TRUE(taken.insert(core).second) << core;
    }
    EXPECT_TRUE(pinned == 0 || pinned == nodes);
    EXPECT_LT(taken.size(), static_cast<size_t>(memories * cores));
  }
}

}  // namespace
}  // namespace tandem::cli
