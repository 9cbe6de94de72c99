// Goal: a node takes no more memory than the machine and every control group above it leave, in
// both versions, and files that were read do not count as taken.
#include "common/node/available_memory.h"
#include "tests/testing/fake_root.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

using ::testing::HasSubstr;

class AvailableMemory : public ::testing::Test {
 protected:
  AvailableMemory() {
    root_.Write("/proc/meminfo", "MemTotal: 16000 kB\nMemAvailable:    8000 kB\nCached: 1 kB");
  }
  int64_t Bytes() const { return AvailableMemoryBytes(root_.path()).value(); }

  const testing::FakeRoot root_{};
};

TEST_F(AvailableMemory, IsTheMachinesWithoutLimits) {
  EXPECT_EQ(Bytes(), 8000 * 1024);
  root_.Write("/proc/self/cgroup", "0::/a");
  root_.Write("/sys/fs/cgroup/a/memory.max", "max");
  root_.Write("/sys/fs/cgroup/a/memory.current", "5000");
  EXPECT_EQ(Bytes(), 8000 * 1024);
}

TEST_F(AvailableMemory, IsWhatTheTightestGroupLeaves) {
  root_.Write("/sys/fs/cgroup/memory.max", "700000");
  root_.Write("/sys/fs/cgroup/memory.current", "100000");
  EXPECT_EQ(Bytes(), 600000) << "of a container, as it sees itself";
  root_.Write("/proc/self/cgroup", "0::/pods/one");
  root_.Write("/sys/fs/cgroup/pods/memory.max", "500000");
  root_.Write("/sys/fs/cgroup/pods/memory.current", "450000");
  EXPECT_EQ(Bytes(), 50000);
  root_.Write("/sys/fs/cgroup/pods/memory.current", "600000");
  EXPECT_EQ(Bytes(), 0);
}

TEST_F(AvailableMemory, CountsFilesThatWereReadAsAvailable) {
  root_.Write("/sys/fs/cgroup/memory.max", "700000");
  root_.Write("/sys/fs/cgroup/memory.current", "600000");
  root_.Write("/sys/fs/cgroup/memory.stat", "anon 1000\ninactive_file 350000\nactive_file 9");
  EXPECT_EQ(Bytes(), 450000);
}

TEST_F(AvailableMemory, ReadsGroupsOfTheFirstVersion) {
  root_.Write("/proc/self/cgroup", "4:cpu:/x\n3:memory:/pods/two");
  const std::string group = "/sys/fs/cgroup/memory/pods/two";
  root_.Write(group + "/memory.limit_in_bytes", "9223372036854771712");
  root_.Write(group + "/memory.usage_in_bytes", "300000");
  EXPECT_EQ(Bytes(), 8000 * 1024);
  root_.Write(group + "/memory.limit_in_bytes", "900000");
  root_.Write(group + "/memory.stat", "inactive_file 7\ntotal_inactive_file 100000");
  EXPECT_EQ(Bytes(), 700000);
}

TEST(AvailableMemoryErrors, NameWhatIsMissing) {
  const testing::FakeRoot empty;
  EXPECT_THAT(AvailableMemoryBytes(empty.path()),
              ::tandem::testing::StatusIs(absl::StatusCode::kUnavailable,
                                          HasSubstr("/proc/meminfo has no MemAvailable")));
  EXPECT_GT(AvailableMemoryBytes().value(), 0) << "this machine";
}

}  // namespace
}  // namespace tandem::node
