// Goal: a creditor reads ahead in the layer that the debtor asks about next.
#include "common/engine/cpu/cpu_partial_attention.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::engine {
namespace {

model::ModelConfig ConfigOf(const std::vector<int64_t>& windows) {
  model::ModelConfig config;
  config.num_layers = static_cast<int32_t>(windows.size());
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 64;
  config.layers.resize(windows.size());
  for (size_t i = 0; i < windows.size(); ++i) config.layers[i].sliding_window = windows[i];
  return config;
}

TEST(NextLendingLayer, IsTheNextOneWithoutASlidingWindow) {
  const model::ModelConfig plain = ConfigOf({0, 0, 0});
  EXPECT_EQ(NextLendingLayer(plain, 0), 1);
  EXPECT_EQ(NextLendingLayer(plain, 2), 0) << "the next step begins with the first layer";
  const model::ModelConfig mixed = ConfigOf({512, 0, 512, 512, 0, 512});
  EXPECT_EQ(NextLendingLayer(mixed, 1), 4);
  EXPECT_EQ(NextLendingLayer(mixed, 4), 1);
  EXPECT_EQ(NextLendingLayer(ConfigOf({0}), 0), 0);
  EXPECT_EQ(NextLendingLayer(ConfigOf({0, 512}), 0), 0) << "only this layer lends";
}

TEST(CpuPartialAttention, FetchesWholeBlocksOfTheNextLayer) {
  const kernels::KvShape kv = {.num_kv_heads = 1, .head_dim = 64, .block_tokens = 32};
  const auto bytes = static_cast<int64_t>(kernels::KvBlockBytes(kv));
  const auto arena = *kv::BlockArena::Create(
      {.num_layers = 2, .block_tokens = 32, .layer_block_bytes = (bytes + 63) / 64 * 64}, 8);
  const auto attention =
      NewCpuPartialAttention({.config = ConfigOf({0, 0}), .kv = kv, .context_tokens = 1024},
                             kernels::BestBackend(), *arena);
  for (const int32_t layer : {0, 1}) {
    EXPECT_EQ(attention->FetchForNextLayer(layer, {BlockId(0), BlockId(7)}), 2 * bytes);
  }
}

}  // namespace
}  // namespace tandem::engine
