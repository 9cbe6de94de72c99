// The merge of two softmax partials. Partitions in one kernel, split decoding and partitions
// computed elsewhere all use this one function.
//   m' = max(m1, m2);  l' = l1·e^(m1−m') + l2·e^(m2−m');  o' = o1·e^(m1−m') + o2·e^(m2−m')
// Thread safety: pure functions.
#pragma once

#include "kernels/cpu/dot.h"

namespace tandem::kernels::TANDEM_ISA {

// The exponential that made the partials: e^x, or 2^x where scores carry log2 e.
struct NaturalExponential {
  TANDEM_INLINE V16 operator()(V16 x) const { return Exp(x); }
};
#if defined(__AVX512BF16__) || defined(TANDEM_TILE_CLASS)
struct BinaryExponential {
  TANDEM_INLINE V16 operator()(V16 x) const { return Exp2(x); }
};
#endif

// (m, l, o) of one query vector over some tokens. l = 0 means no tokens at all.
struct SoftmaxState {
  float* m;
  float* l;
  float* o;  // [head_dim]
};

// The same, read only.
struct SoftmaxPart {
  const float* m;
  const float* l;
  const float* o;

  TANDEM_INLINE SoftmaxPart(const float* m_in, const float* l_in, const float* o_in)
      : m(m_in), l(l_in), o(o_in) {}
  TANDEM_INLINE SoftmaxPart(const SoftmaxState& state)  // NOLINT(runtime/explicit): a view
      : m(state.m), l(state.l), o(state.o) {}
};

// into = merge(into, part), in this order. Merging nothing changes nothing.
template <typename Exponential>
TANDEM_INLINE void MergeSoftmax(const SoftmaxState& into, const SoftmaxPart& part,
                                int32_t head_dim) {
  if (*part.l == 0) return;
  if (*into.l == 0) {
    *into.m = *part.m;
    *into.l = *part.l;
    for (int32_t d = 0; d < head_dim; d += 16) Store(into.o + d, Load(part.o + d));
    return;
  }
  const float m = *into.m > *part.m ? *into.m : *part.m;
  const V16 old_factor = Exponential()(Set1(*into.m - m));
  const V16 new_factor = Exponential()(Set1(*part.m - m));
  *into.m = m;
  *into.l = First(Fma(Set1(*into.l), old_factor, Mul(Set1(*part.l), new_factor)));
  for (int32_t d = 0; d < head_dim; d += 16) {
    Store(into.o + d, Fma(Load(into.o + d), old_factor, Mul(Load(part.o + d), new_factor)));
  }
}

// out = o / l; `store(d, value)` takes the elements from d on.
template <typename StoreFn>
TANDEM_INLINE void FinishSoftmax(const SoftmaxPart& state, int32_t head_dim, const StoreFn& store) {
  const V16 l = Set1(*state.l);
  for (int32_t d = 0; d < head_dim; d += 16) store(d, Div(Load(state.o + d), l));
}

}  // namespace tandem::kernels::TANDEM_ISA
