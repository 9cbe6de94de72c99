// Goal: the kernel's files about processors are read correctly: cores and their hardware threads,
// memory nodes, limits of control groups of both versions. Lists are parsed and printed; pinned
// threads stay on their processors. Each test writes the files of its machine into a folder.
#include "common/runtime/processors.h"

#include <sched.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/testing/fake_root.h"
#include "tests/testing/status_matchers.h"

namespace tandem {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FakeMachine : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const { root_.Write(path, text); }
  // Two memory nodes of two cores with two hardware threads each: 0-3 are the first threads, 4-7
  // the
  // second ones.
  void WriteTwoSockets() {
    for (int id = 0; id < 8; ++id) {
      Write(absl::StrCat("/sys/devices/system/cpu/cpu", id, "/topology/thread_siblings_list"),
            absl::StrCat(id % 4, ",", id % 4 + 4));
    }
    Write("/sys/devices/system/node/online", "0-1");
    Write("/sys/devices/system/node/node0/cpulist", "0-1,4-5");
    Write("/sys/devices/system/node/node1/cpulist", "2-3,6-7");
  }

  const testing::FakeRoot root_{};
};

std::vector<int32_t> IdsOf(const std::vector<Processor>& processors) {
  std::vector<int32_t> ids;
  for (const Processor& processor : processors) ids.push_back(processor.id);
  return ids;
}

TEST_F(FakeMachine, CoresAndMemoryNodesAreRead) {
  WriteTwoSockets();
  const Processors all = ReadProcessors(root_.path(), {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(all.usable.size(), 8u);
  EXPECT_EQ(all.usable[6].core, 2);
  EXPECT_EQ(all.usable[6].memory_node, 1);
  EXPECT_FALSE(all.limited());
  EXPECT_THAT(IdsOf(OneOfEachCore(all)), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(DefaultComputeThreads(all), 4) << "one a core";
  // A mask without the first threads of some cores.
  const Processors some = ReadProcessors(root_.path(), {7, 1, 5});
  EXPECT_THAT(IdsOf(OneOfEachCore(some)), ElementsAre(1, 7));
}

TEST_F(FakeMachine, MissingFilesGiveDefaults) {
  const Processors bare = ReadProcessors(root_.path(), {3, 5});
  EXPECT_THAT(IdsOf(OneOfEachCore(bare)), ElementsAre(3, 5));
  EXPECT_EQ(bare.usable[1].memory_node, 0);
  EXPECT_EQ(DefaultComputeThreads(bare), 2);
  EXPECT_EQ(DefaultComputeThreads(ReadProcessors(root_.path(), {})), 1);
}

TEST_F(FakeMachine, TheLeastGrantOfAllGroupsCounts) {
  const std::vector<int32_t> eight = {0, 1, 2, 3, 4, 5, 6, 7};
  Write("/proc/self/cgroup", "0::/pods/one");
  Write("/sys/fs/cgroup/pods/one/cpu.max", "max 100000");
  EXPECT_FALSE(ReadProcessors(root_.path(), eight).limited());
  Write("/sys/fs/cgroup/pods/cpu.max", "350000 100000");
  EXPECT_DOUBLE_EQ(ReadProcessors(root_.path(), eight).granted, 3.5);
  EXPECT_EQ(DefaultComputeThreads(ReadProcessors(root_.path(), eight)), 3);
  // As in a container: the process's group is the root of the mounted tree.
  Write("/sys/fs/cgroup/cpu.max", "50000 100000");
  EXPECT_DOUBLE_EQ(ReadProcessors(root_.path(), eight).granted, 0.5);
  EXPECT_EQ(DefaultComputeThreads(ReadProcessors(root_.path(), eight)), 1);
}

TEST_F(FakeMachine, GroupsOfVersionOneLimitToo) {
  const std::vector<int32_t> four = {0, 1, 2, 3};
  Write("/proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/pods/two\n1:name=systemd:/y");
  Write("/sys/fs/cgroup/cpu/pods/two/cpu.cfs_period_us", "100000");
  Write("/sys/fs/cgroup/cpu/pods/two/cpu.cfs_quota_us", "-1");
  EXPECT_FALSE(ReadProcessors(root_.path(), four).limited());
  Write("/sys/fs/cgroup/cpu/pods/two/cpu.cfs_quota_us", "200000");
  EXPECT_DOUBLE_EQ(ReadProcessors(root_.path(), four).granted, 2);
}

TEST_F(FakeMachine, ComputeThreadsTakeOneOfEachCore) {
  WriteTwoSockets();
  const Processors all = ReadProcessors(root_.path(), {0, 1, 2, 3, 4, 5, 6});
  const auto one = PlaceComputeThreads(all, "4-5,0", 0);
  ASSERT_OK(one.status());
  EXPECT_THAT(one->all, ElementsAre(0, 4, 5));
  EXPECT_THAT(one->compute, ElementsAre(0, 5));
  EXPECT_THAT(PlaceComputeThreads(all, "all", 3)->compute, ElementsAre(0, 1, 2));
  EXPECT_THAT(PlaceComputeThreads(all, "0,4", 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("which have 1 cores")));
  EXPECT_THAT(PlaceComputeThreads(all, "6-7", 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("processor 7 of '6-7' is not one that this process may use; they "
                                 "are 0-6")));
}

TEST_F(FakeMachine, EightCoresLeaveOneToOtherThreads) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < 9; ++id) ids.push_back(id);
  const Processors nine = ReadProcessors(root_.path(), ids);
  EXPECT_EQ(PlaceComputeThreads(nine, "all", 0)->compute.size(), 8u);
  EXPECT_EQ(PlaceComputeThreads(nine, "0-6", 0)->compute.size(), 7u);
  EXPECT_EQ(PlaceComputeThreads(nine, "all", 9)->compute.size(), 9u) << "asked for";
}

TEST(ProcessorList, IsParsedAndPrinted) {
  EXPECT_THAT(*ParseProcessorList("8,0-3,2"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_EQ(FormatProcessorList({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(FormatProcessorList({}), "");
  for (const char* bad : {"", "a", "1-", "-1", "3-1", "1,,2", "0-99999", "1-2-3", "4294967296"}) {
    EXPECT_THAT(ParseProcessorList(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected such as 0-3,8")))
        << bad;
  }
}

TEST(PinCallingThread, KeepsTheThreadOnItsProcessor) {
  const Processors mine = ReadProcessors();
  ASSERT_FALSE(mine.usable.empty());
  for (const Processor& processor : mine.usable) {
    int ran_on = -1;
    absl::Status status;
    std::thread([&] {
      status = PinCallingThread({processor.id});
      ran_on = sched_getcpu();
    }).join();
    EXPECT_OK(status);
    EXPECT_EQ(ran_on, processor.id);
  }
  std::thread([] {
    EXPECT_THAT(PinCallingThread({8191}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("cannot pin the thread to processors 8191")));
  }).join();
}

}  // namespace
}  // namespace tandem
