// The fixture of the tests of products with quantised weights: draws and packs weights, rounds
// activations on the device, runs a product with any options, and computes its sum in double within
// a derived tolerance. Thread safety: one thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "device_fixture.h"
#include "kernels/api/bf16.h"
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_matrix.h"
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_weight_type.h"

namespace tandem::kernels {

struct Shape {
  int32_t rows, n, k;
};

// A matrix as it was drawn, packed, and as products see it.
struct Matrix {
  DeviceWeightType type = DeviceWeightType::kBf16;
  int32_t n = 0, k = 0;
  std::vector<float> drawn, seen;  // [n][k]
  std::vector<char> values, scales;
};

class QuantisedGemmTest : public DeviceTest {
 protected:
  struct Options {
    bool bias = false;
    bool add = false;
    bool gated = false;
    GateActivation activation = GateActivation::kSilu;
    int32_t multiprocessors = 1000000;
    int32_t tile = -1;
  };

  Matrix Draw(DeviceWeightType type, int32_t n, int32_t k) {
    Matrix matrix = {type, n, k, Normal(static_cast<size_t>(n * k)), {}, {}, {}};
    // Rows of very different sizes, and one of nothing.
    for (int32_t row = 0; row < n; ++row) {
      const float size = row == 1 ? 0.0f : std::exp2(static_cast<float>(row % 9) - 4.0f);
      for (int32_t i = 0; i < k; ++i) matrix.drawn[static_cast<size_t>(row * k + i)] *= size;
    }
    const DeviceRowBytes bytes = RowBytesOf(type, k);
    matrix.values.resize(static_cast<size_t>(n) * bytes.values, '\x7f');
    matrix.scales.resize(static_cast<size_t>(n) * bytes.scales, '\x7f');
    matrix.seen.resize(matrix.drawn.size());
    for (size_t row = 0; row < static_cast<size_t>(n); ++row) {
      DevicePackArgs args;
      args.type = type;
      args.k = k;
      args.row = matrix.drawn.data() + row * static_cast<size_t>(k);
      args.values = matrix.values.data() + row * bytes.values;
      args.scales = matrix.scales.data() + row * bytes.scales;
      PackDeviceRow(args);
      UnpackDeviceRow(args, matrix.seen.data() + row * static_cast<size_t>(k));
    }
    return matrix;
  }

  // The quantised types that the device has products for.
  std::vector<DeviceWeightType> QuantisedTypes() {
    std::vector<DeviceWeightType> types;
    for (DeviceWeightType type : {DeviceWeightType::kInt8, DeviceWeightType::kInt4,
                                  DeviceWeightType::kFp8, DeviceWeightType::kFp8Rows}) {
      if (HasProducts(ops(), type)) types.push_back(type);
    }
    return types;
  }

  // x as products with weights of `type` see it, on the device.
  struct Rounded {
    DeviceBuffer values, scales;
  };
  Rounded Quantise(const std::vector<Bf16Bits>& x, int32_t rows, int32_t k, DeviceWeightType type) {
    const DeviceRoundedBytes bytes = RoundedBytesOf(type, rows, k);
    Rounded out = {Poisoned(bytes.values), Poisoned(bytes.scales)};
    const DeviceBuffer in = Upload(x);
    ops().quantise({in.as<Bf16Bits>(), rows, k, out.values.data(), out.scales.as<float>(), type},
                   stream());
    EXPECT_TRUE(stream().Synchronize().ok());
    return out;
  }

  static float BiasOf(int32_t n) { return 0.25f * static_cast<float>(n % 7); }

  // y, or the gated rows as fp32.
  std::vector<float> Run(int32_t rows, const std::vector<Bf16Bits>& x, const Matrix& w,
                         const Options& options) {
    const DeviceBuffer dx = Upload(x), values = Upload(w.values), scales = Upload(w.scales);
    Rounded rounded;
    if (ActivationGroup(w.type) > 0) rounded = Quantise(x, rows, w.k, w.type);
    const size_t size = static_cast<size_t>(rows) * static_cast<size_t>(w.n);
    const DeviceBuffer y =
        options.add ? Upload(Residuals(rows, w.n)) : Poisoned(size * sizeof(float));
    std::vector<float> bias_values;
    for (int32_t n = 0; n < w.n; ++n) bias_values.push_back(BiasOf(n));
    const DeviceBuffer bias = Upload(bias_values);
    DeviceGemmArgs args;
    args.type = w.type;
    args.x = dx.as<Bf16Bits>();
    args.w = values.as<Bf16Bits>();
    args.packed = values.data();
    args.scales = scales.data();
    args.x_rounded = rounded.values.data();
    args.x_scales = rounded.scales.as<float>();
    args.rows = rows;
    args.n = w.n;
    args.k = w.k;
    args.bias = options.bias ? bias.as<float>() : nullptr;
    args.add_to_y = options.add;
    args.multiprocessors = options.multiprocessors;
    args.tile = options.tile;
    if (!options.gated) {
      args.y = y.as<float>();
      ops().gemm(args, stream());
      return Download<float>(y, size);
    }
    args.gated = y.as<Bf16Bits>();
    args.activation = options.activation;
    ops().gemm(args, stream());
    std::vector<float> out;
    for (Bf16Bits value : Download<Bf16Bits>(y, size / 2)) out.push_back(FromBf16(value));
    return out;
  }

