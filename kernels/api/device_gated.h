// The gated activation on a device: y = act(gate) · up for each element, rounded to bf16.
// DeviceOps::gated enqueues it. A product's epilogue can do the same with the same bits
// (DeviceGemmArgs::gated).
//
// All pointers are device memory, except where a comment says otherwise; the caller owns that
// memory and keeps it unchanged until the enqueued work is done. Thread safety: the stream's.
// Errors: the stream's status; a broken REQUIRES ends the process.
#pragma once

#include <cstdint>

#include "kernels/api/bf16.h"
#include "kernels/api/elementwise.h"

namespace tandem::kernels {

struct DeviceGatedArgs {
  GateActivation activation = GateActivation::kSilu;
  const float* gate_up = nullptr;  // [rows][2 · size]: gate, up
  int32_t rows = 0;
  int32_t size = 0;
  Bf16Bits* y = nullptr;  // [rows][size]
};

}  // namespace tandem::kernels
