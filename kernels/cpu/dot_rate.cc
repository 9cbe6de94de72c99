// Whether `vdpbf16ps` beats FMA here. Zen 4 issues one a cycle, twice the products of an FMA; the
// Xeons of the Sapphire Rapids generation take it apart into so many steps that FMAs win twice
// over. The ratios, 2 and ½, are far enough from 1 for a measurement of a millisecond on a busy
// machine.
#include <time.h>

#include "kernels/cpu/dot.h"

#if defined(__AVX512BF16__)

namespace tandem::kernels::TANDEM_ISA {
namespace {

constexpr int kChains = 12;
constexpr int kSteps = 2000;
constexpr int kTrials = 9;

double Seconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// The time of kChains · kSteps operations.
template <typename Operation>
TANDEM_INLINE double TimeOf(const Operation& operation) {
  V16 chains[kChains];
  for (V16& chain : chains) chain = Zero();
  const double start = Seconds();
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (V16& chain : chains) {
      chain = operation(chain);
      asm volatile("" : "+v"(chain.v));
    }
  }
  return Seconds() - start;
}

}  // namespace

bool DotProductsAreFaster() {
  double dot = 1e9, fma = 1e9;
  const Pairs16 pairs = BroadcastPair("\0\0\0");
  const V16 one = Set1(1.0f);
  for (int trial = 0; trial < kTrials; ++trial) {
    const double dot_now = TimeOf([&](V16 sum) { return Dot(pairs, pairs, sum); });
    const double fma_now = TimeOf([&](V16 sum) { return Fma(one, one, sum); });
    dot = dot_now < dot ? dot_now : dot;
    fma = fma_now < fma ? fma_now : fma;
  }
  return dot < 2 * fma;
}

}  // namespace tandem::kernels::TANDEM_ISA

#endif
