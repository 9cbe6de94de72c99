// The element formats of checkpoint tensors and their conversion to fp32, bit for bit as ggml
// (fp8: the Open Compute Project's OFP8) defines them. Callers read whole tensors through
// stored_tensor.h, which calls these functions row by row. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "common/model/stored_tensor.h"

namespace tandem::model {

// Quantised rows are runs of blocks; a row never shares a block with its neighbour.
struct TensorTypeLayout {
  absl::string_view name;
  int64_t block_elements = 1;
  int64_t block_bytes = 0;
};
const TensorTypeLayout& LayoutOf(TensorType type);

// ggml's numbering, as found in GGUF files; nullopt for a type that is not supported.
std::optional<TensorType> TensorTypeFromGgml(uint32_t ggml_type);
// The name of any ggml type, supported or not; "unknown" for numbers never assigned.
absl::string_view GgmlTypeName(uint32_t ggml_type);

// fp32 value of an IEEE half given by its bits.
float HalfToFloat(uint16_t half);

// Writes `columns` values of one row; of kF8E4M3 the elements alone, which scales multiply, and NaN
// for codes that are NaN. REQUIRES: columns is a multiple of the type's
// block_elements; `data` holds columns / block_elements blocks (any alignment).
void DequantizeRow(TensorType type, const std::byte* data, int64_t columns, float* out);

// One stored Q4_K block, kQ4KStoredBytes at any alignment, unpacked.
inline constexpr int64_t kQ4KStoredBytes = 144;
Q4KBlock UnpackQ4K(const std::byte* stored);

// -8 times a half-precision number, exactly; the largest finite one if the product is beyond the
// range.
uint16_t TimesMinusEight(uint16_t half);

}  // namespace tandem::model
