// QK-norm, RoPE, rounding, and the write of K and V into the paged cache
// (kernels/api/device_rope_kv.h): vLLM's reshape_and_cache and the steps before it.
//
//   q, k:  [x / sqrt(mean(x²) + eps) · weight]  then  (x₁, x₂) → (x₁·cos − x₂·sin, x₂·cos + x₁·sin)
//   with x₁ the first, x₂ the second half of a head; v is only rounded. q is rounded to bf16; K and
//   V to bf16, or to x·(largest code / max |x|) as int8 or e4m3 beside the scale max |x| / largest
//   code.
// Grid: x = rows, y = groups of heads of q|k|v; a warp has a few heads of one row, which share its
// angles. Lane i holds elements i, i + 32, … so that both halves of a pair lie in one lane (heads
// of 16 and 32 elements: in two). Bound by memory: reads qkv once, writes q, k and v once; of few
// rows by latency, so what the host wrote is read while the kernel before ends.
#include "kernels/api/bf16.h"
#include "kernels/api/device_attention.h"
#include "kernels/api/device_rope_kv.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/simt/byte_codes.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr int kWarps = 8;  // of a block

struct RopeKvParams : DeviceRopeKvArgs {
  int64_t slab_bytes;
  int block_shift;  // log₂ of block_tokens
};

template <int kHeadDim>
struct RopeKvKernel : EarlyStart {
  using Params = RopeKvParams;
  static constexpr const char* kName = "rope_kv kernel";
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kElements = kHeadDim < kWarpSize ? 1 : kHeadDim / kWarpSize;  // of a lane
  static constexpr int kHeads = kElements < 2 ? 4 : 8 / kElements;                   // of a warp
  static constexpr int kHeadsPerBlock = kWarps * kHeads;
  // Of angles: one for each pair of elements, or for each element where a pair lies in two lanes.
  static constexpr int kAngles = kElements < 2 ? 1 : kElements / 2;

  struct Angles {
    float cos[kAngles], sin[kAngles];
  };

  TANDEM_KERNEL bool HasElement(int e) {
    return kHeadDim >= kWarpSize || e * kWarpSize + LaneIndex() < kHeadDim;
  }

