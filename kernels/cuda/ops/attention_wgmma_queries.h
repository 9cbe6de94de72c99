// How a consumer of attention on Hopper (attention_wgmma.cu) brings its queries into shared memory.
// Thread safety: device functions, called by all threads of a warpgroup together.
#pragma once

#include "kernels/api/bf16.h"
#include "kernels/api/device_attention.h"
#include "kernels/cuda/ops/attention_wgmma_layout.h"
#include "kernels/cuda/ops/attention_work.h"
#include "kernels/cuda/simt/hopper.h"
#include "kernels/cuda/simt/swizzle.h"

namespace tandem::kernels::TANDEM_SIMT {

// Sixteen bytes, which a thread moves at a time.
struct Chunk {
  alignas(16) uint32_t words[4];
};

// Brings 64 vectors of the work, from `first_vector` on, into panels at `queries`; zeros beyond its
// last. All threads of the consumer, one of kConsumers, call this.
template <int kHeadDim, int kConsumers>
TANDEM_DEVICE void LoadQueries(const DeviceAttentionArgs& args, const AttentionWork& work,
                               int first_vector, char* queries) {
  // Up to eight loads of a thread are under way before the first value is stored.
  constexpr int kChunks = kHeadDim / 8;
  constexpr int kEach = kWarpgroupVectors * kChunks / kWarpgroupSize;
  constexpr int kTogether = kEach < 8 ? kEach : 8;
  // After this no thread multiplies with the last work's queries any more.
  SyncWarpgroup<kConsumers>();
#pragma unroll 1  // registers are scarce
  for (int part = 0; part < kEach; part += kTogether) {
    const int first = ThreadIndex() % kWarpgroupSize + part * kWarpgroupSize;
    Chunk values[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = first + j * kWarpgroupSize;
      const int vector = first_vector + i / kChunks;
      values[j] = {{0, 0, 0, 0}};
      if (vector < work.end_vector) {
        values[j] = *reinterpret_cast<const Chunk*>(args.q + work.RowOf(args, vector) * kHeadDim +
                                                    i % kChunks * 8);
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = first + j * kWarpgroupSize;
      const int r = i / kChunks, chunk = i % kChunks;
      *reinterpret_cast<Chunk*>(queries + chunk / 8 * kTilePanelBytes +
                                SwizzledOffset<8>(r, chunk % 8)) = values[j];
    }
  }
  FenceProxyAsync();
  SyncWarpgroup<kConsumers>();
}

}  // namespace tandem::kernels::TANDEM_SIMT
