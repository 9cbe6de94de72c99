// Goal: a matrix gets the packed type that its format, its backend and what its tensors are stored
// as say, also where its tensors differ.
#include "common/engine/cpu/weight_format.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::engine {
namespace {

using kernels::WeightType;
using model::TensorType;

WeightType TypeOf(WeightFormat format, const std::vector<TensorType>& stored, bool output = false,
                  bool dot_products = false) {
  kernels::Backend backend;
  backend.dot_products = dot_products;
  std::vector<model::StoredTensor> tensors(stored.size());
  std::vector<const model::StoredTensor*> pointers;
  for (size_t i = 0; i < stored.size(); ++i) {
    tensors[i].type = stored[i];
    tensors[i].rows = tensors[i].columns = 256;
    pointers.push_back(&tensors[i]);
  }
  return PackedType(format, backend, pointers, output);
}

TEST(WeightFormat, KeepsWhatIsStoredInBf16WhereNothingElseIsFaster) {
  EXPECT_EQ(TypeOf(WeightFormat::kAuto, {TensorType::kBF16, TensorType::kBF16}), WeightType::kBf16);
  EXPECT_EQ(TypeOf(WeightFormat::kAuto, {TensorType::kBF16, TensorType::kF32}), WeightType::kF32);
  EXPECT_EQ(TypeOf(WeightFormat::kAuto, {TensorType::kF32}, false, true), WeightType::kBf16);
  EXPECT_EQ(TypeOf(WeightFormat::kF32, {TensorType::kBF16}, false, true), WeightType::kF32);
}

TEST(WeightFormat, KeepsTheOutputOfFourBitsInInt8) {
  EXPECT_EQ(TypeOf(WeightFormat::kInt4, {TensorType::kBF16}), WeightType::kInt4);
  EXPECT_EQ(TypeOf(WeightFormat::kInt4, {TensorType::kBF16}, true), WeightType::kInt8);
  EXPECT_EQ(TypeOf(WeightFormat::kInt8, {TensorType::kQ4_0}), WeightType::kInt8);
}

TEST(WeightFormat, KeepsFourBitsAsStoredOnlyWhereAllTensorsHaveThem) {
  constexpr WeightFormat kFormat = WeightFormat::kAsStored;
  EXPECT_EQ(TypeOf(kFormat, {TensorType::kQ4_K, TensorType::kQ4_K}), WeightType::kQ4K);
  EXPECT_EQ(TypeOf(kFormat, {TensorType::kQ4_K, TensorType::kQ6_K}), WeightType::kInt8);
  EXPECT_EQ(TypeOf(kFormat, {TensorType::kQ4_0, TensorType::kQ4_1}), WeightType::kInt4);
  EXPECT_EQ(TypeOf(kFormat, {TensorType::kBF16}), WeightType::kInt8);
  EXPECT_EQ(TypeOf(kFormat, {TensorType::kQ4_0}, true), WeightType::kInt4);
}

}  // namespace
}  // namespace tandem::engine
