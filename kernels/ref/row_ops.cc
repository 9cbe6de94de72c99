// Operators on rows (kernels/api/rms_norm.h, rope.h and elementwise.h), in double.
#include <cmath>

#include "kernels/ref/ops.h"

namespace tandem::kernels::ref {
namespace {

void NormVector(const RmsNormArgs& args, const float* x, float* y, float* residual) {
  double squares = 0;
  for (int64_t i = 0; i < args.size; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double factor = 1.0 / std::sqrt(squares / static_cast<double>(args.size) + args.eps);
  for (int64_t i = 0; i < args.size; ++i) {
    const double value = x[i] * factor * args.weight[i];
    if (residual == nullptr) {
      y[i] = static_cast<float>(value);
    } else {
      residual[i] = static_cast<float>(residual[i] + value);
    }
  }
}

}  // namespace

void RmsNorm(const RmsNormArgs& args, const ParallelFor& parallel) {
  parallel(args.rows, [&](int64_t row, int) {
    for (int64_t group = 0; group < args.groups; ++group) {
      const int64_t in = row * args.x_stride + group * args.size;
      const int64_t out = row * args.y_stride + group * args.size;
      NormVector(args, args.x + in, args.y == nullptr ? nullptr : args.y + out,
                 args.residual == nullptr ? nullptr : args.residual + out);
    }
  });
}

void Rope(const RopeArgs& args, const ParallelFor& parallel) {
  const int64_t half = args.head_dim / 2;
  parallel(args.rows, [&](int64_t row, int) {
    const float* cos = args.cos + args.positions[row] * half;
    const float* sin = args.sin + args.positions[row] * half;
    for (int64_t head = 0; head < args.num_heads; ++head) {
      float* x = args.x + row * args.x_stride + head * args.head_dim;
      for (int64_t i = 0; i < half; ++i) {
        const double first = x[i], second = x[i + half];
        x[i] = static_cast<float>(first * cos[i] - second * sin[i]);
        x[i + half] = static_cast<float>(second * cos[i] + first * sin[i]);
      }
    }
  });
}

void GatedActivation(const GatedActivationArgs& args, const ParallelFor& parallel) {
  parallel(args.rows, [&](int64_t row, int) {
    for (int64_t i = 0; i < args.size; ++i) {
      const double gate = args.gate[row * args.gate_stride + i];
      const double up = args.up[row * args.up_stride + i];
      args.y[row * args.y_stride + i] = static_cast<float>(Activate(args.activation, gate) * up);
    }
  });
}

void AddInto(const float* x, float* y, int64_t size, const ParallelFor&) {
  for (int64_t i = 0; i < size; ++i) y[i] += x[i];
}

void ScaleBy(float* x, float factor, int64_t size, const ParallelFor&) {
  for (int64_t i = 0; i < size; ++i) x[i] *= factor;
}

}  // namespace tandem::kernels::ref
