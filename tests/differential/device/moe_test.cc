// Goal: a mixture of experts on the device: rows go to their most likely experts with the weights
// that softmax in double gives, choices come back in order of experts, an expert's product has the
// bits of the plain matrix product with its matrix however many rows share the launch or the
// expert, and the sum is taken in order of experts. A row's result does not depend on the others.
#include <algorithm>
#include <numeric>

#include "device_fixture.h"
#include "kernels/api/bf16.h"
#include "kernels/api/device_experts.h"
#include "kernels/api/device_gemm.h"

namespace tandem::kernels {
namespace {

struct Shape {
  int32_t rows, experts, top_k;
};
struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};
struct Sorted {
  std::vector<int32_t> offsets, rows, places;
};

class DeviceMoeTest : public DeviceTest {
 protected:
  Shape RandomShape(int32_t rows_max) {
    Shape shape = {Uniform(1, rows_max), Uniform(1, 3) == 1 ? Uniform(1, 256) : 8, 0};
    shape.top_k = Uniform(1, std::min(shape.experts, 10));
    return shape;
  }

  Routed Route(const Shape& shape, const std::vector<float>& logits, bool renormalise) {
    const size_t choices = static_cast<size_t>(shape.rows * shape.top_k);
    const DeviceBuffer from = Upload(logits);
    const DeviceBuffer experts = Poisoned(choices * sizeof(int32_t));
    const DeviceBuffer weights = Poisoned(choices * sizeof(float));
    ops().route_experts({from.as<float>(), shape.rows, shape.experts, shape.top_k, renormalise,
                         experts.as<int32_t>(), weights.as<float>()},
                        stream());
    return {Download<int32_t>(experts, choices), Download<float>(weights, choices)};
  }

  Sorted Sort(const Shape& shape, const std::vector<int32_t>& experts) {
    const size_t choices = experts.size();
    const DeviceBuffer from = Upload(experts);
    const DeviceBuffer offsets = Poisoned(static_cast<size_t>(shape.experts + 1) * 4);
    const DeviceBuffer rows = Poisoned(choices * 4), places = Poisoned(choices * 4);
    ops().sort_by_expert(
        {from.as<int32_t>(), static_cast<int32_t>(choices), shape.top_k, shape.experts,
         offsets.as<int32_t>(), rows.as<int32_t>(), places.as<int32_t>()},
        stream());
    return {Download<int32_t>(offsets, static_cast<size_t>(shape.experts + 1)),
            Download<int32_t>(rows, choices), Download<int32_t>(places, choices)};
  }

  struct Matrices {
    int32_t n, k;
    std::vector<Bf16Bits> w;  // [experts][n][k]
  };
  std::vector<float> Multiply(const Sorted& sorted, const Matrices& matrices,
                              const std::vector<Bf16Bits>& x, bool gather) {
    const size_t rows = sorted.rows.size();
    const DeviceBuffer dx = Upload(x), dw = Upload(matrices.w);
    const DeviceBuffer offsets = Upload(sorted.offsets), source = Upload(sorted.rows);
    const size_t size = rows * static_cast<size_t>(matrices.n);
    const DeviceBuffer y = Poisoned(size * sizeof(float));
    ops().grouped_gemm(
        {dx.as<Bf16Bits>(), gather ? source.as<int32_t>() : nullptr, dw.as<Bf16Bits>(),
         offsets.as<int32_t>(), static_cast<int32_t>(sorted.offsets.size()) - 1,
         static_cast<int32_t>(rows), matrices.n, matrices.k, y.as<float>()},
        stream());
    return Download<float>(y, size);
  }
  // One row by one expert's matrix, as any projection.
  std::vector<float> MultiplyAlone(const Bf16Bits* x, const Bf16Bits* w, int32_t n, int32_t k) {
    const DeviceBuffer dx = Upload(std::vector<Bf16Bits>(x, x + k));
    const DeviceBuffer dw = Upload(std::vector<Bf16Bits>(w, w + n * k));
    const DeviceBuffer y = Poisoned(static_cast<size_t>(n) * sizeof(float));
    DeviceGemmArgs args;
    args.x = dx.as<Bf16Bits>();
    args.w = dw.as<Bf16Bits>();
    args.rows = 1;
    args.n = n;
    args.k = k;
    args.y = y.as<float>();
    ops().gemm(args, stream());
    return Download<float>(y, static_cast<size_t>(n));
  }

