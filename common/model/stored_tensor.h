// A weight tensor where it lies in a mapped checkpoint file, and functions that read its rows in
// canonical form, dequantised to fp32 or in their stored blocks.
//
// Canonical form is the same for all files: matrices are [out_features, in_features], row-major;
// q and k rows are in Hugging Face's (half-split, "NeoX") RoPE order, so rows that GGUF stores in
// interleaved order are read un-permuted; RMSNorm weights multiply as they are, so a "+1" that the
// architecture leaves out of the file is added; fp8 elements are multiplied by their scales.
// Thread safety: values and pure functions. Owner: the Checkpoint, whose mapped files `data` points
// into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::model {

enum class TensorType {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kF8E4M3,  // no infinities; 0x7f and 0xff are NaN
};
// "Q4_K": as GGUF and safetensors name the type.
absl::string_view TensorTypeName(TensorType type);

// What the elements of an fp8 matrix are multiplied by, widened to fp32. The matrix is a grid of
// blocks of `rows` x `columns` elements, and each block has one scale. A block as large as the
// matrix means one scale per tensor; a block of one row means one scale per row.
struct TensorScales {
  // [ceil(tensor's rows / rows)][ceil(tensor's columns / columns)], finite and above 0.
  std::vector<float> values;
  int64_t rows = 0, columns = 0;
};

struct StoredTensor {
  std::string name;  // in the file
  TensorType type = TensorType::kF32;
  int64_t rows = 0;  // 1 for vectors
  int64_t columns = 0;
  // Raw bytes, `rows` rows of row_bytes each, in *file* order, at any alignment. When
  // permuted_head_rows = d > 0, canonical row h * d + p * d/2 + i (head h, half p) is file row
  // h * d + 2 * i + p; for a bias the same holds for its elements.
  const std::byte* data = nullptr;
  int64_t row_bytes = 0;
  int64_t permuted_head_rows = 0;  // head_dim when rows are in interleaved RoPE order, else 0
  bool add_one = false;            // 1 is added to each element on reading (norm weights)
  TensorScales scales;             // kF8E4M3 only
};

// Reads canonical rows [row_begin, row_begin + row_count) as fp32 into `out` [row_count * columns].
// REQUIRES: the range lies within the tensor and `out` has exactly that size.
void ReadRows(const StoredTensor& tensor, int64_t row_begin, int64_t row_count,
              absl::Span<float> out);

// A block of 32 weights of four bits: scale and offset in fp16, then 16 bytes whose low halves are
// elements 0 to 15 and high halves 16 to 31. Weight = scale * element + offset.
inline constexpr int64_t kInt4BlockWeights = 32;
inline constexpr int64_t kInt4BlockBytes = 20;
// Whether a tensor is stored in such blocks, or in blocks that convert to them without loss.
bool HasInt4Blocks(const StoredTensor& tensor);
// Reads canonical rows as blocks into `out` [row_count * columns / 32 * 20].
// REQUIRES: HasInt4Blocks; range and size as for ReadRows.
void ReadInt4Blocks(const StoredTensor& tensor, int64_t row_begin, int64_t row_count,
                    absl::Span<std::byte> out);

// Q4_K: super-blocks of 256 weights, eight groups of 32. Weight = d * scales[g] * element - dmin *
// mins[g]; elements of a group lie as in a block above.
struct Q4KBlock {
  uint16_t d, dmin;  // fp16
  uint8_t scales[8], mins[8];
  uint8_t elements[8][16];
};
inline constexpr int64_t kQ4KBlockWeights = 256;
bool HasQ4KBlocks(const StoredTensor& tensor);
// As ReadInt4Blocks, into `out` [row_count * columns / 256]. REQUIRES: HasQ4KBlocks.
void ReadQ4KBlocks(const StoredTensor& tensor, int64_t row_begin, int64_t row_count,
                   absl::Span<Q4KBlock> out);

// Whether a matrix is stored as fp8 with one scale per row or per tensor.
bool HasFp8Rows(const StoredTensor& tensor);
// A canonical row as stored: weight i = e4m3(codes[i]) * scale.
struct Fp8Row {
  const uint8_t* codes = nullptr;  // [columns], in the mapped file
  float scale = 1.0f;
};
// REQUIRES: HasFp8Rows; a row of the tensor.
Fp8Row ReadFp8Row(const StoredTensor& tensor, int64_t row);

// Checks canonical rows [row_begin, row_begin + row_count) for fp8 codes that are NaN. Opening a
// checkpoint does not read its weights, so an engine calls this when it loads them.
// Errors: kInvalidArgument naming the tensor and the place of the first NaN.
// REQUIRES: as ReadRows.
absl::Status CheckCodes(const StoredTensor& tensor, int64_t row_begin, int64_t row_count);

}  // namespace tandem::model
