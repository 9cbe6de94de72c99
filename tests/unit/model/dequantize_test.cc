// Goal: every element format turns into fp32 exactly as ggml defines it, for whole rows, row ranges
// and permuted rows.
#include "common/model/dequantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/base/casts.h"
#include "common/model/checkpoint.h"
#include "tests/testing/models.h"

namespace tandem::model {
namespace {

using ::tandem::testing::GoldenPath;
using ::tandem::testing::ReadFileOrEmpty;

const std::byte* Bytes(const std::string& text) {
  return reinterpret_cast<const std::byte*>(text.data());
}

class QuantisedTypeTest : public ::testing::TestWithParam<TensorType> {};

TEST_P(QuantisedTypeTest, EqualsGoldenToTheBit) {
  const std::string name(TensorTypeName(GetParam()));
  const std::string blocks = ReadFileOrEmpty(GoldenPath("dequantize/" + name + ".blocks"));
  const std::string golden = ReadFileOrEmpty(GoldenPath("dequantize/" + name + ".f32"));
  ASSERT_FALSE(golden.empty());
  const TensorTypeLayout& layout = LayoutOf(GetParam());
  const auto columns = static_cast<int64_t>(golden.size() / sizeof(float));
  ASSERT_EQ(static_cast<int64_t>(blocks.size()),
            columns / layout.block_elements * layout.block_bytes);
  std::vector<float> values(static_cast<size_t>(columns));
  DequantizeRow(GetParam(), Bytes(blocks), columns, values.data());
  // -0.0 and 0.0 differ in this comparison, as they should.
  EXPECT_EQ(std::memcmp(values.data(), golden.data(), golden.size()), 0);
}

INSTANTIATE_TEST_SUITE_P(All, QuantisedTypeTest,
                         ::testing::Values(TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1,
                                           TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ4_K,
                                           TensorType::kQ5_K, TensorType::kQ6_K),
                         [](const ::testing::TestParamInfo<TensorType>& type) {
                           return std::string(TensorTypeName(type.param));
                         });

TEST(DequantizeTest, EveryHalfHasItsValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    const int exponent = static_cast<int>(bits >> 10) & 31;
    const int mantissa = static_cast<int>(bits) & 1023;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(value), mantissa != 0) << bits;
      ASSERT_EQ(std::isinf(value), mantissa == 0) << bits;
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(std::abs(static_cast<double>(value)), magnitude) << bits;
  }
}

TEST(DequantizeTest, BfloatIsTheUpperHalfOfAFloat) {
  std::string data;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    data.push_back(static_cast<char>(bits & 255));
    data.push_back(static_cast<char>(bits >> 8));
  }
  std::vector<float> values(65536);
  DequantizeRow(TensorType::kBF16, Bytes(data), 65536, values.data());
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    ASSERT_EQ(absl::bit_cast<uint32_t>(values[bits]), bits << 16);
  }
}

// An F32 tensor whose element (r, c) is 100 r + c.
struct Counted {
  explicit Counted(int64_t rows, int64_t columns) : values(static_cast<size_t>(rows * columns)) {
    for (int64_t i = 0; i < rows * columns; ++i) {
      values[static_cast<size_t>(i)] = static_cast<float>(100 * (i / columns) + i % columns);
    }
    tensor.name = "counted";
    tensor.rows = rows;
    tensor.columns = columns;
    tensor.row_bytes = columns * 4;
    tensor.data = reinterpret_cast<const std::byte*>(values.data());
  }
  std::vector<float> values;
  StoredTensor tensor;
};

TEST(ReadRowsTest, InterleavedRowsComeHalfSplit) {
  Counted counted(16, 2);
  counted.tensor.permuted_head_rows = 8;
  // Head h's canonical rows are its even file rows, then its odd ones.
  const std::vector<float> expected = {0,   200,  400,  600,  100, 300,  500,  700,
                                       800, 1000, 1200, 1400, 900, 1100, 1300, 1500};
  std::vector<float> all(32);
  ReadRows(counted.tensor, 0, 16, absl::MakeSpan(all));
  for (size_t row = 0; row < 16; ++row) {
    EXPECT_EQ(all[2 * row], expected[row]);
    EXPECT_EQ(all[2 * row + 1], expected[row] + 1);
    std::vector<float> one(2);
    ReadRows(counted.tensor, static_cast<int64_t>(row), 1, absl::MakeSpan(one));
    EXPECT_EQ(one[0], expected[row]);
  }
}