  // The rows that a product sees instead of `x`.
  std::vector<double> Seen(const std::vector<Bf16Bits>& x, int32_t rows, const Matrix& w) {
    std::vector<double> seen;
    if (ActivationGroup(w.type) == 0) {
      for (Bf16Bits value : x) seen.push_back(FromBf16(value));
      return seen;
    }
    const Rounded rounded = Quantise(x, rows, w.k, w.type);
    const size_t columns = static_cast<size_t>(PaddedColumns(w.k));
    const auto values = Download<uint8_t>(rounded.values, columns * static_cast<size_t>(rows));
    const auto scales = Download<float>(rounded.scales, rounded.scales.bytes() / 4);
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t i = 0; i < w.k; ++i) {
        const double scale =
            scales[static_cast<size_t>(i / ActivationGroup(w.type) * ScaleStride(rows) + row)];
        const uint8_t code = values[static_cast<size_t>(row) * columns + static_cast<size_t>(i)];
        seen.push_back(scale * (w.type == DeviceWeightType::kInt8 ? static_cast<int8_t>(code)
                                                                  : E4m3ToFloat(code)));
      }
    }
    return seen;
  }

  // A sum in double, and how far from it fp32 may be.
  struct Expected {
    double sum = 0, tolerance = 0;
  };
  // Of products[k] of one row and column.
  static Expected SumOf(DeviceWeightType type, const std::vector<double>& products) {
    Expected expected;
    double magnitude = 0;
    for (double product : products) {
      expected.sum += product;
      magnitude += std::abs(product);
    }
    // Tensor cores may truncate where they align addends: two units a sum; then scales.
    const double k = static_cast<double>(products.size());
    expected.tolerance = 2 * kUnit * (k + 8) * (magnitude + 2);
    if (type != DeviceWeightType::kFp8Rows) return expected;
    // Of each addend in an instruction of 32 k they keep 13 bits behind the largest's leading one,
    // and as many of the result. Whether they add all 32 to what was there before, or 16 and then
    // 16, that is 35 truncations of 2⁻¹³ of no more than `most`, and one of the result.
    for (size_t group = 0; group < products.size(); group += kFp8GroupSize) {
      double after = 0;  // magnitudes of the group so far
      const size_t end = std::min(products.size(), group + kFp8GroupSize);
      for (size_t step = group; step < end; step += 32) {
        double most = 0;
        for (size_t i = step; i < std::min(end, step + 32); ++i) {
          most = std::max(most, std::abs(products[i]));
          if (i < step + 16) most = std::max(most, after + std::abs(products[i]));
          after += std::abs(products[i]);
        }
        expected.tolerance += 0x1p-13 * (35 * most + after);
      }
    }
    return expected;
  }

  void ExpectRight(DeviceWeightType type, const Shape& shape, const Options& options) {
    const Matrix w = Draw(type, shape.n, shape.k);
    const auto x = NormalBf16(static_cast<size_t>(shape.rows * shape.k));
    const std::vector<double> seen = Seen(x, shape.rows, w);
    const std::vector<float> y = Run(shape.rows, x, w, options);
    for (int32_t m = 0; m < shape.rows; ++m) {
      for (int32_t n = 0; n < shape.n; ++n) {
        std::vector<double> products;
        for (int32_t k = 0; k < shape.k; ++k) {
          products.push_back(seen[static_cast<size_t>(m * shape.k + k)] *
                             w.seen[static_cast<size_t>(n * shape.k + k)]);
        }
        Expected expected = SumOf(type, products);
        if (options.bias) expected.sum += BiasOf(n);
        if (options.add) expected.sum += ResidualAt(m, n);
        ASSERT_NEAR(y[static_cast<size_t>(m * shape.n + n)], expected.sum, expected.tolerance)
            << DeviceWeightTypeName(type) << " row " << m << " column " << n << " of " << shape.rows
            << "x" << shape.n << "x" << shape.k;
      }
    }
  }
};

}  // namespace tandem::kernels
