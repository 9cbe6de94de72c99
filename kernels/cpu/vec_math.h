// exp, log and the functions built on them, on sixteen lanes. Every CPU kernel uses these and no
// others, so every path through a model agrees to the bit. Errors are a few units in the last
// place; tests in tests/differential/kernels measure them against double. Thread safety: pure
// functions.
#pragma once

#include "kernels/cpu/v16.h"

namespace tandem::kernels::TANDEM_ISA {

// Evaluates c[0]·x^(N-1) + … + c[N-1] by Horner's rule.
template <int N>
TANDEM_INLINE V16 Polynomial(const float (&c)[N], V16 x) {
  V16 sum = Set1(c[0]);
#pragma GCC unroll 16
  for (int i = 1; i < N; ++i) sum = Fma(sum, x, Set1(c[i]));
  return sum;
}

// e^x. Exactly 0 below -87.33 (so e^-inf = 0), saturates at e^88.02; NaN stays NaN.
// Method: x = n·ln 2 + r with |r| ≤ ln 2 / 2, a degree-6 minimax polynomial in r (Cephes' expf
// coefficients), and 2^n put together from bits.
TANDEM_INLINE V16 Exp(V16 x) {
  constexpr float kCoefficients[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                     4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  V16 lowest = Set1(-87.33f);
  V16 clamped = Min(Set1(88.02f), Max(lowest, x));
  V16 n = RoundNearest(Mul(clamped, Set1(1.44269504088896341f)));
  V16 r = Fma(n, Set1(-0.693359375f), clamped);
  r = Fma(n, Set1(2.12194440e-4f), r);
  V16 y = Add(Fma(Polynomial(kCoefficients, r), Mul(r, r), r), Set1(1.0f));
  V16 power = FromBits(ShiftLeftU<23>(AddU(ToInt(n), SetU1(127))));
  return Select(Less(x, lowest), Zero(), Mul(y, power));
}

// log x for positive normal x. Method: x = m·2^e with m in [√½, √2), a degree-8 polynomial in m - 1
// (Cephes' logf coefficients).
TANDEM_INLINE V16 Log(V16 x) {
  constexpr float kCoefficients[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                     -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                     2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  U16 bits = BitsOf(x);
  V16 e = Sub(FromInt(ShiftRightU<23>(bits)), Set1(126.0f));
  V16 m = FromBits(XorU(AndU(bits, SetU1(0x007fffffu)), SetU1(0x3f000000u)));
  Mask16 small = Less(m, Set1(0.707106781186547524f));
  e = Sub(e, Select(small, Set1(1.0f), Zero()));
  m = Sub(Add(m, Select(small, m, Zero())), Set1(1.0f));
  V16 square = Mul(m, m);
  V16 y = Mul(Mul(Polynomial(kCoefficients, m), m), square);
  y = Fma(e, Set1(-2.12194440e-4f), y);
  y = Fma(square, Set1(-0.5f), y);
  return Fma(e, Set1(0.693359375f), Add(m, y));
}

// -log(1 - v) for v in (0, 1 - 2^-24], accurate however small v is: log(y)·v/(1-y) with y = 1 - v
// rounded, whose own rounding cancels (Kahan).
TANDEM_INLINE V16 NegLog1pNeg(V16 v) {
  V16 one = Set1(1.0f);
  V16 y = Sub(one, v);
  V16 rest = Sub(one, y);
  Mask16 tiny = LessEqual(rest, Zero());
  V16 scaled = Mul(Log(y), Div(v, Select(tiny, one, rest)));
  return Select(tiny, v, Sub(Zero(), scaled));
}

// 1 / (1 + e^-x).
TANDEM_INLINE V16 Sigmoid(V16 x) {
  V16 one = Set1(1.0f);
  return Div(one, Add(one, Exp(Sub(Zero(), x))));
}

// Lane 0.
TANDEM_INLINE float First(V16 x) { return _mm_cvtss_f32(_mm256_castps256_ps128(LowHalf(x))); }

}  // namespace tandem::kernels::TANDEM_ISA
