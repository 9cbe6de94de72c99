#include "cli/bench/weight_bytes.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"

namespace tandem::engine {
namespace {

using model::StoredTensor;
using model::TensorRole;

// A weight as engines pack it: in groups of 32 with scale and offset, and in Q4_K's blocks of 256
// with scale and offset of the block and of each of its eight groups.
constexpr double kInt4Bytes = 20.0 / 32, kQ4KBytes = 148.0 / 256;

// "int8" of "cpu-avx2-1-wint8-kvbf16-b16".
absl::string_view TypesOf(absl::string_view numerics_id) {
  const size_t begin = numerics_id.find("-w");
  if (begin == absl::string_view::npos) return "";
  const absl::string_view types = numerics_id.substr(begin + 2);
  return types.substr(0, types.find("-kv"));
}

class Packing {
 public:
  Packing(const model::Checkpoint& checkpoint, absl::string_view types)
      : checkpoint_(checkpoint), stored_(absl::ConsumePrefix(&types, "stored-")), types_(types) {}

  bool Has(absl::string_view type) const { return absl::StrContains(types_, type); }

  // Of the matrix that the tensors of `roles` make together.
  double BytesOf(const std::vector<TensorRole>& roles, int layer) const {
    std::vector<const StoredTensor*> tensors;
    double weights = 0;
    for (const TensorRole role : roles) {
      const StoredTensor* tensor = checkpoint_.Find(role, layer);
      TANDEM_CHECK(tensor != nullptr, model::TensorRoleName(role), " of layer ", layer);
      tensors.push_back(tensor);
      weights += static_cast<double>(tensor->rows) * static_cast<double>(tensor->columns);
    }
    return weights * BytesEach(tensors, /*output=*/layer < 0);
  }

 private:
  double BytesEach(const std::vector<const StoredTensor*>& tensors, bool output) const {
    const auto all = [&](auto is_so) {
      return std::all_of(tensors.begin(), tensors.end(),
                         [&](const StoredTensor* tensor) { return is_so(*tensor); });
    };
    // Without a type of their own, Q4_K's groups are packed as others of four bits.
    const auto four_bits = [&](const StoredTensor& tensor) {
      return model::HasInt4Blocks(tensor) || (!Has("q4k") && model::HasQ4KBlocks(tensor));
    };
    if (stored_) {
      if (Has("q4k") && all(model::HasQ4KBlocks)) return kQ4KBytes;
      return Has("int4") && all(four_bits) ? kInt4Bytes : 1;
    }
    if (Has("int4")) return output ? 1 : kInt4Bytes;
    if (Has("int8") || Has("fp8")) return 1;
    const auto bf16 = [](const StoredTensor& tensor) {
      return tensor.type == model::TensorType::kBF16;
    };
    return Has("bf16") && (!Has("f32") || all(bf16)) ? 2 : 4;
  }

  const model::Checkpoint& checkpoint_;
  const bool stored_;
  const absl::string_view types_;
};

}  // namespace

WeightBytes WeightBytesOf(const model::Checkpoint& checkpoint, absl::string_view numerics_id) {
  const model::ModelConfig& config = checkpoint.config();
  const Packing packing(checkpoint, TypesOf(numerics_id));
  WeightBytes bytes;
  bytes.int8_products = packing.Has("int4") || packing.Has("int8") || packing.Has("q4k");
  for (int layer = 0; layer < config.num_layers; ++layer) {
    bytes.layers += packing.BytesOf({TensorRole::kQ, TensorRole::kK, TensorRole::kV}, layer) +
                    packing.BytesOf({TensorRole::kO}, layer) +
                    packing.BytesOf({TensorRole::kGate, TensorRole::kUp}, layer) +
                    packing.BytesOf({TensorRole::kDown}, layer);
  }
  const TensorRole output =
      config.tied_embeddings ? TensorRole::kTokenEmbedding : TensorRole::kOutput;
  bytes.output = packing.BytesOf({output}, -1);
  return bytes;
}

}  // namespace tandem::engine
