// exp and log for choosing tokens, with the bits of the CPU classes (kernels/cpu/vec_math.h): the
// same polynomials in the same order of roundings, so a device and a host draw the same token and
// report the same log-probabilities from the same logits. IEEE 754 rounds every operation here
// correctly. Attention and the activations have faster functions of their own. Thread safety: pure
// functions.
#pragma once

#include "kernels/cuda/simt/simt.h"

namespace tandem::kernels::TANDEM_SIMT {

// c[0]·x^(N-1) + … + c[N-1] by Horner's rule.
template <int N>
TANDEM_DEVICE float ExactPolynomial(const float (&c)[N], float x) {
  float sum = c[0];
#pragma unroll
  for (int i = 1; i < N; ++i) sum = Fma(sum, x, c[i]);
  return sum;
}

// e^x. Exactly 0 below -87.33, saturates at e^88.02. REQUIRES: x is not NaN.
TANDEM_DEVICE float ExactExp(float x) {
  constexpr float kCoefficients[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                     4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  constexpr float kLowest = -87.33f;
  const float clamped = Min(88.02f, Max(kLowest, x));
  const float n = RoundNearest(Mul(clamped, 1.44269504088896341f));
  float r = Fma(n, -0.693359375f, clamped);
  r = Fma(n, 2.12194440e-4f, r);
  const float y = Add(Fma(ExactPolynomial(kCoefficients, r), Mul(r, r), r), 1.0f);
  const uint32_t exponent = static_cast<uint32_t>(static_cast<int32_t>(n) + 127);
  return x < kLowest ? 0.0f : Mul(y, BitsToFloat(exponent << 23));
}

// log x for positive normal x.
TANDEM_DEVICE float ExactLog(float x) {
  constexpr float kCoefficients[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                     -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                     2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  const uint32_t bits = FloatToBits(x);
  float e = Add(static_cast<float>(static_cast<int32_t>(bits >> 23)), -126.0f);
  float m = BitsToFloat((bits & 0x007fffffu) ^ 0x3f000000u);
  const bool small = m < 0.707106781186547524f;
  e = Add(e, small ? -1.0f : 0.0f);
  m = Add(Add(m, small ? m : 0.0f), -1.0f);
  const float square = Mul(m, m);
  float y = Mul(Mul(ExactPolynomial(kCoefficients, m), m), square);
  y = Fma(e, -2.12194440e-4f, y);
  y = Fma(square, -0.5f, y);
  return Fma(e, 0.693359375f, Add(m, y));
}

// x / divisor, correctly rounded, without the checks of Divide: the second step rounds as IEEE 754
// asks (Markstein 1990), because the first leaves a quotient within one unit in the last place and
// no intermediate result underflows.
// REQUIRES: reciprocal = Divide(1, divisor), 2^-20 ≤ divisor ≤ 2^20, and 2^-60 ≤ |x| ≤ 2^60.
TANDEM_DEVICE float DivideInRange(float x, float divisor, float reciprocal) {
  float quotient = Mul(x, reciprocal);
  quotient = Fma(Fma(-divisor, quotient, x), reciprocal, quotient);
  return Fma(Fma(-divisor, quotient, x), reciprocal, quotient);
}

// -log(1 - v) for v in (0, 1 - 2^-24].
TANDEM_DEVICE float ExactNegLog1pNeg(float v) {
  const float y = Add(1.0f, -v);
  const float rest = Add(1.0f, -y);
  if (rest <= 0.0f) return v;
  return -Mul(ExactLog(y), Divide(v, rest));
}

}  // namespace tandem::kernels::TANDEM_SIMT
