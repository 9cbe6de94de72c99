// Goal: the size of a node's KV cache follows from its memory and from what its sequences can use.
#include "common/node/kv_sizing.h"

#include <gtest/gtest.h>

#include "common/engine/hash/hash_engine.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

// One sequence of at most one block can use one block. That is no lack of memory.
TEST(KvSizing, FewUsefulBlocksAreNoLackOfMemory) {
  NodeConfig config;
  config.max_sequences = 1;
  config.max_batch_tokens = 16;
  const auto engine = engine::NewHashEngine({.block_tokens = 32, .context_tokens = 32});
  ASSERT_OK(engine.status());
  const auto size = ChooseKvSize(config, **engine);
  ASSERT_OK(size.status());
  EXPECT_EQ(size->blocks, kKvBlocksMin);
}

// It is taken from the same memory.
TEST(KvSizing, SwapSpaceLeavesLessForTheCache) {
  NodeConfig config;
  config.kv.swap_bytes = int64_t{1} << 50;
  const auto engine = engine::NewHashEngine({.block_tokens = 32, .context_tokens = 32});
  ASSERT_OK(engine.status());
  EXPECT_THAT(ChooseKvSize(config, **engine),
              testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                ::testing::HasSubstr("1125899906842624 of swap-space")));
}

}  // namespace
}  // namespace tandem::node
