// The activations of gated feed-forward layers. The operator on rows and a product's epilogue share
// this one function, so both give the same bits. Thread safety: pure functions.
#pragma once

#include "kernels/api/elementwise.h"
#include "kernels/cuda/simt/simt.h"

namespace tandem::kernels::TANDEM_SIMT {

// act(gate) · up. Every rounding is explicit, so that no compiler contracts it into an fma in one
// kernel only.
TANDEM_DEVICE float Gate(GateActivation activation, float gate, float up) {
  if (activation == GateActivation::kSilu) return Mul(gate / Add(1.0f, Exp(-gate)), up);
  constexpr float kRoot2OverPi = 0.7978845608028654f;
  const float cubic = Fma(Mul(Mul(gate, gate), gate), 0.044715f, gate);
  return Mul(Mul(Mul(0.5f, gate), Add(1.0f, Tanh(Mul(kRoot2OverPi, cubic)))), up);
}

}  // namespace tandem::kernels::TANDEM_SIMT
