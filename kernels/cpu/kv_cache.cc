// Writing rows of K and V into the paged cache, and reading one token back.
//
// Element order inside a slab: K [block_tokens/16][head_dim][16], so that scores of 16 tokens are
// one FMA chain over head_dim; V [block_tokens][head_dim], so that outputs are one chain over
// tokens. A bf16 cache of a class with dot products keeps pairs: K
// [block_tokens/16][head_dim/2][16] [2], pairs along head_dim; V [block_tokens/2][head_dim][2],
// pairs of tokens.
#include "kernels/api/kv_cache.h"

#include "kernels/api/require.h"
#include "kernels/cpu/gemm_dot.h"
#include "kernels/cpu/kv_view.h"
#include "kernels/cpu/ops.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

// Where element d of a token lies, from its tile of K or its (pair of) V.
template <typename T>
constexpr bool kPairs = kHasDotProducts && sizeof(T) == sizeof(Bf16);
template <typename T>
TANDEM_INLINE int64_t KeyOffset(int32_t token, int32_t d) {
  return kPairs<T> ? (d / 2 * 16 + token % 16) * 2 + d % 2 : d * 16 + token % 16;
}
template <typename T>
TANDEM_INLINE int64_t ValueOffset(int32_t token, int32_t d) {
  return kPairs<T> ? d * 2 + token % 2 : d;
}
template <typename T>
TANDEM_INLINE int32_t ValueToken(int32_t token) {
  return kPairs<T> ? token & ~1 : token;
}

template <typename T>
void WriteToken(const KvWriteArgs& args, const SequenceRows& sequence, int32_t index) {
  const KvView<T> view(args.layer);
  const int32_t head_dim = args.layer.shape.head_dim;
  const int32_t position = sequence.first_position + index;
  const int32_t block = sequence.block_table[position / view.block_tokens];
  const int32_t token = position % view.block_tokens;
  const int64_t row = static_cast<int64_t>(sequence.first_row) + index;
  for (int32_t head = 0; head < args.layer.shape.num_kv_heads; ++head) {
    const float* k = args.k + row * args.k_stride + head * head_dim;
    const float* v = args.v + row * args.v_stride + head * head_dim;
    T* k_out = view.KeyTile(block, head, token / 16);
    T* v_out = view.Value(block, head, ValueToken<T>(token));
    for (int32_t d = 0; d < head_dim; ++d) {
      k_out[KeyOffset<T>(token, d)] = RoundTo(k[d], static_cast<const T*>(nullptr));
      v_out[ValueOffset<T>(token, d)] = RoundTo(v[d], static_cast<const T*>(nullptr));
    }
  }
}

template <typename T>
void ReadToken(const KvReadArgs& args) {
  const KvView<T> view(args.layer);
  for (int32_t d = 0; d < args.layer.shape.head_dim; ++d) {
    args.out[d] = args.value
                      ? Widen(view.Value(args.block, args.kv_head,
                                         ValueToken<T>(args.token))[ValueOffset<T>(args.token, d)])
                      : Widen(view.KeyTile(args.block, args.kv_head,
                                           args.token / 16)[KeyOffset<T>(args.token, d)]);
  }
}

}  // namespace

void KvWrite(const KvWriteArgs& args, const ParallelFor& parallel) {
  RequireKvLayer(args.layer);
  const int64_t row_size =
      static_cast<int64_t>(args.layer.shape.num_kv_heads) * args.layer.shape.head_dim;
  KERNEL_REQUIRE(args.k_stride >= row_size && args.v_stride >= row_size);
  // Tasks of about 16 tokens: a sequence's rows, cut.
  constexpr int32_t kTokensEach = 16;
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    const SequenceRows& sequence = args.sequences[s];
    parallel((sequence.num_rows + kTokensEach - 1) / kTokensEach, [&](int64_t task, int) {
      const int32_t begin = static_cast<int32_t>(task) * kTokensEach;
      for (int32_t i = begin; i < begin + kTokensEach && i < sequence.num_rows; ++i) {
        if (args.layer.shape.type == KvType::kF32) {
          WriteToken<float>(args, sequence, i);
        } else {
          WriteToken<Bf16>(args, sequence, i);
        }
      }
    });
  }
}

void KvRead(const KvReadArgs& args) {
  RequireKvLayer(args.layer);
  if (args.layer.shape.type == KvType::kF32) {
    ReadToken<float>(args);
  } else {
    ReadToken<Bf16>(args);
  }
}

}  // namespace tandem::kernels::TANDEM_ISA
