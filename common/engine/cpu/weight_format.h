// How the CPU engine keeps weights, and the packed type of each matrix that follows from it. Thread
// safety: pure functions.
#pragma once

#include "absl/types/span.h"
#include "common/model/stored_tensor.h"
#include "kernels/api/backend.h"

namespace tandem::engine {

// kAuto: bf16 where the backend multiplies bf16 pairs; elsewhere weights stored as bf16 stay bf16
// (exact) and everything else becomes fp32. kInt8, kInt4: see kernels::WeightType; kInt4 keeps the
// output matrix in int8. kAsStored keeps matrices stored in blocks of four bits (Q4_0, Q4_1, Q4_K)
// as they are and rounds all others to int8, fp8 included: CPUs have no fp8 products, and int8 adds
// a third of the error that fp8 made (docs/NUMERICS.md).
enum class WeightFormat { kAuto, kF32, kBf16, kInt8, kInt4, kAsStored };

// Whether products take activations rounded to int8, and so give the same bits in every class.
constexpr bool HasExactProducts(WeightFormat format) {
  return format == WeightFormat::kInt8 || format == WeightFormat::kInt4 ||
         format == WeightFormat::kAsStored;
}

// The type in which `backend` keeps the matrix that `tensors` make together. `output`: it computes
// the logits.
kernels::WeightType PackedType(WeightFormat format, const kernels::Backend& backend,
                               absl::Span<const model::StoredTensor* const> tensors, bool output);

// "f32", "bf16", "int8", "int4", "q4k".
const char* WeightTypeName(kernels::WeightType type);

}  // namespace tandem::engine
