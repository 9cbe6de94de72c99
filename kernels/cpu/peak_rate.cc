// Implements PeakRate and Int8PeakRate (kernels/cpu/ops.h): the most multiply-adds a second that
// one thread does. From it dispatch.cc decides whether `vdpbf16ps` beats FMA on this processor. Zen
// 4 issues one a cycle, twice the products of an FMA. The Xeons of the Sapphire Rapids generation
// split it into so many steps that FMAs are twice as fast. The ratios, 2 and ½, are far enough from
// 1 for a measurement of a millisecond on a busy machine.
#include <time.h>

#include "kernels/cpu/dot.h"
#include "kernels/cpu/int8_dot.h"
#include "kernels/cpu/ops.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

// Enough chains for two operations per cycle with four cycles' latency; they fit into AVX2's
// sixteen registers.
constexpr int kChains = kHas32Registers ? 12 : 6;
constexpr int kSteps = 2000;
constexpr int kTrials = 9;

double Seconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Sixteen lanes stay in registers between steps, and the compiler knows nothing of their values. Of
// the operands too: it would compute a product of the same two values once, before the loop.
template <typename Lanes>
TANDEM_INLINE void Keep(Lanes& x) {
#if defined(__AVX512F__)
  asm volatile("" : "+v"(x.v));
#else
  asm volatile("" : "+x"(x.low), "+x"(x.high));
#endif
}

// The shortest time of one step of one chain.
template <typename Lanes, typename Operation>
TANDEM_INLINE double TimeOf(const Operation& operation) {
  double best = 1e9;
  for (int trial = 0; trial < kTrials; ++trial) {
    Lanes chains[kChains];
    for (Lanes& chain : chains) chain = Lanes{};
    const double start = Seconds();
    for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
      for (Lanes& chain : chains) {
        chain = operation(chain);
        Keep(chain);
      }
    }
    const double time = (Seconds() - start) / (kChains * kSteps);
    best = time < best ? time : best;
  }
  return best;
}

double TimeOfFma() {
  V16 one = Set1(1.0f);
  return TimeOf<V16>([&](V16 sum) {
    Keep(one);
    return Fma(one, one, sum);
  });
}

}  // namespace

#if defined(__AVX512VNNI__)

double Int8PeakRate() {
  U16 bytes = SetU1(0x01010101u);
  return 64 / TimeOf<U16>([&](U16 sum) {
           Keep(bytes);
           return DotBytes(bytes, bytes, sum);
         });
}

#else

// Without what widens the bytes to halves: products share the widened operands.
double Int8PeakRate() {
  U16 halves = SetU1(0x00010001u);
  return 32 / TimeOf<U16>([&](U16 sum) {
           Keep(halves);
           return DotHalves(halves, halves, sum);
         });
}

#endif

#if defined(__AVX512BF16__)

namespace {

double TimeOfDot() {
  const Pairs16 pairs = BroadcastPair("\0\0\0");
  return TimeOf<V16>([&](V16 sum) { return Dot(pairs, pairs, sum); });
}

}  // namespace

double PeakRate() { return 32 / TimeOfDot(); }
bool DotProductsAreFaster() { return 32 / TimeOfDot() > 16 / TimeOfFma(); }

#else

double PeakRate() { return 16 / TimeOfFma(); }

#endif

}  // namespace tandem::kernels::TANDEM_ISA
