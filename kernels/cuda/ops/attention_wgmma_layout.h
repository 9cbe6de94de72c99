// The shared memory and threads of a block of attention on Hopper (attention_wgmma.cu), for one
// head_dim and tile size: plain host code. docs/kernels/attention_hopper.md has the sums.
// Thread safety: pure functions.
#pragma once

#include <cstddef>

#include "kernels/cuda/hopper_types.h"
#include "kernels/cuda/ops/attention_wgmma_tile.h"
#include "kernels/cuda/ops/attention_work.h"

namespace tandem::kernels::TANDEM_SIMT {

inline constexpr int kTilePanelBytes = 64 * kPanelRowBytes;  // of 64 vectors, or of 64 tokens
inline constexpr int kPostedWorks = 2;                       // in shared memory at a time
inline constexpr int kPiecesMax = kWarpgroupTokens / 16;     // blocks of the cache in a sub-tile

// The shared memory and threads of a block, for one head_dim and tile size.
struct AttentionLayout {
  int head_dim;
  bool narrow;

  constexpr int panels() const { return head_dim / kPanelColumns; }
  constexpr int stages() const { return head_dim == 64 || (head_dim == 128 && !narrow) ? 4 : 2; }
  constexpr int consumers() const { return narrow || head_dim == 256 ? 1 : 2; }
  // The producer needs one thread; setmaxnreg wants it in a warpgroup.
  constexpr int threads() const {
    return consumers() * kWarpgroupSize + (moves_registers() ? kWarpgroupSize : kWarpSize);
  }
  constexpr int blocks_per_multiprocessor() const { return narrow && head_dim <= 128 ? 2 : 1; }

  // Two consumers keep the total of partitions in registers that the producer gives up.
  constexpr bool moves_registers() const { return consumers() == 2; }
  constexpr int producer_registers() const { return moves_registers() ? 40 : 0; }
  constexpr int consumer_registers() const { return moves_registers() ? 232 : 0; }
  // Otherwise the total lies in shared memory, for the threads that have vectors.
  constexpr int total_threads() const { return narrow ? kWarpSize : kWarpgroupSize; }
  constexpr int total_bytes() const {
    return moves_registers() ? 0 : head_dim / 2 * total_threads() * 4;
  }

  constexpr int tile_bytes() const { return panels() * kTilePanelBytes; }  // of q, K or V
  constexpr int stages_at() const { return consumers() * tile_bytes(); }
  constexpr int total_at() const { return stages_at() + stages() * 2 * tile_bytes(); }
  constexpr int barriers_at() const { return total_at() + total_bytes(); }
  constexpr int work_barriers_at() const { return barriers_at() + stages() * 4 * 8; }
  constexpr int works_at() const { return work_barriers_at() + kPostedWorks * 2 * 8; }
  constexpr size_t shared_bytes() const {
    return works_at() + kPostedWorks * sizeof(AttentionWork) + kPanelSlack;
  }
};

}  // namespace tandem::kernels::TANDEM_SIMT
