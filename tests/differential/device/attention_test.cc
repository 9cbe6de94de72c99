// Goal: attention on the device, over a cache of each type, is right (against softmax in double
// over what the cache holds) and invariant: a row has the same bits alone as a generated row, in a
// prompt of any chunking, beside other sequences, with its partitions split among items or walked
// by one, at any place in the cache and with any block size; places it may not look at are never
// used.
#include <algorithm>

#include "attention_fixture.h"

namespace tandem::kernels {
namespace {

INSTANTIATE_TEST_SUITE_P(All, DeviceAttentionTest, kDeviceKindsWithHopper, DeviceName);

TEST_P(DeviceAttentionTest, AgreesWithSoftmaxInDouble) {
  ExpectRight({4, 2, 64}, 70, 0);
  ExpectRight({3, 1, 64}, 300, 299);
  ExpectRight({4, 1, 128}, 530, 527);
  ExpectRight({2, 2, 256, 0, 16}, 41, 0);
  ExpectRight({8, 1, 256}, 290, 289);
  ExpectRight({4, 1, 64, 100}, 600, 570);
}

// The last token one before, at and one behind the end of a sub-tile (32 or 64 tokens) and of a
// partition, and a window's first token there.
TEST_P(DeviceAttentionTest, AgreesAtTheEdgesOfSubTilesAndPartitions) {
  for (const int32_t edge : {32, 64, 256}) {
    for (const int32_t tokens : {edge - 1, edge, edge + 1}) {
      ExpectRight({2, 1, 64}, tokens, tokens - 1);
      // A tile whose rows end before, at and behind the edge, in either of a thread's two vectors.
      const DeviceAttentionShape wide = {4, 1, 128, 0, 16};
      const std::vector<DeviceSequence> data = {RandomSequence(wide, tokens)};
      for (const int32_t rows : {28, 30}) {
        const int32_t begin = tokens - rows;
        const std::vector<Bf16Bits> out = RunBatch(wide, data, {{0, begin, tokens}}, 4);
        for (int32_t row = begin; row < tokens; ++row)
          ExpectRowRight(wide, data[0], row, out.data() + (row - begin) * 4 * 128);
      }
      ExpectRight({1, 1, 64, 0, 32, KvType::kInt8}, tokens, tokens - 1);
      constexpr int32_t kLength = 290;
      ExpectRight({2, 1, 64, kLength - tokens}, kLength, kLength - 1);
      ExpectRight({2, 1, 128, kLength - tokens, 64}, kLength + 33, kLength - 1);
    }
  }
}

TEST_P(DeviceAttentionTest, AgreesOverACacheOfCodes) {
  for (const KvType type : {KvType::kInt8, KvType::kFp8}) {
    ExpectRight({4, 2, 64, 0, 32, type}, 70, 0);
    ExpectRight({3, 1, 64, 0, 16, type}, 300, 299);
    ExpectRight({4, 1, 128, 0, 64, type}, 530, 527);
    ExpectRight({2, 2, 256, 0, 16, type}, 41, 0);
    ExpectRight({8, 1, 256, 0, 128, type}, 290, 289);
    ExpectRight({4, 1, 64, 100, 32, type}, 600, 570);
    ExpectRight({2, 1, 32, Uniform(1, 80), 32, type}, Uniform(20, 120), 0);
    ExpectRight({2, 2, 16, Uniform(1, 80), 16, type}, Uniform(20, 120), 7);
  }
}

TEST_P(DeviceAttentionTest, PromptRowsAndGeneratedRowsHaveTheSameBits) {
  for (const DeviceAttentionShape shape :
       {DeviceAttentionShape{4, 2, 64}, DeviceAttentionShape{4, 1, 64, 90},
        DeviceAttentionShape{2, 1, 128}, DeviceAttentionShape{2, 1, 256},
        DeviceAttentionShape{4, 2, 32, 0, 32, KvType::kInt8},
        DeviceAttentionShape{4, 1, 64, 90, 16, KvType::kFp8}}) {
    const int32_t length = 560;
    const std::vector<DeviceSequence> data = {RandomSequence(shape, length),
                                              RandomSequence(shape, 37)};
    const size_t row_size = static_cast<size_t>(shape.num_heads * shape.head_dim);
    // A wide tile.
    const std::vector<Bf16Bits> prompt = RunBatch(shape, data, {{0, 520, length}}, 1);
    for (int32_t row : {520, 543, 559}) {
      const Bf16Bits* expected = prompt.data() + static_cast<size_t>(row - 520) * row_size;
      const std::string what =
          "row " + std::to_string(row) + " of head_dim " + std::to_string(shape.head_dim);
      // Alone, partitions in one item; split into three; beside another sequence.
      for (int32_t items_wanted : {1, 8}) {
        const auto alone = RunBatch(shape, data, {{0, row, row + 1}}, items_wanted);
        ExpectSameBits(alone.data(), expected, row_size, what + " alone");
      }
      const auto beside = RunBatch(shape, data, {{1, 30, 37}, {0, row, row + 1}}, 8);
      ExpectSameBits(beside.data() + 7 * row_size, expected, row_size, what + " beside others");
    }
    const auto chunk = RunBatch(shape, data, {{0, 541, 552}, {1, 0, 37}}, 3);
    ExpectSameBits(chunk.data(), prompt.data() + 21 * row_size, 11 * row_size, "another chunk");
  }
}

// Prompts of any number of tiles side by side, chunks of them and generated rows: every tile has
// neighbours of its own and of other sequences.
TEST_P(DeviceAttentionTest, RandomBatchesAreRightAndInvariant) {
  for (const int32_t head_dim : {64, 128, 256}) {
    const DeviceAttentionShape shape = RandomShape(head_dim);
    const size_t row_size = static_cast<size_t>(shape.num_heads * head_dim);
    std::vector<DeviceSequence> data;
    std::vector<DeviceRows> chunks;
    for (size_t i = 0; i < static_cast<size_t>(Uniform(2, 4)); ++i) {
      const int32_t length = Uniform(1, 600), rows = Uniform(0, 2) == 0 ? 1 : Uniform(1, 60);
      data.push_back(RandomSequence(shape, length));
      chunks.push_back({i, std::max(0, length - rows), length});
    }
    const std::vector<Bf16Bits> batch = RunBatch(shape, data, chunks, Uniform(1, 12));
    const Bf16Bits* out = batch.data();
    for (const DeviceRows& chunk : chunks) {
      const int32_t row = Uniform(chunk.begin, chunk.end - 1);
      const Bf16Bits* at = out + static_cast<size_t>(row - chunk.begin) * row_size;
      ExpectRowRight(shape, data[chunk.sequence], row, at);
      const auto alone = RunBatch(shape, data, {{chunk.sequence, row, row + 1}}, Uniform(1, 4));
      ExpectSameBits(alone.data(), at, row_size,
                     "row " + std::to_string(row) + " of head_dim " + std::to_string(head_dim));
      out += static_cast<size_t>(chunk.end - chunk.begin) * row_size;
    }
  }
}

// More partitions than the merge kernel folds at a time.
TEST_P(DeviceAttentionTest, ALongRowHasTheSameBitsSplitAndWhole) {
  for (const DeviceAttentionShape shape :
       {DeviceAttentionShape{3, 1, 16}, DeviceAttentionShape{2, 2, 64},
        DeviceAttentionShape{2, 1, 128, 8600}}) {
    const int32_t length = 8192 + Uniform(257, 1200);
    const std::vector<DeviceSequence> data = {RandomSequence(shape, length)};
    const auto whole = RunBatch(shape, data, {{0, length - 2, length}}, 1);
    const auto split = RunBatch(shape, data, {{0, length - 2, length}}, 12);
    ExpectSameBits(split.data(), whole.data(), whole.size(),
                   "head_dim " + std::to_string(shape.head_dim));
    // A record area that is too small leaves the row whole.
    records_max_ = 8;
    const auto unsplit = RunBatch(shape, data, {{0, length - 2, length}}, 12);
    ExpectSameBits(unsplit.data(), whole.data(), whole.size(), "no room for records");
    records_max_ = 256;
  }
}

// The table of docs/kernels/decode_attention.md.
TEST_P(DeviceAttentionTest, ItemsAtOnceAreThoseThatSharedMemoryHolds) {
  const auto at_once = [this](int32_t head_dim, KvType type, int64_t kilobytes) {
    return ops().narrow_items_at_once({2, head_dim, 32, type}, kilobytes << 10);
  };
  EXPECT_EQ(at_once(16, KvType::kBf16, 164), 8);
  EXPECT_EQ(at_once(64, KvType::kInt8, 164), 12);
  EXPECT_EQ(at_once(64, KvType::kFp8, 228), 12);
  EXPECT_EQ(at_once(128, KvType::kInt8, 164), 7);
  EXPECT_EQ(at_once(128, KvType::kFp8, 228), 8);
  EXPECT_EQ(at_once(256, KvType::kInt8, 164), 3);
  EXPECT_EQ(at_once(256, KvType::kFp8, 228), 4);
  EXPECT_EQ(at_once(256, KvType::kFp8, 1), 1);
  const bool portable =
      GetParam() == DeviceKind::kEmulated || GetParam() == DeviceKind::kCudaPortable;
  if (portable || GetParam() == DeviceKind::kEmulatedHopper) {
    EXPECT_EQ(at_once(64, KvType::kBf16, 228), portable ? 6 : 2);
    EXPECT_EQ(at_once(128, KvType::kBf16, 228), portable ? 3 : 2);
    EXPECT_EQ(at_once(256, KvType::kBf16, 228), portable ? 3 : 1);
  }
  if (portable) {
    EXPECT_EQ(at_once(128, KvType::kBf16, 164), 2);
  }
}

TEST_P(DeviceAttentionTest, BlockSizeAndPlaceDoNotMatter) {
  for (DeviceAttentionShape shape :
       {DeviceAttentionShape{4, 2, 64}, DeviceAttentionShape{2, 1, 256},
        DeviceAttentionShape{4, 2, 64, 0, 32, KvType::kInt8},
        DeviceAttentionShape{4, 2, 64, 0, 32, KvType::kFp8}}) {
    const std::vector<DeviceSequence> data = {RandomSequence(shape, 300)};
    const std::vector<Bf16Bits> expected = RunBatch(shape, data, {{0, 280, 300}}, 1);
    for (int32_t block_tokens : {16, 64, 256}) {
      shape.block_tokens = block_tokens;
      const auto actual = RunBatch(shape, data, {{0, 280, 300}}, 1);
      ExpectSameBits(actual.data(), expected.data(), expected.size(),
                     "blocks of " + std::to_string(block_tokens));
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
