// The activations of gated feed-forward layers: the only implementation of a class, so the operator
// on rows and a product's epilogue give the same bits. Thread safety: pure functions.
#pragma once

#include "kernels/api/elementwise.h"
#include "kernels/cpu/vec_math.h"

namespace tandem::kernels::TANDEM_ISA {

template <GateActivation kActivation>
TANDEM_INLINE V16 Activate(V16 g) {
  if constexpr (kActivation == GateActivation::kSilu) return Mul(g, Sigmoid(g));
  // 0.5·(1 + tanh z) = sigmoid(2z), without the cancellation of 1 + tanh.
  constexpr float kTwiceSqrt2OverPi = 1.5957691216057308f;
  V16 cubic = Fma(Mul(Mul(g, g), g), Set1(0.044715f), g);
  return Mul(g, Sigmoid(Mul(cubic, Set1(kTwiceSqrt2OverPi))));
}

}  // namespace tandem::kernels::TANDEM_ISA
