// Goal: a creditor reads ahead in the layer that the debtor asks about next, whole blocks of it,
// and answers about rows that lie beyond its own context.
#include "common/engine/cpu/cpu_partial_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
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

// What the engine had fetched. Bound: the blocks of one test.
std::vector<std::pair<const std::byte*, size_t>>& Fetched() {
  static std::vector<std::pair<const std::byte*, size_t>> fetched;
  return fetched;
}

TEST(CpuPartialAttention, FetchesWholeBlocksOfTheNextLayer) {
  const kernels::KvShape kv = {.num_kv_heads = 1, .head_dim = 64, .block_tokens = 32};
  const size_t bytes = kernels::KvBlockBytes(kv);
  const auto arena =
      *kv::BlockArena::Create({.num_layers = 2,
                               .block_tokens = 32,
                               .layer_block_bytes = (static_cast<int64_t>(bytes) + 63) / 64 * 64},
                              8);
  CpuPartialAttentionOptions options{.config = ConfigOf({0, 0}), .kv = kv};
  EXPECT_EQ(options.fetch, &PrefetchBytes);
  options.fetch = [](const std::byte* at, size_t count) { Fetched().emplace_back(at, count); };
  const auto attention = NewCpuPartialAttention(options, kernels::BestBackend(), *arena);
  for (const int32_t layer : {0, 1}) {
    Fetched().clear();
    EXPECT_EQ(attention->FetchForNextLayer(layer, {BlockId(0), BlockId(7)}),
              2 * static_cast<int64_t>(bytes));
    const auto* region = reinterpret_cast<const std::byte*>(arena->LayerRegion(1 - layer));
    const std::byte* last = region + 7 * arena->layout().layer_block_bytes;
    EXPECT_THAT(Fetched(),
                testing::ElementsAre(testing::Pair(region, bytes), testing::Pair(last, bytes)));
  }
}

TEST(CpuPartialAttention, AnswersRowsBeyondItsOwnContext) {
  const kernels::KvShape kv = {.num_kv_heads = 1, .head_dim = 64, .block_tokens = 32};
  const auto bytes = static_cast<int64_t>(kernels::KvBlockBytes(kv));
  const auto arena = *kv::BlockArena::Create(
      {.num_layers = 2, .block_tokens = 32, .layer_block_bytes = (bytes + 63) / 64 * 64}, 8);
  CpuPartialAttentionOptions options{.config = ConfigOf({0, 0}), .kv = kv};
  options.config.context_tokens = 512;
  const auto attention = NewCpuPartialAttention(options, kernels::BestBackend(), *arena);
  std::vector<BlockId> blocks;
  for (int32_t i = 0; i < 8; ++i) blocks.push_back(BlockId(i));
  const UnitSpan units = {0, 1};
  const std::vector<float> q(static_cast<size_t>(attention->q_floats()), 1);
  std::vector<std::byte> answers[2];
  for (const bool beyond : {false, true}) {
    std::vector<std::byte>& answer = answers[beyond ? 1 : 0];
    answer.resize(static_cast<size_t>(attention->AnswerBytes(0, units, 1)));
    const PartialQuery query = {.units = units,
                                .blocks = blocks,
                                .num_rows = 1,
                                .first_position = beyond ? 600 : 300,
                                .q = q};
    EXPECT_TRUE(attention->Compute(query, absl::MakeSpan(answer)).ok()) << beyond;
  }
  EXPECT_EQ(answers[0], answers[1]) << "all rows after a unit attend to all of it";
}

}  // namespace
}  // namespace tandem::engine
