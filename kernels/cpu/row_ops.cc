// Operators on rows: RMSNorm, RoPE, gated activations, residual add, scale (kernels/api/rms_norm.h,
// rope.h and elementwise.h). All are bound by bytes;
// rows (or ranges of elements) go to threads in pieces large enough to be worth a task.
#include <cmath>

#include "kernels/api/require.h"
#include "kernels/cpu/activate.h"
#include "kernels/cpu/bf16_rows.h"
#include "kernels/cpu/ops.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

constexpr int64_t kLanes = 16;
// Elements worth a task of their own: about 4 µs of work at L2 speed.
constexpr int64_t kTaskElements = 16384;

// Calls fn(begin, end) over [0, count), in tasks of at least kTaskElements elements.
template <typename Fn>
TANDEM_INLINE void OverRanges(int64_t count, int64_t elements_each, const ParallelFor& parallel,
                              const Fn& fn) {
  const int64_t size = elements_each >= kTaskElements ? 1 : kTaskElements / elements_each;
  const int64_t tasks = (count + size - 1) / size;
  parallel(tasks, [&](int64_t task, int) {
    const int64_t end = (task + 1) * size;
    fn(task * size, end < count ? end : count);
  });
}

// Calls fn(i, mask) for each sixteen elements of [0, size). Finding a mask takes longer than the
// arithmetic here, and only the last sixteen need one.
template <typename Fn>
TANDEM_INLINE void OverVectors(int64_t size, const Fn& fn) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) fn(i, AllLanes{});
  if (i < size) fn(i, LaneRange(0, size - i));
}

float SumOfSquares(const float* x, int64_t size) {
  V16 sum = Zero();
  OverVectors(size, [&](int64_t i, auto mask) {
    const V16 value = LoadMasked(mask, x + i);
    sum = Fma(value, value, sum);
  });
  return ReduceAdd(sum);
}

// Norms the vector at x; `store(i, mask, value)` takes the elements from i on.
template <typename Store>
TANDEM_INLINE void NormVector(const RmsNormArgs& args, const float* x, const Store& store) {
  const float mean = SumOfSquares(x, args.size) / static_cast<float>(args.size);
  const V16 factor = Set1(1.0f / std::sqrt(mean + args.eps));
  OverVectors(args.size, [&](int64_t i, auto mask) {
    store(i, mask, Mul(Mul(LoadMasked(mask, x + i), factor), LoadMasked(mask, args.weight + i)));
  });
}

// Vector `i` of all rows and groups.
void NormOne(const RmsNormArgs& args, int64_t i) {
  const int64_t row = i / args.groups, offset = i % args.groups * args.size;
  const int64_t out = row * args.y_stride + offset;
  const float* x = args.x + row * args.x_stride + offset;
  if (args.y_bf16 != nullptr) {
    NormVector(args, x, [y = args.y_bf16 + out](int64_t at, auto mask, V16 value) {
      StoreBf16Masked(mask, y + at, value);
    });
    return;
  }
  if (args.residual != nullptr) {
    NormVector(args, x, [y = args.residual + out](int64_t at, auto mask, V16 value) {
      StoreMasked(mask, y + at, Add(LoadMasked(mask, y + at), value));
    });
    return;
  }
  NormVector(args, x, [y = args.y + out](int64_t at, auto mask, V16 value) {
    StoreMasked(mask, y + at, value);
  });
}

void RopeHead(float* x, const float* cos, const float* sin, int64_t half) {
  OverVectors(half, [&](int64_t i, auto mask) {
    V16 first = LoadMasked(mask, x + i), second = LoadMasked(mask, x + half + i);
    V16 c = LoadMasked(mask, cos + i), s = LoadMasked(mask, sin + i);
    StoreMasked(mask, x + i, Sub(Mul(first, c), Mul(second, s)));
    StoreMasked(mask, x + half + i, Add(Mul(second, c), Mul(first, s)));
  });
}

template <GateActivation kActivation>
void ActivateRow(const GatedActivationArgs& args, int64_t row) {
  const float* gate = args.gate + row * args.gate_stride;
  const float* up = args.up + row * args.up_stride;
  float* y = args.y + row * args.y_stride;
  OverVectors(args.size, [&](int64_t i, auto mask) {
    V16 g = LoadMasked(mask, gate + i), u = LoadMasked(mask, up + i);
    StoreMasked(mask, y + i, Mul(Activate<kActivation>(g), u));
  });
}

}  // namespace

void RmsNorm(const RmsNormArgs& args, const ParallelFor& parallel) {
  KERNEL_REQUIRE(args.size > 0 && args.groups > 0 && args.x_stride >= args.groups * args.size);
  KERNEL_REQUIRE((args.y != nullptr) + (args.residual != nullptr) + (args.y_bf16 != nullptr) == 1);
  KERNEL_REQUIRE(kTakesBf16 || args.y_bf16 == nullptr);
  KERNEL_REQUIRE(args.y_stride >= args.groups * args.size);
  OverRanges(args.rows * args.groups, args.size, parallel, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) NormOne(args, i);
  });
}

void Rope(const RopeArgs& args, const ParallelFor& parallel) {
  KERNEL_REQUIRE(args.head_dim > 0 && args.head_dim % 2 == 0);
  KERNEL_REQUIRE(args.x_stride >= static_cast<int64_t>(args.num_heads) * args.head_dim);
  const int64_t half = args.head_dim / 2;
  OverRanges(args.rows, static_cast<int64_t>(args.num_heads) * args.head_dim, parallel,
             [&](int64_t begin, int64_t end) {
               for (int64_t row = begin; row < end; ++row) {
                 const int64_t angles = args.positions[row] * half;
                 for (int32_t head = 0; head < args.num_heads; ++head) {
                   RopeHead(args.x + row * args.x_stride + head * args.head_dim, args.cos + angles,
                            args.sin + angles, half);
                 }
               }
             });
}

void GatedActivation(const GatedActivationArgs& args, const ParallelFor& parallel) {
  KERNEL_REQUIRE(args.size > 0);
  OverRanges(args.rows, args.size, parallel, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (args.activation == GateActivation::kSilu) {
        ActivateRow<GateActivation::kSilu>(args, row);
      } else {
        ActivateRow<GateActivation::kGeluTanh>(args, row);
      }
    }
  });
}

void AddInto(const float* x, float* y, int64_t size, const ParallelFor& parallel) {
  OverRanges(size, 1, parallel, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kLanes) {
      Mask16 mask = LaneRange(0, end - i);
      StoreMasked(mask, y + i, Add(LoadMasked(mask, y + i), LoadMasked(mask, x + i)));
    }
  });
}

void ScaleBy(float* x, float factor, int64_t size, const ParallelFor& parallel) {
  OverRanges(size, 1, parallel, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kLanes) {
      Mask16 mask = LaneRange(0, end - i);
      StoreMasked(mask, x + i, Mul(LoadMasked(mask, x + i), Set1(factor)));
    }
  });
}

}  // namespace tandem::kernels::TANDEM_ISA
