// QK-norm, RoPE, rounding to bf16, and K and V into the paged cache: vLLM's reshape_and_cache with
// what comes before it.
//
//   q, k:  [x / sqrt(mean(x²) + eps) · weight]  then  (x₁, x₂) → (x₁·cos − x₂·sin, x₂·cos + x₁·sin)
//   with x₁ the first, x₂ the second half of a head; v is only rounded.
// Grid: x = rows, y = groups of eight heads of q|k|v, a warp for each head. Lane i holds elements
// i, i + 32, … so that both halves of a pair lie in one lane (head_dim is a multiple of 64). Bound
// by memory: reads qkv once, writes q, k and v once.
#include "kernels/api/require.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/kernels.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr int kHeadsPerBlock = 8;
constexpr int kHeadDimMax = 256;

struct RopeKvKernel {
  using Params = DeviceRopeKvArgs;
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

  // Heads of at most 32 elements, one in each lane: the other of a pair is half a head away.
  TANDEM_KERNEL void RotateAcross(float x[kElements], int half, const float* cos,
                                  const float* sin) {
    const float other = ShuffleXor(x[0], half);
    const int i = LaneIndex() % half;
    const float sine = LaneIndex() < half ? -sin[i] : sin[i];
    x[0] = Add(Mul(x[0], cos[i]), Mul(other, sine));
  }

  // Where the head's result goes; nullptr when this row writes none.
  TANDEM_KERNEL Bf16Bits* Destination(const Params& p, int64_t row, int head) {
    const KvShape& shape = p.layer.shape;
    if (head < p.num_heads) return p.q + (row * p.num_heads + head) * shape.head_dim;
    const int64_t slot = p.slots[row];
    if (slot < 0) return nullptr;
    const int value = head >= p.num_heads + shape.num_kv_heads ? 1 : 0;
    const int kv_head = head - p.num_heads - value * shape.num_kv_heads;
    char* block =
        static_cast<char*>(p.layer.base) + slot / shape.block_tokens * p.layer.block_stride_bytes;
    const int64_t token =
        int64_t{kv_head * 2 + value} * shape.block_tokens + slot % shape.block_tokens;
    return reinterpret_cast<Bf16Bits*>(block) + token * shape.head_dim;
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
    Bf16Bits* to = Destination(p, row, head);
    if (to == nullptr) return;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int i = e * kWarpSize + LaneIndex();
      if (i < head_dim) to[i] = ToBf16(x[e]).bits;
    }
  }
};

}  // namespace

void RopeKv(const DeviceRopeKvArgs& args, DeviceStream& stream) {
  const int head_dim = args.layer.shape.head_dim;
  KERNEL_REQUIRE(IsDeviceHeadDim(head_dim));
  const int heads = args.num_heads + 2 * args.layer.shape.num_kv_heads;
  Launch<RopeKvKernel>({.x = args.rows,
                        .y = (heads + kHeadsPerBlock - 1) / kHeadsPerBlock,
                        .threads = RopeKvKernel::kThreads},
                       args, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
