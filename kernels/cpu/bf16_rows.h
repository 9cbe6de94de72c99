// Rounds activations for products that take them in bf16: sixteen fp32 lanes to nearest even. With
// AVX512-BF16 this is one instruction, which turns subnormals into zeros; elsewhere it is integer
// operations that keep them. Thread safety: pure functions.
#pragma once

#include "kernels/cpu/dot.h"
#include "kernels/cpu/tile_registers.h"

namespace tandem::kernels::TANDEM_ISA {

#if defined(__AVX512BF16__)

inline constexpr bool kTakesBf16 = true;

#else

// Whether the class's operators read and write bf16 activations (Backend::dot_products).
inline constexpr bool kTakesBf16 = kHasTiles;

// In the low halves of lanes; a NaN stays a (quiet) NaN.
TANDEM_INLINE U16 RoundToBf16Lanes(V16 x) {
  const U16 bits = BitsOf(x), high = ShiftRightU<16>(bits);
  const U16 up = AddU(AndU(high, SetU1(1)), SetU1(0x7fff));
  const U16 rounded = ShiftRightU<16>(AddU(bits, up));
  const U16 quiet = XorU(AndU(high, SetU1(~0x40u)), SetU1(0x40));
  return BitsOf(Select(LessEqual(x, x), FromBits(rounded), FromBits(quiet)));
}
TANDEM_INLINE void StoreBf16(uint16_t* p, V16 x) { StoreHalves(p, RoundToBf16Lanes(x)); }
TANDEM_INLINE void StoreBf16Masked(Mask16 mask, uint16_t* p, V16 x) {
  StoreHalvesMasked(mask, p, RoundToBf16Lanes(x));
}

#endif

TANDEM_INLINE void StoreBf16Masked(AllLanes, uint16_t* p, V16 x) { StoreBf16(p, x); }

}  // namespace tandem::kernels::TANDEM_ISA
