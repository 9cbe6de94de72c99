// Every operator of an accelerator, as a function that enqueues on a stream. All pointers are
// device memory unless a comment says otherwise; sizes travel with the call, so that a captured
// graph replays with new contents of the same buffers.
//
// Numerics: bf16 matrix operands, weights by DeviceWeightType, cache by KvType; fp32 accumulators,
// norms, residual stream and logits. A row's bits depend on that row, the weights and its own cache
// only (docs/NUMERICS.md). Thread safety: constants. Errors: the stream's status.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/api/device.h"
#include "kernels/api/elementwise.h"
#include "kernels/api/kv_cache.h"
#include "kernels/api/sampling.h"

namespace tandem::kernels {

// A bf16 value as stored.
using Bf16Bits = uint16_t;

// Head sizes that attention and RoPE have kernels for.
constexpr bool IsDeviceHeadDim(int32_t head_dim) {
  return head_dim == 16 || head_dim == 32 || head_dim == 64 || head_dim == 128 || head_dim == 256;
}

struct DeviceEmbedArgs {
  const int32_t* tokens = nullptr;  // [rows]
  const Bf16Bits* table = nullptr;  // [vocab][size]
  float scale = 1.0f;
  int32_t rows = 0;
  int32_t size = 0;
  float* y = nullptr;  // [rows][size]
};

struct DeviceRmsNormArgs {
  const float* x = nullptr;         // [rows][size]
  const float* weight = nullptr;    // [size]
  const int32_t* gather = nullptr;  // [rows]: row of x that becomes row i; nullptr: row i
  float eps = 1e-5f;
  int32_t rows = 0;
  int32_t size = 0;
  Bf16Bits* y = nullptr;      // [rows][size], or nullptr
  float* residual = nullptr;  // [rows][size]: residual += norm(x) (a post-norm), or nullptr
};

// The projections of a layer on their way into attention: QK-norm, RoPE, rounding of q to bf16 and
// of K and V to the cache's type, K and V into the paged cache (vLLM's reshape_and_cache).
//
// A slab of a bf16 cache is [block_tokens][head_dim]; one of int8 or fp8 is tiles of 16 tokens,
// [16][head_dim] bytes and then the 16 tokens' fp32 scales.
struct DeviceRopeKvArgs {
  const float* qkv = nullptr;  // [rows][(num_heads + 2 num_kv_heads) · head_dim]: q, k, v
  int32_t rows = 0;
  int32_t num_heads = 0;
  const float* q_norm = nullptr;  // [head_dim] or nullptr
  const float* k_norm = nullptr;
  float eps = 1e-5f;
  const int32_t* positions = nullptr;  // [rows]
  const float* cos = nullptr;          // [positions][head_dim / 2]
  const float* sin = nullptr;
  // [rows] block · block_tokens + token within it; negative: this row only pads the batch.
  const int64_t* slots = nullptr;
  KvLayer layer;          // bf16, int8 or fp8
  Bf16Bits* q = nullptr;  // [rows][num_heads · head_dim]
};

struct DeviceGatedArgs {
  GateActivation activation = GateActivation::kSilu;
  const float* gate_up = nullptr;  // [rows][2 · size]: gate, up
  int32_t rows = 0;
  int32_t size = 0;
  Bf16Bits* y = nullptr;  // [rows][size]
};

// How a weight matrix lies in device memory; kernels/api/device_matrix.h packs rows so. ADR 0018.
//
// kBf16: [n][k]. kInt8: what kernels::WeightType::kInt8 means on a CPU, with its bits: integers and
// a scale for each row, activations rounded to int8 in groups of 64, exact sums of a group, one
// chain of FMAs. kInt4: groups of 32 as Int4Group, each weight scale · q + offset rounded to bf16
// on its way into the product with bf16 activations. kFp8: e4m3 and a scale for each row, the same
// product (bf16 holds an e4m3 number exactly). kFp8Rows: the same numbers as kFp8, multiplied as
// e4m3 with activations rounded to e4m3 in groups of 128, of which a tensor core's sums are scaled
// in one chain of FMAs (ADR 0029); on devices that have such products alone (HasProducts).
enum class DeviceWeightType { kBf16, kInt8, kInt4, kFp8, kFp8Rows };

// Rows of quantised matrices are padded with zeros to a multiple of this many columns.
inline constexpr int32_t kQuantisedColumns = 128;
constexpr int32_t PaddedColumns(int32_t k) {
  return (k + kQuantisedColumns - 1) / kQuantisedColumns * kQuantisedColumns;
}
// Activations that share a scale.
inline constexpr int32_t kInt8GroupSize = 64;
inline constexpr int32_t kFp8GroupSize = 128;
// Of what products with a type of weights read; 0: activations in bf16, which share none.
constexpr int32_t ActivationGroup(DeviceWeightType type) {
  if (type == DeviceWeightType::kInt8) return kInt8GroupSize;
  return type == DeviceWeightType::kFp8Rows ? kFp8GroupSize : 0;
}
// Rows that the scales of one group of rounded activations lie apart.
constexpr int32_t ScaleStride(int32_t rows) { return (rows + 3) / 4 * 4; }
// Bytes of activations rounded for a type of weights.
struct DeviceRoundedBytes {
  size_t values = 0, scales = 0;
};
constexpr DeviceRoundedBytes RoundedBytesOf(DeviceWeightType type, int32_t rows, int32_t k) {
  if (ActivationGroup(type) == 0) return {};
  const int32_t groups = PaddedColumns(k) / ActivationGroup(type);
  return {static_cast<size_t>(rows) * static_cast<size_t>(PaddedColumns(k)),
          static_cast<size_t>(groups) * static_cast<size_t>(ScaleStride(rows)) * sizeof(float)};
}

// x rounded as products with weights of `type` read it, each group of columns by its largest
// magnitude: x ≈ scale · value. To int8, or to e4m3; there what is not finite becomes NaN, and does
// not count as a magnitude.
struct DeviceQuantiseArgs {
  const Bf16Bits* x = nullptr;  // [rows][k], 16-byte boundary
  int32_t rows = 0;
  int32_t k = 0;           // a multiple of 8
  void* values = nullptr;  // [rows][PaddedColumns(k)] of a byte each, 16-byte boundary
  // [PaddedColumns(k) / ActivationGroup(type)][ScaleStride(rows)], 16-byte boundary
  float* scales = nullptr;
  DeviceWeightType type = DeviceWeightType::kInt8;
};

// y[m, n] = Σ_k x[m, k] · w[n, k] (+ bias[n]) (+ y[m, n]).
struct DeviceGemmArgs {
  const Bf16Bits* x = nullptr;  // [rows][k], 16-byte boundary
  const Bf16Bits* w = nullptr;  // [n][k], 16-byte boundary
  // For other types than kBf16 instead of w: device_matrix.h, both on 16-byte boundaries.
  DeviceWeightType type = DeviceWeightType::kBf16;
  const void* packed = nullptr;
  const void* scales = nullptr;
  // For kInt8 and kFp8Rows instead of x: what `quantise` makes of it.
  const void* x_rounded = nullptr;
  const float* x_scales = nullptr;
  int32_t rows = 0;
  int32_t n = 0;
  int32_t k = 0;                // a multiple of 8
  const float* bias = nullptr;  // [n] or nullptr
  bool add_to_y = false;
  float* y = nullptr;  // [rows][n], 8-byte boundary
  // When set, w's rows are one of a gate, one of an up projection, and so on; then act(gate) · up
  // is rounded to bf16 into here, [rows][n / 2], and y is not written. The same bits as `gated` on
  // the sums. REQUIRES: even n, not add_to_y.
  Bf16Bits* gated = nullptr;
  GateActivation activation = GateActivation::kSilu;
  // Of the device: how many blocks fill it. Decides the tile, and so speed, but no bit.
  int32_t multiprocessors = 1;
  // An index of DeviceOps::gemm_tile; negative: the kernel chooses by shape. No bit either.
  int32_t tile = -1;
};

// One of the tiles that a product has for a type of weights. Any of them computes any product.
struct DeviceGemmTile {
  int32_t rows = 0, n = 0, k = 0;  // of y, of y, and at a time
  int32_t stages = 0;
  size_t shared_bytes = 0;  // 0: there is no tile of this index
};

// Part of attention that one warp (or block) computes: see attention_schedule.h.
struct AttentionItem {
  int32_t first_row = 0;        // of the sequence's rows in the batch
  int32_t num_rows = 0;         // of the sequence in the batch
  int32_t first_position = 0;   // of first_row
  int32_t first_vector = 0;     // packed query vectors [first_vector, …) of the sequence's rows
  int32_t table_offset = 0;     // of the sequence's block table in `tables`
  int32_t first_partition = 0;  // partitions of 256 tokens [first, end)
  int32_t end_partition = 0;
  int32_t first_record = -1;  // of first_partition's partial result; −1: the item is whole
};
// A tile whose partitions were split among items, to be merged in index order.
struct AttentionMerge {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_vector = 0;
  int32_t first_record = 0;
  int32_t num_partitions = 0;
};
// How many of each there are, in device memory: a captured graph reads it anew each time.
struct AttentionCounts {
  int32_t narrow_items = 0;  // tiles of 16 query vectors, a warp each
  int32_t wide_items = 0;    // tiles of 64 query vectors, a block each
  int32_t merges = 0;
};

struct DeviceAttentionArgs {
  const Bf16Bits* q = nullptr;  // [rows][num_heads · head_dim]
  int32_t num_heads = 0;
  float scale = 0;
  int32_t sliding_window = 0;  // 0 = all
  KvLayer layer;               // a device head_dim; bf16, int8 or fp8
  const int32_t* tables = nullptr;
  const AttentionItem* narrow_items = nullptr;
  const AttentionItem* wide_items = nullptr;
  const AttentionMerge* merges = nullptr;
  const AttentionCounts* counts = nullptr;
  int32_t multiprocessors = 1;  // of the device: how many blocks a persistent grid has
  // Host-side bounds of the counts: how many blocks to launch. 0: the kernel is not launched.
  AttentionCounts launch;
  float* records = nullptr;  // [records][num_kv_heads][16][head_dim + 2], for split tiles
  Bf16Bits* out = nullptr;   // [rows][num_heads · head_dim]
};

// vLLM's copy_blocks: block pairs[i].to becomes a copy of block pairs[i].from.
struct BlockPair {
  int32_t from = 0;
  int32_t to = 0;
};
struct DeviceCopyBlocksArgs {
  char* base = nullptr;  // of a layer's region
  int64_t block_bytes = 0;
  const BlockPair* pairs = nullptr;  // [num_pairs]; no block is both read and written
  int32_t num_pairs = 0;
};

// Gathers cells (a block of one layer each) into a contiguous payload, or scatters one to them.
inline constexpr int32_t kMoveCellsMax = 128;
struct DeviceMoveCellsArgs {
  char* payload = nullptr;  // [count][cell_bytes], on a boundary of 16 bytes
  int64_t cell_bytes = 0;   // a multiple of 16
  int32_t count = 0;        // at most kMoveCellsMax
  bool gather = true;
  char* cells[kMoveCellsMax] = {};  // [count], on boundaries of 16 bytes; scattered to: distinct
};

// checksums[i] = XXH3-64 of range i, as the host's library gives it.
struct DeviceChecksumArgs {
  const char* base = nullptr;  // of range 0; any alignment, multiples of 8 are fast
  int64_t stride_bytes = 0;    // from range to range
  int64_t bytes = 0;           // of each range, at least kChecksumBytesMin
  int32_t count = 0;
  uint64_t* checksums = nullptr;  // [count]
};
// Shorter ones have algorithms of their own in XXH3; no block of KV is that short.
inline constexpr int64_t kChecksumBytesMin = 241;

// One row's sampling, pointers to device memory. Meaning as in kernels/api/sampling.h, and the same
// bits as the CPU's vector classes give.
struct DeviceSampleRow {
  int32_t known_token = -1;  // ≥ 0: no choice is left, only its log-probabilities are wanted
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f, presence_penalty = 0.0f, frequency_penalty = 0.0f;
  int32_t num_biases = 0, num_counts = 0;
  const TokenBias* biases = nullptr;
  const TokenCount* counts = nullptr;
  const uint32_t* allowed_tokens = nullptr;
  uint64_t seed = 0;
  uint32_t sequence_index = 0, position = 0;
  int32_t want_logprob = 0;
  int32_t num_top_logprobs = 0;
  TokenLogprob* top_logprobs = nullptr;  // [num_top_logprobs ≤ vocab_size]
};
struct DeviceSampleArgs {
  const float* logits = nullptr;  // [rows][vocab_size]
  int32_t vocab_size = 0;
  int32_t rows = 0;
  const DeviceSampleRow* parameters = nullptr;  // [rows]
  float* work = nullptr;                        // [rows][vocab_size]
  SamplingResult* results = nullptr;            // [rows]
};

// A mixture of experts. Rows choose experts; choices are then put in order of their experts, so
// that each expert's are consecutive, multiplied by their expert's matrices, and summed again.
constexpr int32_t kExpertsMax = 256;
constexpr int32_t kExpertsPerRowMax = 32;

// Each row's top_k most likely experts, ties to the lower index. Weights are softmax over all
// experts, or over the chosen ones (Mixtral; Qwen3-MoE's norm_topk_prob).
struct DeviceRouteArgs {
  const float* logits = nullptr;  // [rows][num_experts]; a NaN is the least likely
  int32_t rows = 0;
  int32_t num_experts = 0;  // ≤ kExpertsMax
  int32_t top_k = 0;        // ≤ kExpertsPerRowMax, ≤ num_experts
  bool renormalise = false;
  int32_t* experts = nullptr;  // [rows][top_k], ascending
  float* weights = nullptr;    // [rows][top_k]
};

struct DeviceSortByExpertArgs {
  const int32_t* experts = nullptr;  // [num_choices]: [rows][top_k] as DeviceRouteArgs left them
  int32_t num_choices = 0;           // rows · top_k
  int32_t top_k = 0;
  int32_t num_experts = 0;
  int32_t* offsets =
      nullptr;              // [num_experts + 1]: expert e's places are [offsets[e], offsets[e + 1])
  int32_t* rows = nullptr;  // [num_choices]: the row of a place's choice
  int32_t* places = nullptr;  // [num_choices]: the place of a choice
};

// y[i, n] = Σ_k x[i, k] · w[e, n, k], e the expert whose places i is among.
struct DeviceGroupedGemmArgs {
  const Bf16Bits* x = nullptr;       // [·][k], 16-byte boundary
  const int32_t* gather = nullptr;   // [rows]: row of x for row i; nullptr: row i
  const Bf16Bits* w = nullptr;       // [num_experts][n][k], 16-byte boundary
  const int32_t* offsets = nullptr;  // [num_experts + 1], ascending from 0 to `rows`
  int32_t num_experts = 0;
  int32_t rows = 0;
  int32_t n = 0;
  int32_t k = 0;       // a multiple of 8
  float* y = nullptr;  // [rows][n]
};

// out[r] (+)= Σ_j weights[r, j] · y[places[r, j]], j ascending.
struct DeviceCombineArgs {
  const float* y = nullptr;         // [rows · top_k][size]
  const int32_t* places = nullptr;  // [rows][top_k]
  const float* weights = nullptr;   // [rows][top_k]
  int32_t rows = 0;
  int32_t top_k = 0;
  int32_t size = 0;
  bool add_to_out = false;
  float* out = nullptr;  // [rows][size]
};

struct DeviceOps {
  const char* numerics = "";  // equal strings promise equal bits on equal GPUs
  void (*embed)(const DeviceEmbedArgs& args, DeviceStream& stream) = nullptr;
  void (*rms_norm)(const DeviceRmsNormArgs& args, DeviceStream& stream) = nullptr;
  void (*rope_kv)(const DeviceRopeKvArgs& args, DeviceStream& stream) = nullptr;
  void (*gated)(const DeviceGatedArgs& args, DeviceStream& stream) = nullptr;
  void (*quantise)(const DeviceQuantiseArgs& args, DeviceStream& stream) = nullptr;
  void (*gemm)(const DeviceGemmArgs& args, DeviceStream& stream) = nullptr;
  DeviceGemmTile (*gemm_tile)(DeviceWeightType type, int32_t index) = nullptr;
  void (*attention)(const DeviceAttentionArgs& args, DeviceStream& stream) = nullptr;
  void (*copy_blocks)(const DeviceCopyBlocksArgs& args, DeviceStream& stream) = nullptr;
  void (*move_cells)(const DeviceMoveCellsArgs& args, DeviceStream& stream) = nullptr;
  void (*checksum)(const DeviceChecksumArgs& args, DeviceStream& stream) = nullptr;
  void (*sample)(const DeviceSampleArgs& args, DeviceStream& stream) = nullptr;
  void (*route_experts)(const DeviceRouteArgs& args, DeviceStream& stream) = nullptr;
  void (*sort_by_expert)(const DeviceSortByExpertArgs& args, DeviceStream& stream) = nullptr;
  void (*grouped_gemm)(const DeviceGroupedGemmArgs& args, DeviceStream& stream) = nullptr;
  void (*combine_experts)(const DeviceCombineArgs& args, DeviceStream& stream) = nullptr;
};

// Whether a device's `gemm` takes weights of this type.
inline bool HasProducts(const DeviceOps& ops, DeviceWeightType type) {
  return ops.gemm_tile(type, 0).shared_bytes > 0;
}

}  // namespace tandem::kernels
