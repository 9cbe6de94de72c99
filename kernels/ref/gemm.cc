// y = x·wᵀ in double (kernels/api/gemm.h). Weights stay row-major fp32, rounded to bf16, int8 or
// four bits where their type says so.
#include <algorithm>
#include <cmath>

#include "kernels/api/int4_group.h"
#include "kernels/ref/ops.h"

namespace tandem::kernels::ref {

size_t PackedBytes(const MatrixShape& shape) {
  return static_cast<size_t>(shape.n) * static_cast<size_t>(shape.k) * sizeof(float);
}

namespace {

float RoundWeight(WeightType type, float w, float most) {
  if (type == WeightType::kBf16) return FromBf16(ToBf16(w));
  if (type == WeightType::kF32) return w;
  // 127 / most would be infinite a little below this. All classes take such a row as zeros.
  if (!(most > 1e-30f)) return 0;
  return std::nearbyint(w * (127.0f / most)) * (most / 127.0f);
}

// In groups along k, which are given or made of the row.
void PackInt4(const PackRowsArgs& args, float* packed) {
  const int64_t k = args.shape.k, groups = (k + kInt4GroupSize - 1) / kInt4GroupSize;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * kInt4GroupSize, size = std::min(kInt4GroupSize, k - begin);
      const Int4Group group = args.groups == nullptr
                                  ? RoundToInt4(args.rows + row * k + begin, size)
                                  : FiniteInt4(args.groups[row * groups + g]);
      for (int64_t i = 0; i < size; ++i) packed[row * k + begin + i] = Int4Value(group, i);
    }
  }
}

void PackQ4K(const PackRowsArgs& args, float* packed) {
  const int64_t blocks = args.num_rows * args.shape.k / kQ4KBlockSize;
  for (int64_t b = 0; b < blocks; ++b) {
    const Q4KBlock block = FiniteQ4K(args.blocks[b]);
    for (int64_t i = 0; i < kQ4KBlockSize; ++i) {
      *packed++ = Q4KValue(block, i / kInt4GroupSize, i % kInt4GroupSize);
    }
  }
}

}  // namespace

void PackRows(const PackRowsArgs& args) {
  const int64_t k = args.shape.k;
  float* packed = static_cast<float*>(args.packed) + args.first_row * k;
  if (args.shape.type == WeightType::kInt4) {
    PackInt4(args, packed);
    return;
  }
  if (args.shape.type == WeightType::kQ4K) {
    PackQ4K(args, packed);
    return;
  }
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float* w = args.rows + row * k;
    float most = 0;
    for (int64_t i = 0; i < k; ++i) most = std::max(most, std::fabs(w[i]));
    for (int64_t i = 0; i < k; ++i) {
      packed[row * k + i] = RoundWeight(args.shape.type, w[i], most);
    }
  }
}

namespace {

double DotProduct(const GemmArgs& args, int64_t row, int64_t n) {
  const int64_t k_count = args.w.shape.k;
  const float* w = static_cast<const float*>(args.w.data) + n * k_count;
  double sum = 0;
  for (int64_t k = 0; k < k_count; ++k) {
    sum += static_cast<double>(args.x[row * args.x_stride + k]) * w[k];
  }
  return sum;
}

// Sixteen rows of w are of the gate, sixteen of up, and so on.
void GatedRow(const GemmArgs& args, int64_t row) {
  for (int64_t i = 0; i < args.w.shape.n / 2; ++i) {
    const int64_t gate = i / 16 * 32 + i % 16;
    args.gated[row * args.y_stride + i] = static_cast<float>(
        Activate(args.activation, DotProduct(args, row, gate)) * DotProduct(args, row, gate + 16));
  }
}

}  // namespace

void Gemm(const GemmArgs& args, const ParallelFor& parallel) {
  parallel(args.rows, [&](int64_t row, int) {
    if (args.gated != nullptr) {
      GatedRow(args, row);
      return;
    }
    for (int64_t n = 0; n < args.w.shape.n; ++n) {
      double sum = DotProduct(args, row, n);
      if (args.bias != nullptr) sum += args.bias[n];
      float& y = args.y[row * args.y_stride + n];
      y = static_cast<float>(args.add_to_y ? y + sum : sum);
    }
  });
}

}  // namespace tandem::kernels::ref
