// Walks the rows of weights that pack_rows is given, one after another, together with their places
// in the panels of packed weights. Thread safety: one thread; different threads may walk different
// rows.
#pragma once

#include "kernels/cpu/gemm_plan.h"

namespace tandem::kernels::TANDEM_ISA {

// Calls pack(i, lane, panel) for each row: the i-th of args.rows, which becomes feature `lane` of
// the panel at `panel`. With the matrix's last rows come those that pad its last panel, for which i
// is not below args.num_rows.
template <typename Pack>
TANDEM_INLINE void ForEachPanelRow(const PackRowsArgs& args, int64_t panel_bytes,
                                   const Pack& pack) {
  const int64_t given = args.first_row + args.num_rows;
  const int64_t end = given == args.shape.n ? CeilDiv(given, kPanel) * kPanel : given;
  for (int64_t n = args.first_row; n < end; ++n) {
    pack(n - args.first_row, n % kPanel,
         static_cast<char*>(args.packed) + n / kPanel * panel_bytes);
  }
}

// The i-th row; nullptr for one that pads.
TANDEM_INLINE const float* PanelRow(const PackRowsArgs& args, int64_t i) {
  return i < args.num_rows ? args.rows + i * args.shape.k : nullptr;
}

}  // namespace tandem::kernels::TANDEM_ISA
