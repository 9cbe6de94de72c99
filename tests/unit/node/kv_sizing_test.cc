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

}  // namespace
}  // namespace tandem::node
