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

}  // namespace
}  // namespace tandem::kernels::emulated
