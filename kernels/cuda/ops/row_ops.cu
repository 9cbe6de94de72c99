// Operators on rows: embedding, RMSNorm and the gated activation (kernels/api/device_embed.h,
// device_rms_norm.h and device_gated.h). All are bound by memory.
//
// Grid: one block of 256 threads for each row (gated: for each row and 1024 columns). A row's sum
// runs in 256 strided lanes and a fixed tree, whatever the number of rows.
#include "kernels/api/bf16.h"
#include "kernels/api/device_embed.h"
#include "kernels/api/device_gated.h"
#include "kernels/api/device_rms_norm.h"
#include "kernels/cuda/ops/activation.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr int kRowThreads = 256;

struct EmbedKernel {
  using Params = DeviceEmbedArgs;
  static constexpr const char* kName = "embed kernel";
  static constexpr int kThreads = kRowThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;

  TANDEM_KERNEL void Run(const Params& p) {
    const int64_t row = BlockX();
    const Bf16Bits* from = p.table + int64_t{p.tokens[row]} * p.size;
    float* to = p.y + row * p.size;
    for (int i = ThreadIndex(); i < p.size; i += kThreads) to[i] = ToFloat({from[i]}) * p.scale;
  }
};

// y = x / sqrt(mean(x²) + eps) · weight
struct RmsNormKernel {
  using Params = DeviceRmsNormArgs;
  static constexpr const char* kName = "rms_norm kernel";
  static constexpr int kThreads = kRowThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;

  TANDEM_KERNEL void Run(const Params& p) {
    const int64_t row = BlockX();
    const int64_t from = p.gather == nullptr ? row : p.gather[row];
    const float* x = p.x + from * p.size;
    float squares = 0;
    for (int i = ThreadIndex(); i < p.size; i += kThreads) squares = Fma(x[i], x[i], squares);
    squares = BlockSum(squares, reinterpret_cast<float*>(SharedMemory()));
    const float factor = 1.0f / Sqrt(squares / static_cast<float>(p.size) + p.eps);
    for (int i = ThreadIndex(); i < p.size; i += kThreads) {
      const float value = Mul(Mul(x[i], factor), p.weight[i]);
      const int64_t at = row * p.size + i;
      if (p.y != nullptr) p.y[at] = ToBf16(value).bits;
      if (p.residual != nullptr) p.residual[at] = Add(p.residual[at], value);
    }
  }
};

struct GatedKernel {
  using Params = DeviceGatedArgs;
  static constexpr const char* kName = "gated activation kernel";
  static constexpr int kThreads = kRowThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kColumnsPerBlock = 1024;

  TANDEM_KERNEL void Run(const Params& p) {
    const int64_t row = BlockX();
    const float* gate = p.gate_up + row * 2 * p.size;
    const int first = BlockY() * kColumnsPerBlock;
    const int end = first + kColumnsPerBlock < p.size ? first + kColumnsPerBlock : p.size;
    for (int i = first + ThreadIndex(); i < end; i += kThreads) {
      p.y[row * p.size + i] = ToBf16(Gate(p.activation, gate[i], gate[p.size + i])).bits;
    }
  }
};

}  // namespace

void Embed(const DeviceEmbedArgs& args, DeviceStream& stream) {
  Launch<EmbedKernel>({.x = args.rows, .threads = kRowThreads}, args, stream);
}

void RmsNorm(const DeviceRmsNormArgs& args, DeviceStream& stream) {
  constexpr size_t kSharedBytes = kRowThreads / kWarpSize * sizeof(float);
  Launch<RmsNormKernel>({.x = args.rows, .threads = kRowThreads, .shared_bytes = kSharedBytes},
                        args, stream);
}

void Gated(const DeviceGatedArgs& args, DeviceStream& stream) {
  const int columns = GatedKernel::kColumnsPerBlock;
  Launch<GatedKernel>(
      {.x = args.rows, .y = (args.size + columns - 1) / columns, .threads = kRowThreads}, args,
      stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
