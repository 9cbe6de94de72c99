// Operators on rows: embedding, RMSNorm and the gated activation (kernels/api/device_embed.h,
// device_rms_norm.h and device_gated.h). All are bound by memory, and of few rows by its latency:
// so a thread asks for everything it needs before it uses the first value.
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

// Four neighbouring values, of a table's row and of y.
struct TableValues {
  alignas(8) Bf16Bits of[4];
};
struct FourFloats {
  alignas(16) float of[4];
};

struct EmbedKernel {
  using Params = DeviceEmbedArgs;
  static constexpr const char* kName = "embed kernel";
  static constexpr int kThreads = kRowThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kTogether = 4;  // loads under way

  TANDEM_KERNEL void Run(const Params& p) {
    const int64_t row = BlockX();
    const Bf16Bits* from = p.table + int64_t{p.tokens[row]} * p.size;
    float* to = p.y + row * p.size;
    if (p.size % 4 != 0) {
      for (int i = ThreadIndex(); i < p.size; i += kThreads) to[i] = ToFloat({from[i]}) * p.scale;
      return;
    }
    constexpr int kStep = kThreads * 4;
    for (int first = ThreadIndex() * 4; first < p.size; first += kTogether * kStep) {
      TableValues values[kTogether] = {};
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const int i = first + t * kStep;
        if (i < p.size) values[t] = *reinterpret_cast<const TableValues*>(from + i);
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const int i = first + t * kStep;
        FourFloats scaled;
#pragma unroll
        for (int j = 0; j < 4; ++j) scaled.of[j] = ToFloat({values[t].of[j]}) * p.scale;
        if (i < p.size) *reinterpret_cast<FourFloats*>(to + i) = scaled;
      }
    }
  }
};

// y = x / sqrt(mean(x²) + eps) · weight
//
// A thread keeps its first kHeld elements of x in registers, so that all loads of a row are under
// way together and x is read once. Elements behind them, of rows longer than 256 · kHeld, are read
// twice. The weights are no kernel's result: they arrive while the kernel before ends.
template <int kHeld>
struct RmsNormKernel : EarlyStart {
  using Params = DeviceRmsNormArgs;
  static constexpr const char* kName = "rms_norm kernel";
  static constexpr int kThreads = kRowThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kGroup = kHeld < 8 ? kHeld : 8;  // elements that are stored together

  // Stores the normalised value of element i of the row, and adds it to `before`.
  TANDEM_KERNEL void Store(const Params& p, int64_t at, float value, float before) {
    if (p.y != nullptr) p.y[at] = ToBf16(value).bits;
    if (p.residual != nullptr) p.residual[at] = Add(before, value);
  }

  TANDEM_KERNEL void Run(const Params& p) {
    const int64_t row = BlockX();
    float x[kHeld], weight[kHeld];
#pragma unroll
    for (int e = 0; e < kHeld; ++e) {
      const int i = e * kThreads + ThreadIndex();
      weight[e] = i < p.size ? p.weight[i] : 0.0f;
    }
    const int64_t from = p.gather == nullptr ? row : p.gather[row];
    const float* in = p.x + from * p.size;
    WaitForPredecessor();
#pragma unroll
    for (int e = 0; e < kHeld; ++e) {
      const int i = e * kThreads + ThreadIndex();
      x[e] = i < p.size ? in[i] : 0.0f;
    }
    float squares = 0;
#pragma unroll
    for (int e = 0; e < kHeld; ++e) squares = Fma(x[e], x[e], squares);
    for (int i = kHeld * kThreads + ThreadIndex(); i < p.size; i += kThreads) {
      squares = Fma(in[i], in[i], squares);
    }
    squares = BlockSum(squares, reinterpret_cast<float*>(SharedMemory()));
    const float factor = 1.0f / Sqrt(squares / static_cast<float>(p.size) + p.eps);
    const int64_t first = row * p.size;
#pragma unroll
    for (int group = 0; group < kHeld; group += kGroup) {
      float before[kGroup] = {};
      if (p.residual != nullptr) {
#pragma unroll
        for (int j = 0; j < kGroup; ++j) {
          const int i = (group + j) * kThreads + ThreadIndex();
          if (i < p.size) before[j] = p.residual[first + i];
        }
      }
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        const int e = group + j, i = e * kThreads + ThreadIndex();
        if (i < p.size) Store(p, first + i, Mul(Mul(x[e], factor), weight[e]), before[j]);
      }
    }
    for (int i = kHeld * kThreads + ThreadIndex(); i < p.size; i += kThreads) {
      const float before = p.residual != nullptr ? p.residual[first + i] : 0.0f;
      Store(p, first + i, Mul(Mul(in[i], factor), p.weight[i]), before);
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

namespace {

template <int kHeld>
void LaunchRmsNorm(const DeviceRmsNormArgs& args, DeviceStream& stream) {
  constexpr size_t kSharedBytes = kRowThreads / kWarpSize * sizeof(float);
  Launch<RmsNormKernel<kHeld>>(
      {.x = args.rows, .threads = kRowThreads, .shared_bytes = kSharedBytes}, args, stream);
}

}  // namespace

void RmsNorm(const DeviceRmsNormArgs& args, DeviceStream& stream) {
  if (args.size <= 4 * kRowThreads) return LaunchRmsNorm<4>(args, stream);
  if (args.size <= 8 * kRowThreads) return LaunchRmsNorm<8>(args, stream);
  if (args.size <= 16 * kRowThreads) return LaunchRmsNorm<16>(args, stream);
  LaunchRmsNorm<32>(args, stream);
}

void Gated(const DeviceGatedArgs& args, DeviceStream& stream) {
  const int columns = GatedKernel::kColumnsPerBlock;
  Launch<GatedKernel>(
      {.x = args.rows, .y = (args.size + columns - 1) / columns, .threads = kRowThreads}, args,
      stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
