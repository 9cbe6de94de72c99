#include "kernels/dispatch/amx_self_check.h"

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tandem::kernels {
namespace {

struct alignas(64) Line {
  char bytes[64];
};
std::vector<Line> Lines(size_t bytes) { return std::vector<Line>(bytes / sizeof(Line) + 1); }

struct Product {
  int64_t rows;
  MatrixShape shape;
  std::vector<float> x, w;
};

// Numbers of both signs and of several magnitudes, the same at every start.
std::vector<float> Numbers(int64_t count, uint32_t state) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    const float magnitude = state >> 28 == 0 ? 0x1p-28f : 0x1p-31f;
    numbers.push_back(static_cast<float>(static_cast<int32_t>(state)) * magnitude);
  }
  return numbers;
}

Product Draw(int64_t rows, const MatrixShape& shape) {
  const uint32_t seed = static_cast<uint32_t>(rows);
  return {rows, shape, Numbers(rows * shape.k, seed), Numbers(shape.n * shape.k, seed + 1)};
}

std::vector<Line> Pack(const Backend& backend, const Product& product) {
  std::vector<Line> packed = Lines(backend.packed_bytes(product.shape));
  backend.pack_rows({product.shape, 0, product.shape.n, product.w.data(), packed.data()});
  return packed;
}

std::vector<float> Multiply(const Backend& backend, const Product& product,
                            const std::vector<Line>& packed) {
  const MatrixShape& shape = product.shape;
  std::vector<float> y(static_cast<size_t>(product.rows * shape.n), NAN);
  std::vector<Line> scratch = Lines(GemmScratchBytes(product.rows, shape.k));
  GemmArgs args;
  args.x = product.x.data();
  args.x_stride = shape.k;
  args.rows = product.rows;
  args.w = {shape, packed.data()};
  args.y = y.data();
  args.y_stride = shape.n;
  args.scratch = scratch.data();
  backend.gemm(args, {});
  return y;
}

// The most that two orders of rounding may differ. Each of a product's k multiply-adds and of the
// few sums of every 32 rounds once, by half a unit of the sum of magnitudes at most.
double Bound(const Product& product, size_t at) {
  const int64_t n = product.shape.n, k = product.shape.k;
  const float* x = product.x.data() + static_cast<int64_t>(at) / n * k;
  const float* w = product.w.data() + static_cast<int64_t>(at) % n * k;
  double magnitude = 0;
  for (int64_t i = 0; i < k; ++i) magnitude += std::fabs(double{x[i]} * w[i]);
  return 2 * 0x1p-24 * static_cast<double>(k + 4) * 1.02 * magnitude;
}

std::string Compare(const Backend& tiles, const Backend& expected, const Product& product) {
  const MatrixShape& shape = product.shape;
  const bool exact = shape.type == WeightType::kInt8;
  const std::string what = absl::StrCat(exact ? "int8" : "bf16", " product of ", product.rows,
                                        " rows, ", shape.n, " features and ", shape.k, " inputs");
  const std::vector<Line> packed = Pack(tiles, product), other = Pack(expected, product);
  if (packed.size() != other.size() ||
      std::memcmp(packed.data(), other.data(), packed.size() * sizeof(Line)) != 0) {
    return absl::StrCat("the weights of the ", what, " are packed incorrectly");
  }
  const std::vector<float> y = Multiply(tiles, product, packed);
  const std::vector<float> wanted = Multiply(expected, product, other);
  for (size_t i = 0; i < y.size(); ++i) {
    const double bound = exact ? 0 : Bound(product, i);
    if (std::fabs(double{y[i]} - wanted[i]) <= bound) continue;
    return absl::StrCat("the processor's tile registers compute wrong results: element ", i,
                        " of the ", what, " is ", y[i], ", expected ", wanted[i]);
  }
  return "";
}

}  // namespace

std::string CompareProducts(const Backend& tiles, const Backend& expected) {
  struct Size {
    int64_t rows, n, k;
  };
  // One and several tiles of rows, complete and incomplete; likewise panels and steps.
  constexpr Size kSizes[] = {{1, 33, 70}, {16, 32, 64}, {5, 70, 331}, {17, 40, 130}, {70, 64, 192}};
  for (const WeightType type : {WeightType::kBf16, WeightType::kInt8}) {
    for (const Size& size : kSizes) {
      std::string why = Compare(tiles, expected, Draw(size.rows, {size.n, size.k, type}));
      if (!why.empty()) return why;
    }
  }
  return "";
}

}  // namespace tandem::kernels
