// Random products for tests of weights kept as integers, with rows of every size and outliers.
// Thread safety: one thread.
#pragma once

#include <algorithm>

#include "kernel_fixture.h"

namespace tandem::kernels {

struct Product {
  int64_t rows, n, k, x_stride;
  Floats x, w, bias, residual;
  bool with_bias = false, with_residual = false;
};

class WholeNumberGemmTest : public ClassTest {
 protected:
  Product Draw(int64_t rows, int64_t n, int64_t k) {
    const int64_t stride = k + Uniform(0, 5);
    Product p = {rows,
                 n,
                 k,
                 stride,
                 Normal(static_cast<size_t>(rows * stride)),
                 Normal(static_cast<size_t>(n * k), 0.1f),
                 Normal(static_cast<size_t>(n)),
                 Normal(static_cast<size_t>(rows * n))};
    // Rows of every size, one of nothing at all, and outliers.
    for (int64_t row = 0; row < rows; ++row) {
      const float scale = std::ldexp(1.0f, static_cast<int>(Uniform(-20, 20)));
      const bool zero = Uniform(0, 9) == 0;
      for (int64_t i = 0; i < k; ++i) {
        float& value = p.x[static_cast<size_t>(row * stride + i)];
        value = zero ? 0.0f : value * scale * (Uniform(0, 99) == 0 ? 30.0f : 1.0f);
      }
    }
    p.with_bias = Uniform(0, 1) == 0;
    p.with_residual = Uniform(0, 1) == 0;
    return p;
  }

  // The weights in ranges of random length, last range first.
  Floats Pack(const Backend& backend, const Product& p) {
    const MatrixShape shape = {p.n, p.k, type_};
    Floats packed(backend.packed_bytes(shape) / 4 + 1);
    for (int64_t end = p.n; end > 0;) {
      const int64_t begin = Uniform(0, end - 1);
      backend.pack_rows({shape, begin, end - begin, p.w.data() + begin * p.k, packed.data()});
      end = begin;
    }
    return packed;
  }

  Floats Run(const Backend& backend, const Product& p, const Floats& packed,
             const ParallelFor& parallel) {
    Floats y(static_cast<size_t>(p.rows * p.n));
    if (p.with_residual) std::memcpy(y.data(), p.residual.data(), y.size() * sizeof(float));
    Floats scratch(GemmScratchBytes(p.rows, p.k) / 4);
    GemmArgs args;
    args.x = p.x.data();
    args.x_stride = p.x_stride;
    args.rows = p.rows;
    args.w = {{p.n, p.k, type_}, packed.data()};
    args.bias = p.with_bias ? p.bias.data() : nullptr;
    args.add_to_y = p.with_residual;
    args.y = y.data();
    args.y_stride = p.n;
    args.scratch = scratch.data();
    backend.gemm(args, parallel);
    return y;
  }

  Floats RunGated(const Backend& backend, const Product& p, const Floats& packed,
                  GateActivation activation, const ParallelFor& parallel) {
    Floats y(static_cast<size_t>(p.rows * p.n / 2));
    Floats scratch(GemmScratchBytes(p.rows, p.k) / 4);
    GemmArgs args;
    args.x = p.x.data();
    args.x_stride = p.x_stride;
    args.rows = p.rows;
    args.w = {{p.n, p.k, type_}, packed.data()};
    args.gated = y.data();
    args.activation = activation;
    args.y_stride = p.n / 2;
    args.scratch = scratch.data();
    backend.gemm(args, parallel);
    return y;
  }

  WeightType type_ = WeightType::kInt8;
};

}  // namespace tandem::kernels
