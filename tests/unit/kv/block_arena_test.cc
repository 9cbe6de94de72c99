// Goal: an arena of which little is used may be larger than the host's memory; others may not be
// had then.
#include "common/kv/block_arena.h"

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

TEST(BlockArena, MayExceedTheHostsMemoryWhereItIsNotReserved) {
  int overcommit = 1;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit;
  if (overcommit != 0) GTEST_SKIP() << "the system does not compare one mapping with its memory";
  BlockLayout layout;
  layout.num_layers = 1;
  layout.block_tokens = 16;
  layout.layer_block_bytes = kBlockBytes;
  const int64_t blocks = HostBytes() / kBlockBytes + 1024;
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
