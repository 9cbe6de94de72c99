// The write of K and V rows into the paged cache, and the read of one token
// (kernels/api/kv_cache.h).
//
// Element order inside a slab: K [block_tokens/16][head_dim][16], so that scores of 16 tokens are
// one FMA chain over head_dim; V [block_tokens][head_dim], so that outputs are one chain over
// tokens. A bf16 cache of a class with dot products or tile registers keeps pairs: K
// [block_tokens/16][head_dim/2][16][2], pairs along head_dim; V [block_tokens/2][head_dim][2],
// pairs of tokens. int8_cache.h has the order of an int8 cache.
#include "kernels/api/kv_cache.h"

#include "kernels/api/require.h"
#include "kernels/cpu/int8_cache.h"
#include "kernels/cpu/kv_view.h"
#include "kernels/cpu/ops.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

// The offset of element d of a token, from its tile of K or its (pair of) V.
template <typename T>
constexpr bool kPairs = kKeepsPairs && sizeof(T) == sizeof(Bf16);
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

#if defined(__AVX512BW__)
// RoundToBf16 of sixteen values, in the low halves of dwords.
TANDEM_INLINE __m512i RoundLanes(const float* x) {
  const __m512i bits = _mm512_loadu_si512(x);
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __m512 value = _mm512_castsi512_ps(bits);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
}

// One class of the processor calls these two.
// One token's K: pairs along head_dim go to lane token % 16 of the tile's rows.
[[maybe_unused]] TANDEM_INLINE void WriteKeyPairs(const float* k, int32_t head_dim, int32_t token,
                                                  Bf16* tile) {
  uint32_t* out = reinterpret_cast<uint32_t*>(tile) + token % 16;
  for (int32_t d = 0; d < head_dim; d += 16) {
    alignas(32) uint32_t pairs[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), _mm512_cvtepi32_epi16(RoundLanes(k + d)));
    for (int32_t i = 0; i < 8; ++i) out[(d / 2 + i) * 16] = pairs[i];
  }
}

// One token's V: its half of the dwords that hold a pair of tokens.
[[maybe_unused]] TANDEM_INLINE void WriteValuePairs(const float* v, int32_t head_dim, int32_t token,
                                                    Bf16* pair) {
  const bool odd = token % 2 != 0;
  for (int32_t d = 0; d < head_dim; d += 16) {
    const __m512i rounded = RoundLanes(v + d);
    _mm512_mask_storeu_epi16(pair + d * 2, odd ? 0xaaaaaaaau : 0x55555555u,
                             odd ? _mm512_slli_epi32(rounded, 16) : rounded);
  }
}
#endif

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
#if defined(__AVX512BW__)
    if constexpr (kPairs<T>) {
      WriteKeyPairs(k, head_dim, token, k_out);
      WriteValuePairs(v, head_dim, token, v_out);
      continue;
    }
#endif
    for (int32_t d = 0; d < head_dim; ++d) {
      k_out[KeyOffset<T>(token, d)] = RoundTo(k[d], static_cast<const T*>(nullptr));
      v_out[ValueOffset<T>(token, d)] = RoundTo(v[d], static_cast<const T*>(nullptr));
    }
  }
}

void WriteInt8Token(const KvWriteArgs& args, const SequenceRows& sequence, int32_t index) {
  const Int8View view(args.layer);
  const int32_t position = sequence.first_position + index;
  const int32_t block = sequence.block_table[position / view.block_tokens];
  const int32_t token = position % view.block_tokens;
  const int64_t row = static_cast<int64_t>(sequence.first_row) + index;
  alignas(64) uint8_t bytes[256];
  for (int32_t head = 0; head < args.layer.shape.num_kv_heads; ++head) {
    const Int8Tile key = view.Tile(block, head, 0, token / 16);
    const float* k = args.k + row * args.k_stride + head * view.head_dim;
    key.scales[token % 16] = QuantiseHead(k, 1.0f, view.head_dim, bytes);
    for (int32_t d = 0; d < view.head_dim; d += 4) {
      uint32_t quad = 0;
      __builtin_memcpy(&quad, bytes + d, 4);
      quad ^= 0x80808080u;  // q + 128
      __builtin_memcpy(key.bytes + view.KeyOffset(token, d), &quad, 4);
    }
    const Int8Tile value = view.Tile(block, head, 1, token / 16);
    const float* v = args.v + row * args.v_stride + head * view.head_dim;
    value.scales[token % 16] = QuantiseHead(v, 1.0f, view.head_dim, bytes);
    uint8_t* out = value.bytes + view.ValueOffset(token, 0);
    for (int32_t d = 0; d < view.head_dim; ++d) out[d * 2] = bytes[d];
  }
}

void ReadInt8Token(const KvReadArgs& args) {
  const Int8View view(args.layer);
  const Int8Tile tile = view.Tile(args.block, args.kv_head, args.value ? 1 : 0, args.token / 16);
  for (int32_t d = 0; d < view.head_dim; ++d) {
    const uint8_t byte = args.value ? tile.bytes[view.ValueOffset(args.token, d)]
                                    : tile.bytes[view.KeyOffset(args.token, d)] ^ 0x80;
    args.out[d] = static_cast<float>(static_cast<int8_t>(byte)) * tile.scales[args.token % 16];
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
  int64_t rows = 0;
  for (int32_t s = 0; s < args.num_sequences; ++s) rows += args.sequences[s].num_rows;
  // Tasks of some tokens, counted through all sequences.
  constexpr int64_t kTokensEach = 16;
  parallel((rows + kTokensEach - 1) / kTokensEach, [&](int64_t task, int) {
    int64_t skip = task * kTokensEach, left = kTokensEach;
    for (int32_t s = 0; s < args.num_sequences && left > 0; ++s) {
      const SequenceRows& sequence = args.sequences[s];
      if (skip >= sequence.num_rows) {
        skip -= sequence.num_rows;
        continue;
      }
      for (int32_t i = static_cast<int32_t>(skip); i < sequence.num_rows && left > 0; ++i, --left) {
        if (args.layer.shape.type == KvType::kInt8) {
          WriteInt8Token(args, sequence, i);
        } else if (args.layer.shape.type == KvType::kF32) {
          WriteToken<float>(args, sequence, i);
        } else {
          WriteToken<Bf16>(args, sequence, i);
        }
      }
      skip = 0;
    }
  });
}

void KvRead(const KvReadArgs& args) {
  RequireKvLayer(args.layer);
  if (args.layer.shape.type == KvType::kInt8) {
    ReadInt8Token(args);
  } else if (args.layer.shape.type == KvType::kF32) {
    ReadToken<float>(args);
  } else {
    ReadToken<Bf16>(args);
  }
}

}  // namespace tandem::kernels::TANDEM_ISA