  // What `route` promises, in double. `logits` of one row.
  static void ExpectRouted(const Shape& shape, const float* logits, bool renormalise,
                           const int32_t* experts, const float* weights) {
    std::vector<int32_t> order(static_cast<size_t>(shape.experts));
    std::iota(order.begin(), order.end(), 0);
    const auto value = [&](int32_t e) { return logits[e] != logits[e] ? -3.4e38f : logits[e]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return value(a) > value(b); });
    const double max = value(order[0]);
    order.resize(static_cast<size_t>(shape.top_k));
    std::sort(order.begin(), order.end());
    double sum = 0;
    if (renormalise) {
      for (int32_t e : order) sum += std::exp(value(e) - max);
    } else {
      for (int32_t e = 0; e < shape.experts; ++e) sum += std::exp(value(e) - max);
    }
    for (int32_t i = 0; i < shape.top_k; ++i) {
      const int32_t expert = order[static_cast<size_t>(i)];
      ASSERT_EQ(experts[i], expert) << "choice " << i;
      const double weight = std::exp(value(expert) - max) / sum;
      // A few roundings each of exp, the sum over up to 256 experts, and the quotient; exp of a
      // difference errs with the difference's own rounding.
      ASSERT_NEAR(weights[i], weight,
                  (32 + std::abs(value(expert) - max)) * kUnit * weight + 1e-37);
    }
  }
};
// The grouped product takes the portable kernels' steps on every chip, so theirs is what it equals.
INSTANTIATE_TEST_SUITE_P(All, DeviceMoeTest,
                         ::testing::Values(DeviceKind::kEmulated, DeviceKind::kCudaPortable),
                         DeviceName);

TEST_P(DeviceMoeTest, RowsGoToTheirLikeliestExperts) {
  for (int round = 0; round < (emulated() ? 20 : 100); ++round) {
    const Shape shape = RandomShape(12);
    std::vector<float> logits = Normal(static_cast<size_t>(shape.rows * shape.experts), 3.0f);
    if (round % 4 == 0) {
      for (float& logit : logits) logit = std::round(logit);  // ties
    }
    if (round % 5 == 0) logits[static_cast<size_t>(Uniform(0, shape.experts - 1))] = NAN;
    const bool renormalise = Uniform(0, 1) == 0;
    const Routed routed = Route(shape, logits, renormalise);
    for (int32_t row = 0; row < shape.rows; ++row) {
      ExpectRouted(shape, logits.data() + row * shape.experts, renormalise,
                   routed.experts.data() + row * shape.top_k,
                   routed.weights.data() + row * shape.top_k);
    }
    const int32_t row = Uniform(0, shape.rows - 1);
    const std::vector<float> own(logits.begin() + row * shape.experts,
                                 logits.begin() + (row + 1) * shape.experts);
    const Routed alone = Route({1, shape.experts, shape.top_k}, own, renormalise);
    ExpectSameBits(alone.weights.data(), routed.weights.data() + row * shape.top_k,
                   alone.weights.size(), "weights of a row alone");
  }
}

TEST_P(DeviceMoeTest, ChoicesComeInOrderOfExpertsThenRows) {
  for (int round = 0; round < (emulated() ? 12 : 60); ++round) {
    const Shape shape = RandomShape(round == 0 ? 1 : 90);
    const Routed routed =
        Route(shape, Normal(static_cast<size_t>(shape.rows * shape.experts), 3.0f), false);
    const Sorted sorted = Sort(shape, routed.experts);
    std::vector<size_t> order(routed.experts.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return routed.experts[a] < routed.experts[b]; });
    for (size_t place = 0; place < order.size(); ++place) {
      ASSERT_EQ(sorted.places[order[place]], static_cast<int32_t>(place));
      ASSERT_EQ(sorted.rows[place], static_cast<int32_t>(order[place]) / shape.top_k);
    }
    for (int32_t e = 0; e <= shape.experts; ++e) {
      const auto below = std::count_if(routed.experts.begin(), routed.experts.end(),
                                       [&](int32_t expert) { return expert < e; });
      ASSERT_EQ(sorted.offsets[static_cast<size_t>(e)], below) << "expert " << e;
    }
  }
}

