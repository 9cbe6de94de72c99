// Where a thread is in a ring of `kSize` slots in shared memory, whose barriers count phases.
// Thread safety: a value; each thread has its own.
#pragma once

#include "kernels/cuda/simt/simt.h"

namespace tandem::kernels::TANDEM_SIMT {

template <int kSize>
struct RingCursor {
  int stage = 0;   // the slot
  int parity = 0;  // of the slot's phase: it alternates each time the cursor passes the ring's end

  TANDEM_DEVICE void Next() {
    if (++stage == kSize) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace tandem::kernels::TANDEM_SIMT
