#include "common/model/stored_tensor.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/model/dequantize.h"

namespace tandem::model {
namespace {

// The file row (or bias element) that holds canonical row `row`; see StoredTensor.
int64_t FileRow(const StoredTensor& tensor, int64_t row) {
  const int64_t head_rows = tensor.permuted_head_rows;
  if (head_rows == 0) return row;
  const int64_t half = head_rows / 2;
  const int64_t within = row % head_rows;
  return row - within + 2 * (within % half) + within / half;
}

void CheckRows(const StoredTensor& tensor, int64_t begin, int64_t count) {
  TANDEM_CHECK(begin >= 0 && count >= 0 && begin <= tensor.rows - count, "tensor ", tensor.name,
               ": rows ", begin, " + ", count, " of ", tensor.rows);
}

// Multiplies the elements of file row `row` by their scales. Each product is rounded once.
void ApplyScales(const StoredTensor& tensor, int64_t row, float* values) {
  const TensorScales& scales = tensor.scales;
  const int64_t in_row = (tensor.columns + scales.columns - 1) / scales.columns;
  const float* next = scales.values.data() + row / scales.rows * in_row;
  for (int64_t begin = 0; begin < tensor.columns; begin += scales.columns, ++next) {
    const int64_t end = std::min(begin + scales.columns, tensor.columns);
    for (int64_t i = begin; i < end; ++i) values[i] *= *next;
  }
}

bool IsNoNumber(std::byte code) { return (code & std::byte{0x7f}) == std::byte{0x7f}; }

}  // namespace

void ReadRows(const StoredTensor& tensor, int64_t row_begin, int64_t row_count,
              absl::Span<float> out) {
  CheckRows(tensor, row_begin, row_count);
  TANDEM_CHECK(static_cast<int64_t>(out.size()) == row_count * tensor.columns, "tensor ",
               tensor.name, ": ", out.size(), " floats for ", row_count, " rows");
  const bool is_permuted_vector = tensor.rows == 1 && tensor.permuted_head_rows > 0;
  for (int64_t i = 0; i < row_count; ++i) {
    const int64_t row = is_permuted_vector ? 0 : FileRow(tensor, row_begin + i);
    DequantizeRow(tensor.type, tensor.data + row * tensor.row_bytes, tensor.columns,
                  out.data() + i * tensor.columns);
    if (!tensor.scales.values.empty()) ApplyScales(tensor, row, out.data() + i * tensor.columns);
  }
  if (is_permuted_vector && row_count == 1) {
    const std::vector<float> stored(out.begin(), out.end());
    for (int64_t i = 0; i < tensor.columns; ++i) {
      out[static_cast<size_t>(i)] = stored[static_cast<size_t>(FileRow(tensor, i))];
    }
  }
  if (tensor.add_one) {
    for (float& value : out) value += 1.0f;
  }
}

bool HasInt4Blocks(const StoredTensor& tensor) {
  return (tensor.type == TensorType::kQ4_0 || tensor.type == TensorType::kQ4_1) && !tensor.add_one;
}

void ReadInt4Blocks(const StoredTensor& tensor, int64_t row_begin, int64_t row_count,
                    absl::Span<std::byte> out) {
  TANDEM_CHECK(HasInt4Blocks(tensor), "tensor ", tensor.name);
  CheckRows(tensor, row_begin, row_count);
  const int64_t blocks = tensor.columns / kInt4BlockWeights;
  TANDEM_CHECK(static_cast<int64_t>(out.size()) == row_count * blocks * kInt4BlockBytes, "tensor ",
               tensor.name, ": ", out.size(), " bytes for ", row_count, " rows");
  std::byte* next = out.data();
  for (int64_t i = 0; i < row_count; ++i) {
    const std::byte* row = tensor.data + FileRow(tensor, row_begin + i) * tensor.row_bytes;
    if (tensor.type == TensorType::kQ4_1) {  // stored as blocks of this kind
      next = std::copy_n(row, blocks * kInt4BlockBytes, next);
      continue;
    }
    for (int64_t b = 0; b < blocks; ++b, row += 18, next += kInt4BlockBytes) {
      uint16_t scale = 0;
      std::memcpy(&scale, row, sizeof(scale));
      const uint16_t offset = TimesMinusEight(scale);
      std::memcpy(next, &scale, sizeof(scale));
      std::memcpy(next + 2, &offset, sizeof(offset));
      std::memcpy(next + 4, row + 2, 16);
    }
  }
}

bool HasQ4KBlocks(const StoredTensor& tensor) {
  return tensor.type == TensorType::kQ4_K && !tensor.add_one;
}

void ReadQ4KBlocks(const StoredTensor& tensor, int64_t row_begin, int64_t row_count,
                   absl::Span<Q4KBlock> out) {
  TANDEM_CHECK(HasQ4KBlocks(tensor), "tensor ", tensor.name);
  CheckRows(tensor, row_begin, row_count);
  const int64_t blocks = tensor.columns / kQ4KBlockWeights;
  TANDEM_CHECK(static_cast<int64_t>(out.size()) == row_count * blocks, "tensor ", tensor.name, ": ",
               out.size(), " blocks for ", row_count, " rows");
  Q4KBlock* next = out.data();
  for (int64_t i = 0; i < row_count; ++i) {
    const std::byte* row = tensor.data + FileRow(tensor, row_begin + i) * tensor.row_bytes;
    for (int64_t b = 0; b < blocks; ++b) *next++ = UnpackQ4K(row + b * kQ4KStoredBytes);
  }
}

bool HasFp8Rows(const StoredTensor& tensor) {
  return tensor.type == TensorType::kF8E4M3 && tensor.scales.columns >= tensor.columns &&
         !tensor.add_one;
}

Fp8Row ReadFp8Row(const StoredTensor& tensor, int64_t row) {
  TANDEM_CHECK(HasFp8Rows(tensor), "tensor ", tensor.name);
  CheckRows(tensor, row, 1);
  const int64_t file_row = FileRow(tensor, row);
  return {reinterpret_cast<const uint8_t*>(tensor.data + file_row * tensor.row_bytes),
          tensor.scales.values[static_cast<size_t>(file_row / tensor.scales.rows)]};
}

absl::Status CheckCodes(const StoredTensor& tensor, int64_t row_begin, int64_t row_count) {
  CheckRows(tensor, row_begin, row_count);
  if (tensor.type != TensorType::kF8E4M3) return absl::OkStatus();
  for (int64_t row = row_begin; row < row_begin + row_count; ++row) {
    const std::byte* begin = tensor.data + FileRow(tensor, row) * tensor.row_bytes;
    const std::byte* end = begin + tensor.row_bytes;
    const std::byte* found = std::find_if(begin, end, IsNoNumber);
    if (found == end) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", tensor.name, ": row ", row, ", column ", found - begin, " is 0x",
        absl::Hex(static_cast<unsigned>(*found)), ", which is NaN in F8_E4M3; expected a number"));
  }
  return absl::OkStatus();
}

}  // namespace tandem::model
