// Goal: DivideInRange has the bits of IEEE 754's division over all the numbers that it accepts.
#include <gtest/gtest.h>

#include <cmath>

#include "device_fixture.h"
#include "kernels/cuda/simt/exact_math.h"

namespace tandem::kernels::emulated {
namespace {

class ExactDivisionTest : public DeviceTest {
 protected:
  // A number of [2^low, 2^high): any digits, or as many leading ones or zeros as hit borders.
  float Number(int low, int high) {
    const uint32_t exponent = static_cast<uint32_t>(Uniform(low, high - 1) + 127) << 23;
    uint32_t digits = static_cast<uint32_t>(generator_()) & 0x7fffff;
    if (Uniform(0, 3) == 0) digits = static_cast<uint32_t>(Uniform(0, 7));
    if (Uniform(0, 3) == 0) digits = 0x7fffff - static_cast<uint32_t>(Uniform(0, 7));
    return BitsToFloat(exponent | digits);
  }
};
INSTANTIATE_TEST_SUITE_P(All, ExactDivisionTest, ::testing::Values(DeviceKind::kEmulated),
                         DeviceName);

TEST_P(ExactDivisionTest, EqualsDivisionToTheBit) {
  for (int round = 0; round < 2000; ++round) {
    const float divisor = Number(-20, 20), reciprocal = 1.0f / divisor;
    for (int i = 0; i < 500; ++i) {
      const float x = Number(-60, 60) * (i % 2 == 0 ? 1.0f : -1.0f);
      const float expected = x / divisor, actual = DivideInRange(x, divisor, reciprocal);
      ASSERT_EQ(FloatToBits(actual), FloatToBits(expected)) << x << " / " << divisor;
    }
  }
}

// x / divisor = (m + r / t) / 2^25 with an odd m of 25 bits and a small r: as close as quotients
// come to the middle between two floats.
TEST_P(ExactDivisionTest, RoundsQuotientsNearTheMiddle) {
  constexpr uint64_t kMask = (1u << 25) - 1;
  int tried = 0;
  for (int round = 0; round < 200000; ++round) {
    const uint64_t t = static_cast<uint64_t>(Uniform(1 << 22, (1 << 23) - 1)) * 2 + 1;
    uint64_t inverse = t;  // of t modulo 2^25: each step doubles the right bits, three at first
    for (int step = 0; step < 4; ++step) inverse *= 2 - t * inverse;
    for (const int64_t r : {-3, -1, 1, 3}) {
      const uint64_t m = (inverse * static_cast<uint64_t>(-r)) & kMask;
      if (m < 1 << 24) continue;
      const uint64_t product = m * t + static_cast<uint64_t>(r);
      ASSERT_EQ(product & kMask, 0u);
      const float x = static_cast<float>(product >> 25) * 0x1p-20f;
      const float divisor = static_cast<float>(t) * 0x1p-23f;
      const float expected = x / divisor, actual = DivideInRange(x, divisor, 1.0f / divisor);
      ASSERT_EQ(FloatToBits(actual), FloatToBits(expected)) << x << " / " << divisor;
      ++tried;
    }
  }
  EXPECT_GT(tried, 100000);
}

}  // namespace
}  // namespace tandem::kernels::emulated
