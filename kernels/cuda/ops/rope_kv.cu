// QK-norm, RoPE, rounding, and the write of K and V into the paged cache
// (kernels/api/device_rope_kv.h): vLLM's reshape_and_cache and the steps before it.
//
//   q, k:  [x / sqrt(mean(x²) + eps) · weight]  then  (x₁, x₂) → (x₁·cos − x₂·sin, x₂·cos + x₁·sin)
//   with x₁ the first, x₂ the second half of a head; v is only rounded. q is rounded to bf16; K and
//   V to bf16, or to x·(largest code / max |x|) as int8 or e4m3 beside the scale max |x| / largest
//   code.
// Grid: x = rows, y = groups of eight heads of q|k|v, a warp for each head. Lane i holds elements
// i, i + 32, … so that both halves of a pair lie in one lane (head_dim is a multiple of 64). Bound
// by memory: reads qkv once, writes q, k and v once.
#include "kernels/api/bf16.h"
#include "kernels/api/device_attention.h"
#include "kernels/api/device_rope_kv.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/simt/byte_codes.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr int kHeadsPerBlock = 8;
constexpr int kHeadDimMax = 256;

struct RopeKvParams : DeviceRopeKvArgs {
  int64_t slab_bytes;
};

struct RopeKvKernel {
  using Params = RopeKvParams;
  static constexpr const char* kName = "rope_kv kernel";
  static constexpr int kThreads = kHeadsPerBlock * kWarpSize;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kElements = kHeadDimMax / kWarpSize;