  TANDEM_KERNEL void Load(const float* from, float (&x)[kElements]) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      x[e] = HasElement(e) ? from[e * kWarpSize + LaneIndex()] : 0.0f;
    }
  }

  TANDEM_KERNEL Angles LoadAngles(const Params& p, int position) {
    constexpr int kHalf = kHeadDim / 2;
    const int64_t first = int64_t{position} * kHalf;
    Angles angles;
#pragma unroll
    for (int a = 0; a < kAngles; ++a) {
      const int i = (a * kWarpSize + LaneIndex()) % kHalf;
      angles.cos[a] = p.cos[first + i];
      angles.sin[a] = p.sin[first + i];
    }
    return angles;
  }

  TANDEM_KERNEL void Normalise(float (&x)[kElements], const float* weight, float eps) {
    float squares = 0;
#pragma unroll
    for (int e = 0; e < kElements; ++e) squares = Fma(x[e], x[e], squares);
    squares = WarpSum(squares);
    const float factor = 1.0f / Sqrt(squares / static_cast<float>(kHeadDim) + eps);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (HasElement(e)) x[e] = Mul(Mul(x[e], factor), weight[e * kWarpSize + LaneIndex()]);
    }
  }

  // Pairs are elements e and e + kElements / 2 of a lane. Heads of at most 32 elements have one in
  // each lane; the other element of a pair is half a head away.
  TANDEM_KERNEL void Rotate(const Angles& angles, float (&x)[kElements]) {
    if constexpr (kElements == 1) {
      const float other = ShuffleXor(x[0], kHeadDim / 2);
      const float sine = LaneIndex() < kHeadDim / 2 ? -angles.sin[0] : angles.sin[0];
      x[0] = Add(Mul(x[0], angles.cos[0]), Mul(other, sine));
    } else {
#pragma unroll
      for (int e = 0; e < kAngles; ++e) {
        const float c = angles.cos[e], s = angles.sin[e], first = x[e], second = x[e + kAngles];
        x[e] = Add(Mul(first, c), -Mul(second, s));
        x[e + kAngles] = Add(Mul(second, c), Mul(first, s));
      }
    }
  }

  // The slab of K or V of one head in the block of `slot`.
  TANDEM_KERNEL char* SlabOf(const Params& p, int64_t slot, int head) {
    const KvShape& shape = p.layer.shape;
    const int value = head >= p.num_heads + shape.num_kv_heads ? 1 : 0;
    const int kv_head = head - p.num_heads - value * shape.num_kv_heads;
    return static_cast<char*>(p.layer.base) + (slot >> p.block_shift) * p.layer.block_stride_bytes +
           (kv_head * 2 + value) * p.slab_bytes;
  }

  TANDEM_KERNEL void StoreBf16(const float (&x)[kElements], Bf16Bits* to) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (HasElement(e)) to[e * kWarpSize + LaneIndex()] = ToBf16(x[e]).bits;
    }
  }

  // Writes one token's codes and scale into a slab of tiles of 16 tokens.
  TANDEM_KERNEL void StoreCodes(const Params& p, const float (&x)[kElements], int token,
                                char* slab) {
    const KvType type = p.layer.shape.type;
    float most = 0;
#pragma unroll
    for (int e = 0; e < kElements; ++e) most = Max(most, Max(x[e], -x[e]));
    most = WarpMax(most);
    const float largest = LargestKvCode(type);
    const bool zeros = !(most > kSmallestKvMagnitude);
    const float factor = zeros ? 0.0f : largest / most;
    char* tile = slab + token / 16 * (16 * (kHeadDim + 4));
    uint8_t* to = reinterpret_cast<uint8_t*>(tile) + token % 16 * kHeadDim;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const float scaled = Mul(x[e], factor);
      if (!HasElement(e)) continue;
      to[e * kWarpSize + LaneIndex()] =
          type == KvType::kInt8 ? ToInt8Code(scaled) : ToFp8Code(scaled);
    }
    if (LaneIndex() == 0) {
      reinterpret_cast<float*>(tile + 16 * kHeadDim)[token % 16] = zeros ? 0.0f : most / largest;
    }
  }

  // What the host wrote of a row: the first of its elements in q, its cache slot and its angles.
  struct Row {
    int64_t index, slot;
    Angles angles;
  };

  // Writes a head of q to q, and a head of K or V to the cache. Padding rows have no cache slot.
  TANDEM_KERNEL void Store(const Params& p, const Row& row, int head, const float (&x)[kElements]) {
    if (head < p.num_heads) {
      StoreBf16(x, p.q + (row.index * p.num_heads + head) * kHeadDim);
      return;
    }
    if (row.slot < 0) return;
    const int token = static_cast<int>(row.slot) & ((1 << p.block_shift) - 1);
    char* slab = SlabOf(p, row.slot, head);
    if (HasKvScales(p.layer.shape.type)) {
      StoreCodes(p, x, token, slab);
    } else {
      StoreBf16(x, reinterpret_cast<Bf16Bits*>(slab) + token * kHeadDim);
    }
  }

  TANDEM_KERNEL void Finish(const Params& p, const Row& row, int head, float (&x)[kElements]) {
    if (head < p.num_heads + p.layer.shape.num_kv_heads) {
      const float* weight = head < p.num_heads ? p.q_norm : p.k_norm;
      if (weight != nullptr) Normalise(x, weight, p.eps);
      Rotate(row.angles, x);
    }
    Store(p, row, head, x);
  }

  TANDEM_KERNEL void Run(const Params& p) {
    const int heads = p.num_heads + 2 * p.layer.shape.num_kv_heads;
    const int first = (BlockY() * kWarps + WarpIndex()) * kHeads;
    if (first >= heads) return;
    const int64_t index = BlockX();
    const Row row = {index, p.slots[index], LoadAngles(p, p.positions[index])};
    const float* from = p.qkv + (index * heads + first) * kHeadDim;
    WaitForPredecessor();
    float x[kHeads][kElements];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (first + h < heads) Load(from + h * kHeadDim, x[h]);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (first + h < heads) Finish(p, row, first + h, x[h]);
    }
  }
};

template <int kHeadDim>
void LaunchRopeKv(const RopeKvParams& params, DeviceStream& stream) {
  using Kernel = RopeKvKernel<kHeadDim>;
  const int heads = params.num_heads + 2 * params.layer.shape.num_kv_heads;
  Launch<Kernel>({.x = params.rows,
                  .y = (heads + Kernel::kHeadsPerBlock - 1) / Kernel::kHeadsPerBlock,
                  .threads = Kernel::kThreads},
                 params, stream);
}

}  // namespace

void RopeKv(const DeviceRopeKvArgs& args, DeviceStream& stream) {
  const KvShape& shape = args.layer.shape;
  KERNEL_REQUIRE(IsDeviceHeadDim(shape.head_dim));
  KERNEL_REQUIRE(shape.type != KvType::kF32);
  int block_shift = 0;
  while (1 << block_shift < shape.block_tokens) ++block_shift;
  KERNEL_REQUIRE(1 << block_shift == shape.block_tokens);
  const RopeKvParams params = {args, static_cast<int64_t>(KvSlabBytes(shape)), block_shift};
  if (shape.head_dim == 16) LaunchRopeKv<16>(params, stream);
  if (shape.head_dim == 32) LaunchRopeKv<32>(params, stream);
  if (shape.head_dim == 64) LaunchRopeKv<64>(params, stream);
  if (shape.head_dim == 128) LaunchRopeKv<128>(params, stream);
  if (shape.head_dim == 256) LaunchRopeKv<256>(params, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
