// y = x·wᵀ in double; weights stay row-major fp32, rounded to bf16 where the type says so.
#include "kernels/ref/ops.h"

namespace tandem::kernels::ref {

size_t PackedBytes(const MatrixShape& shape) {
  return static_cast<size_t>(shape.n) * static_cast<size_t>(shape.k) * sizeof(float);
}

void PackRows(const PackRowsArgs& args) {
  float* packed = static_cast<float*>(args.packed) + args.first_row * args.shape.k;
  for (int64_t i = 0; i < args.num_rows * args.shape.k; ++i) {
    packed[i] = args.shape.type == WeightType::kF32 ? args.rows[i] : FromBf16(ToBf16(args.rows[i]));
  }
}

void Gemm(const GemmArgs& args, const ParallelFor& parallel) {
  const MatrixShape& shape = args.w.shape;
  parallel(args.rows, [&](int64_t row, int) {
    for (int64_t n = 0; n < shape.n; ++n) {
      const float* w = static_cast<const float*>(args.w.data) + n * shape.k;
      double sum = 0;
      for (int64_t k = 0; k < shape.k; ++k) {
        sum += static_cast<double>(args.x[row * args.x_stride + k]) * w[k];
      }
      if (args.bias != nullptr) sum += args.bias[n];
      float& y = args.y[row * args.y_stride + n];
      y = static_cast<float>(args.add_to_y ? y + sum : sum);
    }
  });
}

}  // namespace tandem::kernels::ref
