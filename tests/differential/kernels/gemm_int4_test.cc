// Goal: four-bit products are what their definition says, to the bit, in every class: each group of
// 32 weights an fp16 scale and offset and 32 numbers of [0, 15]; x rounded in the same groups;
// exact integer sums; two FMAs a group. A group that is given is computed with as it is; one that
// is made holds each weight to within half a step and the rounding of scale and offset; conversions
// from and to fp16 are the format's. The same holds of super-blocks, whose groups' scales and
// offsets are exact products.
#include <functional>

#include "kernels/api/int4_group.h"
#include "whole_number_gemm.h"

namespace tandem::kernels {
namespace {

constexpr int64_t kGroup = kInt4GroupSize;

// Independent of the code under test: sign, exponent and fraction taken apart.
double HalfValue(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 0x3ff;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

int Quant(const uint8_t (&quants)[16], int64_t i) {
  return i < 16 ? quants[i] & 15 : quants[i - 16] >> 4;
}

// What a product is computed with.
struct OracleGroup {
  float scale, offset;
  const uint8_t (&quants)[16];

  explicit OracleGroup(const Int4Group& group)
      : scale(static_cast<float>(HalfValue(group.scale))),
        offset(static_cast<float>(HalfValue(group.offset))),
        quants(group.quants) {}
  OracleGroup(const Q4KBlock& block, int64_t g)
      : scale(static_cast<float>(HalfValue(block.scale) * block.scales[g])),
        offset(static_cast<float>(0 - HalfValue(block.min) * block.mins[g])),
        quants(block.quants[g]) {}
};

class FourBitGemmTest : public WholeNumberGemmTest {
 protected:
  int64_t GroupsOf(const Product& p) const { return (p.k + kGroup - 1) / kGroup; }

  std::vector<Int4Group> DrawGroups(const Product& p) {
    std::vector<Int4Group> groups(static_cast<size_t>(p.n * GroupsOf(p)));
    for (Int4Group& group : groups) {
      // Any finite halves, subnormal ones too, of moderate size.
      group.scale = static_cast<uint16_t>(Uniform(0, 0x3fff) | Uniform(0, 1) << 15);
      group.offset = static_cast<uint16_t>(Uniform(0, 0x3fff) | Uniform(0, 1) << 15);
      for (uint8_t& pair : group.quants) pair = static_cast<uint8_t>(Uniform(0, 255));
    }
    return groups;
  }

  std::vector<Q4KBlock> DrawBlocks(const Product& p) {
    std::vector<Q4KBlock> blocks(static_cast<size_t>(p.n * p.k / kQ4KBlockSize));
    for (Q4KBlock& block : blocks) {
      block.scale = static_cast<uint16_t>(Uniform(0, 0x3fff) | Uniform(0, 1) << 15);
      block.min = static_cast<uint16_t>(Uniform(0, 0x3fff) | Uniform(0, 1) << 15);
      for (int64_t g = 0; g < 8; ++g) {
        block.scales[g] = static_cast<uint8_t>(Uniform(0, 63));
        block.mins[g] = static_cast<uint8_t>(Uniform(0, 63));
        for (uint8_t& pair : block.quants[g]) pair = static_cast<uint8_t>(Uniform(0, 255));
      }
    }
    return blocks;
  }

  // In ranges of random length, last range first. `give` points the arguments to the rows from one
  // on.
  Floats PackRanges(const Backend& backend, const Product& p,
                    const std::function<void(int64_t, PackRowsArgs*)>& give) {
    const MatrixShape shape = {p.n, p.k, type_};
    Floats packed(backend.packed_bytes(shape) / 4 + 1);
    for (int64_t end = p.n; end > 0;) {
      const int64_t begin = Uniform(0, end - 1);
      PackRowsArgs args = {shape, begin, end - begin, nullptr, packed.data()};
      give(begin, &args);
      backend.pack_rows(args);
      end = begin;
    }
    return packed;
  }

  Floats PackGroups(const Backend& backend, const Product& p,
                    const std::vector<Int4Group>& groups) {
    return PackRanges(backend, p, [&](int64_t begin, PackRowsArgs* args) {
      args->groups = groups.data() + begin * GroupsOf(p);
    });
  }

  Floats PackBlocks(const Backend& backend, const Product& p, const std::vector<Q4KBlock>& blocks) {
    return PackRanges(backend, p, [&](int64_t begin, PackRowsArgs* args) {
      args->blocks = blocks.data() + begin * (p.k / kQ4KBlockSize);
    });
  }

  Floats Expected(const Product& p, const std::function<OracleGroup(int64_t, int64_t)>& group_of) {
    Floats y(static_cast<size_t>(p.rows * p.n));
    for (int64_t m = 0; m < p.rows; ++m) {
      for (int64_t n = 0; n < p.n; ++n) {
        float total = 0;
        for (int64_t g = 0; g < GroupsOf(p); ++g) {
          const float* x = p.x.data() + m * p.x_stride + g * kGroup;
          const int64_t size = std::min(kGroup, p.k - g * kGroup);
          float most = 0;
          for (int64_t i = 0; i < size; ++i) most = std::max(most, std::fabs(x[i]));
          const float factor = most > 1e-30f ? 127.0f / most : 0.0f;
          const float x_scale = most > 1e-30f ? most / 127.0f : 0.0f;
          const OracleGroup w = group_of(n, g);
          int sum = 0, x_sum = 0;
          for (int64_t i = 0; i < size; ++i) {
            const int rounded = static_cast<int>(std::nearbyint(x[i] * factor));
            sum += rounded * Quant(w.quants, i);
            x_sum += rounded;
          }
          total = std::fmaf(static_cast<float>(sum), w.scale * x_scale, total);
          total = std::fmaf(w.offset, x_scale * static_cast<float>(x_sum), total);
        }
        const size_t at = static_cast<size_t>(m * p.n + n);
        if (p.with_bias) total += p.bias[static_cast<size_t>(n)];
        if (p.with_residual) total += p.residual[at];
        y[at] = total;
      }
    }
    return y;
  }

  Floats Expected(const Product& p, const std::vector<Int4Group>& groups) {
    return Expected(p, [&](int64_t n, int64_t g) {
      return OracleGroup(groups[static_cast<size_t>(n * GroupsOf(p) + g)]);
    });
  }
};

class Int4GemmTest : public FourBitGemmTest {
 protected:
  Int4GemmTest() { type_ = WeightType::kInt4; }
};
INSTANTIATE_TEST_SUITE_P(Cpu, Int4GemmTest, kCpuClasses, ClassName);

class Q4KGemmTest : public FourBitGemmTest {
 protected:
  Q4KGemmTest() { type_ = WeightType::kQ4K; }
};
INSTANTIATE_TEST_SUITE_P(Cpu, Q4KGemmTest, kCpuClasses, ClassName);

TEST_P(Int4GemmTest, IsItsDefinitionToTheBit) {
  for (int trial = 0; trial < 30; ++trial) {
    const Product p = Draw(Uniform(1, 90), Uniform(1, 150), Uniform(1, 300));
    Threads two(2);
    std::vector<Int4Group> groups = DrawGroups(p);
    ExpectSameBits(Run(*backend_, p, PackGroups(*backend_, p, groups), two.parallel()),
                   Expected(p, groups), "given groups, trial " + std::to_string(trial));
    for (int64_t n = 0; n < p.n; ++n) {
      for (int64_t g = 0; g < GroupsOf(p); ++g) {
        groups[static_cast<size_t>(n * GroupsOf(p) + g)] =
            RoundToInt4(p.w.data() + n * p.k + g * kGroup, std::min(kGroup, p.k - g * kGroup));
      }
    }
    ExpectSameBits(Run(*backend_, p, Pack(*backend_, p), two.parallel()), Expected(p, groups),
                   "groups of weights, trial " + std::to_string(trial));
  }
}

TEST_P(Q4KGemmTest, IsItsDefinitionToTheBit) {
  for (int trial = 0; trial < 30; ++trial) {
    const Product p = Draw(Uniform(1, 90), Uniform(1, 150), kQ4KBlockSize * Uniform(1, 4));
    Threads two(2);
    const std::vector<Q4KBlock> blocks = DrawBlocks(p);
    const Floats expected = Expected(p, [&](int64_t n, int64_t g) {
      return OracleGroup(blocks[static_cast<size_t>(n * (p.k / kQ4KBlockSize) + g / 8)], g % 8);
    });
    ExpectSameBits(Run(*backend_, p, PackBlocks(*backend_, p, blocks), two.parallel()), expected,
                   "trial " + std::to_string(trial));
  }
}

TEST_P(Q4KGemmTest, ReferenceHoldsTheBlocksValues) {
  const Product p = Draw(1, Uniform(1, 40), kQ4KBlockSize * Uniform(1, 3));
  const std::vector<Q4KBlock> blocks = DrawBlocks(p);
  const Floats packed = PackBlocks(ref_, p, blocks);
  for (int64_t i = 0; i < p.n * p.k; ++i) {
    const Q4KBlock& block = blocks[static_cast<size_t>(i / kQ4KBlockSize)];
    const OracleGroup group(block, i % kQ4KBlockSize / kGroup);
    const float expected =
        group.scale * static_cast<float>(Quant(group.quants, i % kGroup)) + group.offset;
    ASSERT_EQ(packed[static_cast<size_t>(i)], expected) << "weight " << i;
  }
}

TEST_P(Int4GemmTest, AgreesWithDouble) {
  for (int trial = 0; trial < 20; ++trial) {
    const Product p = Draw(Uniform(1, 40), Uniform(1, 100), Uniform(1, 600));
    const Floats y = Run(*backend_, p, Pack(*backend_, p), {});
    // The reference rounds w alone; y with weights of its own tells its size.
    const Floats packed = Pack(ref_, p);
    const Floats expected = Run(ref_, p, packed, {});
    for (int64_t m = 0; m < p.rows; ++m) {
      const float* x = p.x.data() + m * p.x_stride;
      for (int64_t n = 0; n < p.n; ++n) {
        double bound = 0, magnitude = 0;
        for (int64_t g = 0; g < p.k; g += kGroup) {
          // Rounding x moves each element of a group by half a step of the group's at most.
          float most = 0;
          double weights = 0;
          for (int64_t k = g; k < std::min(p.k, g + kGroup); ++k) {
            const double w = std::abs(packed[static_cast<size_t>(n * p.k + k)]);
            most = std::max(most, std::fabs(x[k]));
            weights += w;
            magnitude += std::abs(x[k]) * w;
          }
          bound += most / 254 * weights * 1.0001;
          // Scale times sum and offset times total nearly cancel in a group: 15 steps each at most.
          magnitude += 32.0 * most * weights;
        }
        const size_t at = static_cast<size_t>(m * p.n + n);
        bound += 8 * kUnit * (2 * magnitude + 20 + std::abs(expected[at]));
        ASSERT_NEAR(y[at], expected[at], bound) << "row " << m << " feature " << n;
      }
    }
  }
}

using Int4GroupTest = KernelTest;

TEST_F(Int4GroupTest, EveryHalfIsConvertedExactlyAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    if ((half & 0x7c00) == 0x7c00) continue;
    ASSERT_EQ(HalfToFloat(half), HalfValue(half)) << bits;
    ASSERT_EQ(FloatToHalf(HalfToFloat(half)), half) << bits;
  }
  EXPECT_EQ(FloatToHalf(INFINITY), 0x7bff);
  EXPECT_EQ(FloatToHalf(-1e9f), 0xfbff);
  EXPECT_EQ(FloatToHalf(65519.9f), 0x7bff);
}

TEST_F(Int4GroupTest, FloatsGoToTheNearestHalf) {
  for (int trial = 0; trial < 20000; ++trial) {
    const float value = Normal(1)[0] * std::ldexp(1.0f, static_cast<int>(Uniform(-26, 14)));
    if (std::fabs(value) >= 65504.0f) continue;
    const uint16_t half = FloatToHalf(value);
    const double error = std::abs(HalfValue(half) - value);
    for (const int step : {-1, 1}) {
      const auto next = static_cast<uint16_t>(half + step);
      if ((next & 0x7c00) == 0x7c00 || (next & 0x8000) != (half & 0x8000)) continue;
      ASSERT_LE(error, std::abs(HalfValue(next) - value)) << value;
    }
  }
}

TEST_F(Int4GroupTest, WeightsAreWithinHalfAStep) {
  for (int trial = 0; trial < 2000; ++trial) {
    const int64_t size = Uniform(1, kGroup);
    const Floats w =
        Normal(static_cast<size_t>(size), std::ldexp(1.0f, static_cast<int>(Uniform(-12, 8))));
    const Int4Group group = RoundToInt4(w.data(), size);
    float least = w[0], most = w[0];
    for (int64_t i = 0; i < size; ++i) {
      least = std::min(least, w[static_cast<size_t>(i)]);
      most = std::max(most, w[static_cast<size_t>(i)]);
    }
    // fp16 keeps eleven bits; below 2^-14 multiples of 2^-24. A scale too small by its rounding
    // leaves the largest weight up to fifteen such errors away.
    const double half_error = std::ldexp(std::max(std::abs(least), most - least), -11) + 0x1p-24;
    for (int64_t i = 0; i < size; ++i) {
      ASSERT_NEAR(Int4Value(group, i), w[static_cast<size_t>(i)],
                  (most - least) / 30 * 1.001 + 2 * half_error + 15 * 0x1p-25)
          << "of " << size;
    }
    for (int64_t i = size; i < kGroup; ++i) ASSERT_EQ(Quant(group.quants, i), 0);
  }
}

}  // namespace
}  // namespace tandem::kernels
