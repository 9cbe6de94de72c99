// The last step of products over packed panels, once a tile's sums are fp32: bias and residual, or
// gate. Thread safety: one worker of a call, which writes its own tile of y.
#pragma once

#include "kernels/cpu/activate.h"
#include "kernels/cpu/bf16_rows.h"
#include "kernels/cpu/gemm_plan.h"

namespace tandem::kernels::TANDEM_ISA {

// Where a tile lies in y.
struct TilePlace {
  const GemmArgs* args;
  int64_t row, column;
};

template <int R>
TANDEM_INLINE void StoreSums(const TilePlace& place, const V16 (&sums)[R][2]) {
  const GemmArgs& args = *place.args;
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const int64_t column = place.column + v * kLanes;
    const Mask16 mask = LaneRange(0, args.w.shape.n - column);
    const V16 bias = args.bias == nullptr ? Zero() : LoadMasked(mask, args.bias + column);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      float* y = args.y + (place.row + r) * args.y_stride + column;
      V16 sum = sums[r][v];
      if (args.bias != nullptr) sum = Add(sum, bias);
      if (args.add_to_y) sum = Add(sum, LoadMasked(mask, y));
      StoreMasked(mask, y, sum);
    }
  }
}

template <int R, GateActivation kActivation>
TANDEM_INLINE void StoreGated(const TilePlace& place, const V16 (&sums)[R][2]) {
  const GemmArgs& args = *place.args;
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    Store(args.gated + (place.row + r) * args.y_stride + place.column / 2,
          Mul(Activate<kActivation>(sums[r][0]), sums[r][1]));
  }
}

// The epilogue that the call's arguments ask for.
template <int R>
TANDEM_INLINE void StoreTile(const TilePlace& place, const V16 (&sums)[R][2]) {
  if (place.args->gated == nullptr) {
    StoreSums<R>(place, sums);
  } else if (place.args->activation == GateActivation::kSilu) {
    StoreGated<R, GateActivation::kSilu>(place, sums);
  } else {
    StoreGated<R, GateActivation::kGeluTanh>(place, sums);
  }
}

template <int R, GateActivation kActivation>
TANDEM_INLINE void StoreGatedBf16(const TilePlace& place, const V16 (&sums)[R][2]) {
  const GemmArgs& args = *place.args;
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    StoreBf16(args.gated_bf16 + (place.row + r) * args.y_stride + place.column / 2,
              Mul(Activate<kActivation>(sums[r][0]), sums[r][1]));
  }
}

// The same for bf16 products, whose gate writes bf16.
template <int R>
TANDEM_INLINE void StoreBf16Tile(const TilePlace& place, const V16 (&sums)[R][2]) {
  if (place.args->gated_bf16 == nullptr) {
    StoreSums<R>(place, sums);
  } else if (place.args->activation == GateActivation::kSilu) {
    StoreGatedBf16<R, GateActivation::kSilu>(place, sums);
  } else {
    StoreGatedBf16<R, GateActivation::kGeluTanh>(place, sums);
  }
}

}  // namespace tandem::kernels::TANDEM_ISA