  TANDEM_KERNEL void Normalise(float x[kElements], int head_dim, const float* weight, float eps) {
    float squares = 0;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (e * kWarpSize < head_dim) squares = Fma(x[e], x[e], squares);
    }
    squares = WarpSum(squares);
    const float factor = 1.0f / Sqrt(squares / static_cast<float>(head_dim) + eps);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int i = e * kWarpSize + LaneIndex();
      if (i < head_dim) x[e] = Mul(Mul(x[e], factor), weight[i]);
    }
  }

  // Pairs are elements e and e + kHalf of a lane.
  template <int kHalf>
  TANDEM_KERNEL void Rotate(float x[kElements], const float* cos, const float* sin) {
#pragma unroll
    for (int e = 0; e < kHalf; ++e) {
      const int i = e * kWarpSize + LaneIndex();
      const float c = cos[i], s = sin[i], first = x[e], second = x[e + kHalf];
      x[e] = Add(Mul(first, c), -Mul(second, s));
      x[e + kHalf] = Add(Mul(second, c), Mul(first, s));
    }
  }

  // Heads of at most 32 elements have one in each lane; the other element of a pair is half a head
  // away.
  TANDEM_KERNEL void RotateAcross(float x[kElements], int half, const float* cos,
                                  const float* sin) {
    const float other = ShuffleXor(x[0], half);
    const int i = LaneIndex() % half;
    const float sine = LaneIndex() < half ? -sin[i] : sin[i];
    x[0] = Add(Mul(x[0], cos[i]), Mul(other, sine));
  }

  // The slab of K or V of one head in the block of `slot`.
  TANDEM_KERNEL char* SlabOf(const Params& p, int64_t slot, int head) {
    const KvShape& shape = p.layer.shape;
    const int value = head >= p.num_heads + shape.num_kv_heads ? 1 : 0;
    const int kv_head = head - p.num_heads - value * shape.num_kv_heads;
    return static_cast<char*>(p.layer.base) +
           slot / shape.block_tokens * p.layer.block_stride_bytes +
           (kv_head * 2 + value) * p.slab_bytes;
  }

  TANDEM_KERNEL void StoreBf16(const float x[kElements], int head_dim, Bf16Bits* to) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int i = e * kWarpSize + LaneIndex();
      if (i < head_dim) to[i] = ToBf16(x[e]).bits;
    }
  }

  // Writes one token's codes and scale into a slab of tiles of 16 tokens.
  TANDEM_KERNEL void StoreCodes(const Params& p, const float x[kElements], int token, char* slab) {
    const int head_dim = p.layer.shape.head_dim;
    const KvType type = p.layer.shape.type;
    float most = 0;
#pragma unroll
    for (int e = 0; e < kElements; ++e) most = Max(most, Max(x[e], -x[e]));
    most = WarpMax(most);
    const float largest = LargestKvCode(type);
    const bool zeros = !(most > kSmallestKvMagnitude);
    const float factor = zeros ? 0.0f : largest / most;
    char* tile = slab + token / 16 * (16 * (head_dim + 4));
    uint8_t* to = reinterpret_cast<uint8_t*>(tile) + token % 16 * head_dim;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int i = e * kWarpSize + LaneIndex();
      const float scaled = Mul(x[e], factor);
      if (i < head_dim) to[i] = type == KvType::kInt8 ? ToInt8Code(scaled) : ToFp8Code(scaled);
    }
    if (LaneIndex() == 0) {
      reinterpret_cast<float*>(tile + 16 * head_dim)[token % 16] = zeros ? 0.0f : most / largest;
    }
  }

  // Writes a head of q to q, and a head of K or V to the cache. Padding rows have no cache slot.
  TANDEM_KERNEL void Store(const Params& p, const float x[kElements], int64_t row, int head) {
    const KvShape& shape = p.layer.shape;
    if (head < p.num_heads) {
      StoreBf16(x, shape.head_dim, p.q + (row * p.num_heads + head) * shape.head_dim);
      return;
    }
    const int64_t slot = p.slots[row];
    if (slot < 0) return;
    const int token = static_cast<int>(slot % shape.block_tokens);
    char* slab = SlabOf(p, slot, head);
    if (HasKvScales(shape.type)) {
      StoreCodes(p, x, token, slab);
    } else {
      StoreBf16(x, shape.head_dim, reinterpret_cast<Bf16Bits*>(slab) + token * shape.head_dim);
    }
  }

  TANDEM_KERNEL void Run(const Params& p) {
    const int head_dim = p.layer.shape.head_dim;
    const int num_kv_heads = p.layer.shape.num_kv_heads;
    const int all_heads = p.num_heads + 2 * num_kv_heads;
    const int64_t row = BlockX();
    const int head = BlockY() * kHeadsPerBlock + WarpIndex();
    if (head >= all_heads) return;
    const float* from = p.qkv + (row * all_heads + head) * head_dim;
    float x[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int i = e * kWarpSize + LaneIndex();
      x[e] = i < head_dim ? from[i] : 0.0f;
    }
    if (head < p.num_heads + num_kv_heads) {
      const float* weight = head < p.num_heads ? p.q_norm : p.k_norm;
      if (weight != nullptr) Normalise(x, head_dim, weight, p.eps);
      const int64_t angle = int64_t{p.positions[row]} * (head_dim / 2);
      if (head_dim < 64) RotateAcross(x, head_dim / 2, p.cos + angle, p.sin + angle);
      if (head_dim == 64) Rotate<1>(x, p.cos + angle, p.sin + angle);
      if (head_dim == 128) Rotate<2>(x, p.cos + angle, p.sin + angle);
      if (head_dim == 256) Rotate<4>(x, p.cos + angle, p.sin + angle);
    }
    Store(p, x, row, head);
  }
};

}  // namespace

void RopeKv(const DeviceRopeKvArgs& args, DeviceStream& stream) {
  const int head_dim = args.layer.shape.head_dim;
  KERNEL_REQUIRE(IsDeviceHeadDim(head_dim));
  KERNEL_REQUIRE(args.layer.shape.type != KvType::kF32);
  RopeKvParams params = {args, static_cast<int64_t>(KvSlabBytes(args.layer.shape))};
  const int heads = args.num_heads + 2 * args.layer.shape.num_kv_heads;
  Launch<RopeKvKernel>({.x = args.rows,
                        .y = (heads + kHeadsPerBlock - 1) / kHeadsPerBlock,
                        .threads = RopeKvKernel::kThreads},
                       params, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
