// Goal: a block that one node reports takes at most 48 bytes of the router's memory, as the kernel
// counts it, at every size of the index, and all of what nodes had is there to be found.
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "tests/testing/resident_memory.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

using testing::ResidentBytes;

constexpr int64_t kBlocks = 2'000'000;
constexpr int64_t kBlocksInAnEvent = 1000;
constexpr double kBytesMax = 48;

kv::BlockHash NameOf(int64_t block) {
  // Names are uniform, as a hash's are.
  const auto mixed = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  const auto number = static_cast<uint64_t>(block) + 1;
  return {mixed(number * 0x9e3779b97f4a7c15), mixed(number + 0x632be59bd9b4e019)};
}

v1::NodeEvent EventOf(int64_t first) {
  std::vector<kv::BlockHash> names;
  for (int64_t block = first; block < first + kBlocksInAnEvent; ++block)
    names.push_back(NameOf(block));
  v1::NodeEvent event;
  event.mutable_blocks_stored()->set_hashes(kv::PackHashes(names));
  return event;
}

// In a process of its own, whose memory holds nothing of other tests. Returns its exit code.
int TakeInBlocks() {
  RouterOptions options;
  options.index_blocks_max = 2 * kBlocks;
  CoreHarness harness(options);
  v1::Registration registration = TestRegistration("d0", v1::NODE_ROLE_DECODE);
  registration.set_num_blocks(kBlocks);
  if (!harness.Join(1, registration).ok()) return 2;
  harness.Say(1, {EventOf(0)});  // buffers of events are taken once, and used again
  malloc_trim(0);  // else the index would get pages that tests before this one have left
  const int64_t before = ResidentBytes();
  for (int64_t block = kBlocksInAnEvent; block < kBlocks; block += kBlocksInAnEvent) {
    harness.Say(1, {EventOf(block)});
    const int64_t taken_in = block;  // since `before`
    if (taken_in % 250'000 != 0) continue;
    const double bytes =
        static_cast<double>(ResidentBytes() - before) / static_cast<double>(taken_in);
    std::printf("%lld blocks: %.1f bytes each\n", static_cast<long long>(taken_in), bytes);
    std::fflush(stdout);
    if (bytes > kBytesMax) return 3;
    if (bytes < sizeof(HolderEntry)) return 4;  // this did not measure the index
  }
  const PrefixIndex& index = harness.core().index();
  return index.entries() == kBlocks && index.evicted() == 0 ? 0 : 5;
}

TEST(IndexMemory, ABlockTakesAtMost48BytesOfResidentMemory) {
  if (!testing::kResidentBytesTell) GTEST_SKIP() << "a sanitizer's memory is counted too";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(TakeInBlocks());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "status " << status;
  EXPECT_EQ(WEXITSTATUS(status), 0) << "2: not joined, 3: a block takes more, 4: it takes less "
                                       "than an entry, 5: blocks are missing";
}

}  // namespace
}  // namespace tandem::router
