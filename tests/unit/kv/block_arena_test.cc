// Goal: an arena of which little is used may be larger than the host's memory; others may not be
// had then.
#include "common/kv/block_arena.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <fstream>
#include <string>

#include "tests/testing/resident_memory.h"
#include "tests/testing/status_matchers.h"

namespace tandem::kv {
namespace {

constexpr int64_t kBlockBytes = 1 << 20;

int64_t HostBytes() {
  int64_t kilobytes = 0;
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (int64_t value = 0; file >> name >> value; std::getline(file, unit))
    if (name == "MemTotal:" || name == "SwapTotal:") kilobytes += value;
  return kilobytes * 1024;
}

// Whether the system refuses one mapping of so many bytes, and not for a bound of the process.
bool Refuses(size_t bytes) {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY) return false;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return true;
  munmap(base, bytes);
  return false;
}

TEST(BlockArena, MayExceedTheHostsMemoryWhereItIsNotReserved) {
  BlockLayout layout;
  layout.num_layers = 1;
  layout.block_tokens = 16;
  layout.layer_block_bytes = kBlockBytes;
  const int64_t blocks = HostBytes() / kBlockBytes + 1024;
  if (!Refuses(static_cast<size_t>(blocks * kBlockBytes)))
    GTEST_SKIP() << "the system does not compare one mapping with its memory";
  EXPECT_EQ(BlockArena::Create(layout, blocks, ArenaMemory::kPrivate).status().code(),
            absl::StatusCode::kResourceExhausted);
  const int64_t before = testing::ResidentBytes();
  ASSERT_OK_AND_ASSIGN(const auto arena,
                       BlockArena::Create(layout, blocks, ArenaMemory::kUnreserved));
  if (testing::kResidentBytesTell) {
    EXPECT_LT(testing::ResidentBytes() - before, 64 << 20);
  }
}

}  // namespace
}  // namespace tandem::kv