TEST_P(DeviceMoeTest, AnExpertsProductHasTheBitsOfThePlainOne) {
  // Few rows an expert (the small tile), many (the medium one), and all rows with one expert.
  for (const Shape& shape : {Shape{1, 8, 2}, Shape{21, 8, 2}, Shape{70, 3, 2}, Shape{40, 1, 1}}) {
    const int32_t n = Uniform(1, 70), k = 8 * Uniform(1, 40);
    const std::vector<Bf16Bits> x = NormalBf16(static_cast<size_t>(shape.rows * k));
    const Matrices matrices = {n, k, NormalBf16(static_cast<size_t>(shape.experts * n * k))};
    const Routed routed =
        Route(shape, Normal(static_cast<size_t>(shape.rows * shape.experts), 1.0f), true);
    const Sorted sorted = Sort(shape, routed.experts);
    const std::vector<float> y = Multiply(sorted, matrices, x, true);
    // The same with rows laid out as they are multiplied.
    std::vector<Bf16Bits> gathered;
    for (int32_t row : sorted.rows) {
      gathered.insert(gathered.end(), x.begin() + row * k, x.begin() + (row + 1) * k);
    }
    const std::vector<float> same = Multiply(sorted, matrices, gathered, false);
    ExpectSameBits(same.data(), y.data(), y.size(), "rows in place");
    for (int check = 0; check < 12; ++check) {
      const int32_t choice = Uniform(0, static_cast<int32_t>(routed.experts.size()) - 1);
      const int32_t expert = routed.experts[static_cast<size_t>(choice)];
      const std::vector<float> alone = MultiplyAlone(
          x.data() + choice / shape.top_k * k, matrices.w.data() + int64_t{expert} * n * k, n, k);
      ExpectSameBits(alone.data(), y.data() + sorted.places[static_cast<size_t>(choice)] * n,
                     alone.size(), "choice " + std::to_string(choice));
    }
  }
}

TEST_P(DeviceMoeTest, ExpertsAreSummedInTheirOrder) {
  const Shape shape = {Uniform(1, 9), 8, Uniform(1, 4)};
  const int32_t size = Uniform(1, 600);
  const size_t choices = static_cast<size_t>(shape.rows * shape.top_k);
  const std::vector<float> y = Normal(choices * static_cast<size_t>(size));
  const std::vector<float> weights = Normal(choices),
                           before = Normal(static_cast<size_t>(shape.rows * size));
  std::vector<int32_t> places(choices);
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), generator_);
  for (bool add : {false, true}) {
    const DeviceBuffer dy = Upload(y), dplaces = Upload(places), dweights = Upload(weights);
    const DeviceBuffer out = add ? Upload(before) : Poisoned(before.size() * sizeof(float));
    ops().combine_experts({dy.as<float>(), dplaces.as<int32_t>(), dweights.as<float>(), shape.rows,
                           shape.top_k, size, add, out.as<float>()},
                          stream());
    const std::vector<float> actual = Download<float>(out, before.size());
    for (int32_t row = 0; row < shape.rows; ++row) {
      for (int32_t i = 0; i < size; ++i) {
        float sum = 0;
        for (int32_t j = 0; j < shape.top_k; ++j) {
          const size_t choice = static_cast<size_t>(row * shape.top_k + j);
          sum = std::fma(weights[choice], y[static_cast<size_t>(places[choice] * size + i)], sum);
        }
        const size_t at = static_cast<size_t>(row * size + i);
        const float expected = add ? before[at] + sum : sum;
        ASSERT_EQ(actual[at], expected) << "row " << row << " element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