TEST(ReadRowsTest, InterleavedBiasComesHalfSplit) {
  Counted counted(1, 8);
  counted.tensor.permuted_head_rows = 4;
  std::vector<float> bias(8);
  ReadRows(counted.tensor, 0, 1, absl::MakeSpan(bias));
  EXPECT_THAT(bias, ::testing::ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
}

TEST(ReadRowsTest, AddsOneWhereTheFileLeavesItOut) {
  Counted counted(1, 3);
  counted.tensor.add_one = true;
  std::vector<float> weights(3);
  ReadRows(counted.tensor, 0, 1, absl::MakeSpan(weights));
  EXPECT_THAT(weights, ::testing::ElementsAre(1, 2, 3));
}

TEST(ReadRowsDeathTest, RangeOutsideTheTensorIsABrokenInvariant) {
  Counted counted(4, 2);
  std::vector<float> out(4);
  EXPECT_DEATH(ReadRows(counted.tensor, 3, 2, absl::MakeSpan(out)), "counted");
  EXPECT_DEATH(ReadRows(counted.tensor, 0, 1, absl::MakeSpan(out)), "counted");
}

TEST(Int4BlocksTest, AreTheStoredWeightsExactly) {
  for (const TensorType type : {TensorType::kQ4_0, TensorType::kQ4_1}) {
    const std::string blocks =
        ReadFileOrEmpty(GoldenPath("dequantize/" + std::string(TensorTypeName(type)) + ".blocks"));
    const int64_t block_bytes = LayoutOf(type).block_bytes;
    const auto count = static_cast<int64_t>(blocks.size()) / block_bytes;
    ASSERT_GT(count, 3);
    // As two heads' rows in the interleaved order, one block each.
    StoredTensor tensor;
    tensor.type = type;
    tensor.rows = count / 4 * 4;
    tensor.columns = kInt4BlockWeights;
    tensor.row_bytes = block_bytes;
    tensor.permuted_head_rows = 4;
    tensor.data = Bytes(blocks);
    ASSERT_TRUE(HasInt4Blocks(tensor));
    std::vector<float> expected(static_cast<size_t>(tensor.rows * tensor.columns));
    ReadRows(tensor, 0, tensor.rows, absl::MakeSpan(expected));
    std::vector<std::byte> read(static_cast<size_t>(tensor.rows * kInt4BlockBytes));
    ReadInt4Blocks(tensor, 0, tensor.rows, absl::MakeSpan(read));
    for (size_t row = 0; row < static_cast<size_t>(tensor.rows); ++row) {
      const std::byte* block = read.data() + row * kInt4BlockBytes;
      uint16_t scale = 0, offset = 0;
      std::memcpy(&scale, block, 2);
      std::memcpy(&offset, block + 2, 2);
      if ((scale & 0x7c00) == 0x7c00 || (offset & 0x7c00) == 0x7c00) continue;
      for (size_t i = 0; i < 32; ++i) {
        const int byte = static_cast<int>(block[4 + i % 16]);
        const int q = i < 16 ? byte & 15 : byte >> 4;
        EXPECT_EQ(HalfToFloat(scale) * static_cast<float>(q) + HalfToFloat(offset),
                  expected[row * 32 + i])
            << TensorTypeName(type) << " row " << row << " element " << i;
      }
    }
  }
  StoredTensor other;
  other.type = TensorType::kQ8_0;
  EXPECT_FALSE(HasInt4Blocks(other));
}

TEST(Q4KBlocksTest, AreTheStoredWeightsExactly) {
  const std::string blocks = ReadFileOrEmpty(GoldenPath("dequantize/Q4_K.blocks"));
  const auto count = static_cast<int64_t>(blocks.size()) / kQ4KStoredBytes;
  ASSERT_GT(count, 3);
  // As heads' rows in the interleaved order, one block each.
  StoredTensor tensor;
  tensor.type = TensorType::kQ4_K;
  tensor.rows = count / 4 * 4;
  tensor.columns = kQ4KBlockWeights;
  tensor.row_bytes = kQ4KStoredBytes;
  tensor.permuted_head_rows = 4;
  tensor.data = Bytes(blocks);
  ASSERT_TRUE(HasQ4KBlocks(tensor));
  std::vector<float> expected(static_cast<size_t>(tensor.rows * tensor.columns));
  ReadRows(tensor, 0, tensor.rows, absl::MakeSpan(expected));
  std::vector<Q4KBlock> read(static_cast<size_t>(tensor.rows));
  ReadQ4KBlocks(tensor, 0, tensor.rows, absl::MakeSpan(read));
  size_t compared = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const Q4KBlock& block = read[i / 256];
    const size_t group = i % 256 / 32, element = i % 32;
    if ((block.d & 0x7c00) == 0x7c00 || (block.dmin & 0x7c00) == 0x7c00) continue;
    const int byte = block.elements[group][element % 16];
    const int q = element < 16 ? byte & 15 : byte >> 4;
    ASSERT_EQ(HalfToFloat(block.d) * block.scales[group] * static_cast<float>(q) -
                  HalfToFloat(block.dmin) * block.mins[group],
              expected[i])
        << "row " << i / 256 << " element " << i % 256;
    ++compared;
  }
  EXPECT_GT(compared, expected.size() / 2);
  tensor.add_one = true;  // no longer what is stored
  EXPECT_FALSE(HasQ4KBlocks(tensor));
}

TEST(Int4BlocksTest, TimesMinusEightIsExact) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if ((half & 0x7c00) == 0x7c00) continue;
    const float product = HalfToFloat(half) * -8.0f;
    const float found = HalfToFloat(TimesMinusEight(half));
    if (std::fabs(product) > 65504.0f) {
      ASSERT_EQ(found, std::copysign(65504.0f, product)) << bits;
    } else {
      ASSERT_EQ(found, product) << bits;
    }
  }
}

}  // namespace
}  // namespace tandem::model
