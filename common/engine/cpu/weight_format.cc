#include "common/engine/cpu/weight_format.h"

#include <algorithm>

namespace tandem::engine {

using kernels::WeightType;
using model::StoredTensor;

WeightType PackedType(WeightFormat format, const kernels::Backend& backend,
                      absl::Span<const StoredTensor* const> tensors, bool output) {
  const auto all = [&](bool (*is_so)(const StoredTensor&)) {
    return std::all_of(tensors.begin(), tensors.end(),
                       [&](const StoredTensor* tensor) { return is_so(*tensor); });
  };
  switch (format) {
    case WeightFormat::kF32:
      return WeightType::kF32;
    case WeightFormat::kBf16:
      return WeightType::kBf16;
    case WeightFormat::kInt8:
      return WeightType::kInt8;
    case WeightFormat::kInt4:
      // The output matrix's errors go straight into the logits: four bits there cost more accuracy
      // than in all layers together.
      return output ? WeightType::kInt8 : WeightType::kInt4;
    case WeightFormat::kAsStored:
      if (all(model::HasQ4KBlocks)) return WeightType::kQ4K;
      return all(model::HasInt4Blocks) ? WeightType::kInt4 : WeightType::kInt8;
    case WeightFormat::kAuto:
      break;
  }
  const bool bf16 =
      all([](const StoredTensor& tensor) { return tensor.type == model::TensorType::kBF16; });
  return bf16 || backend.dot_products ? WeightType::kBf16 : WeightType::kF32;
}

const char* WeightTypeName(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "f32";
    case WeightType::kBf16:
      return "bf16";
    case WeightType::kInt8:
      return "int8";
    case WeightType::kInt4:
      return "int4";
    case WeightType::kQ4K:
      return "q4k";
  }
  return "";
}

}  // namespace tandem::engine
