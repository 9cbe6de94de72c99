// Rounds activations for products that read them rounded (kernels/api/device_quantise.h):
// values[m, k] = round(x[m, k] · most / max |x|), with one scale max |x| / most for each group.
//
//   int8: most = 127, groups of 64; the CPU's numbers (kernels/cpu/gemm_int8.cc)
//   e4m3: most = 448, groups of 128; to nearest even, subnormals too
//
// Grid: x = rows, y = 2048 columns at a time; a lane rounds eight columns, 8 or 16 lanes a group.
// Columns up to a multiple of 128 become zeros. Bound: bytes of x.
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/simt/byte_codes.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

struct Int8Codes {
  static constexpr int kGroup = kInt8GroupSize;
  static constexpr float kMost = 127.0f;

  TANDEM_KERNEL float Magnitude(float value) { return Max(value, -value); }
  TANDEM_KERNEL uint32_t Round(float value, float factor) {
    // To nearest, ties to even: the last bit of a float of this magnitude counts ones, so the
    // addition rounds the fraction away.
    constexpr float kOffset = 12582912.0f;  // 1.5·2²³
    const float rounded = Add(Add(Mul(value, factor), kOffset), -kOffset);
    const float inside = Min(Max(rounded, -127.0f), 127.0f);
    return static_cast<uint32_t>(static_cast<int32_t>(inside)) & 0xffu;
  }
};

struct Fp8Codes {
  static constexpr int kGroup = kFp8GroupSize;
  static constexpr float kMost = 448.0f;
  static constexpr uint32_t kNan = 0x7f;

  TANDEM_KERNEL bool IsFinite(float value) {
    return (FloatToBits(value) & 0x7f800000u) != 0x7f800000u;
  }
  TANDEM_KERNEL float Magnitude(float value) { return IsFinite(value) ? Max(value, -value) : 0.0f; }
  TANDEM_KERNEL uint32_t Round(float value, float factor) {
    return IsFinite(value) ? ToFp8Code(Mul(value, factor)) : kNan;
  }
};

template <typename Codes>
struct QuantiseKernel {
  using Params = DeviceQuantiseArgs;
  static constexpr const char* kName = "quantise kernel";
  static constexpr int kThreads = 256;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kColumnsPerBlock = kThreads * 8;
  static constexpr int kLanes = Codes::kGroup / 8;  // of a group

  struct alignas(16) Chunk {
    uint32_t pair[4];
  };
  struct alignas(8) Bytes {
    uint32_t word[2];
  };

  TANDEM_KERNEL void Run(const Params& p) {
    const int row = BlockX();
    const int columns = PaddedColumns(p.k);
    const int k = BlockY() * kColumnsPerBlock + ThreadIndex() * 8;
    Chunk x = {};
    if (k < p.k) x = *reinterpret_cast<const Chunk*>(p.x + int64_t{row} * p.k + k);
    float values[8];
    float most = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t pair = x.pair[i / 2];
      values[i] = BitsToFloat(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
      most = Max(most, Codes::Magnitude(values[i]));
    }
    for (int mask = 1; mask < kLanes; mask *= 2) most = Max(most, ShuffleXor(most, mask));
    const bool some = most > 1e-30f;  // below, all are nearly 0, and the inverse is infinite
    const float factor = some ? Codes::kMost / most : 0.0f;
    if (k >= columns) return;
    Bytes bytes = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) bytes.word[i / 4] |= Codes::Round(values[i], factor) << (i % 4 * 8);
    *reinterpret_cast<Bytes*>(static_cast<char*>(p.values) + int64_t{row} * columns + k) = bytes;
    if (k % Codes::kGroup == 0) {
      p.scales[int64_t{k / Codes::kGroup} * ScaleStride(p.rows) + row] =
          some ? most / Codes::kMost : 0.0f;
    }
  }
};

template <typename Codes>
void LaunchRounding(const DeviceQuantiseArgs& args, DeviceStream& stream) {
  using Kernel = QuantiseKernel<Codes>;
  const int columns = Kernel::kColumnsPerBlock;
  Launch<Kernel>({.x = args.rows,
                  .y = (PaddedColumns(args.k) + columns - 1) / columns,
                  .threads = Kernel::kThreads},
                 args, stream);
}

}  // namespace

void Quantise(const DeviceQuantiseArgs& args, DeviceStream& stream) {
  KERNEL_REQUIRE(args.k % 8 == 0 && ActivationGroup(args.type) > 0);
  if (args.type == DeviceWeightType::kInt8) return LaunchRounding<Int8Codes>(args, stream);
  LaunchRounding<Fp8Codes>(args, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
