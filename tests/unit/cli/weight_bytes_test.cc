// Goal: the bytes of weights that the roof of `tandem bench engine` counts are those that each kind
// of packed matrix takes, by hand: where a checkpoint stores matrices in four bits, those too.
#include "cli/bench/weight_bytes.h"

#include <gmock/gmock.h>

#include <map>

namespace tandem::engine {
namespace {

using model::TensorRole;
using model::TensorType;

constexpr int64_t kHidden = 512, kKvRows = 256, kFfn = 1024, kVocabulary = 1000;
// Weights of one layer's matrices.
constexpr double kQkv = 1.0 * (kHidden + 2 * kKvRows) * kHidden, kO = 1.0 * kHidden * kHidden;
constexpr double kGateUp = 2.0 * kFfn * kHidden, kDown = 1.0 * kHidden * kFfn;
constexpr double kOutput = 1.0 * kVocabulary * kHidden;
constexpr double kQ4K = 148.0 / 256, kInt4 = 20.0 / 32;

// Two equal layers, and an output matrix in Q6_K.
class FakeCheckpoint final : public model::Checkpoint {
 public:
  explicit FakeCheckpoint(TensorType layers) {
    config_.num_layers = 2;
    config_.hidden_size = kHidden;
    Add(TensorRole::kOutput, TensorType::kQ6_K, kVocabulary, kHidden);
    for (const auto& [role, rows, columns] :
         std::vector<std::tuple<TensorRole, int64_t, int64_t>>{{TensorRole::kQ, kHidden, kHidden},
                                                               {TensorRole::kK, kKvRows, kHidden},
                                                               {TensorRole::kV, kKvRows, kHidden},
                                                               {TensorRole::kO, kHidden, kHidden},
                                                               {TensorRole::kGate, kFfn, kHidden},
                                                               {TensorRole::kUp, kFfn, kHidden},
                                                               {TensorRole::kDown, kHidden, kFfn}})
      Add(role, layers, rows, columns);
  }
  void Add(TensorRole role, TensorType type, int64_t rows, int64_t columns) {
    model::StoredTensor& tensor = tensors_[role];
    tensor.type = type;
    tensor.rows = rows;
    tensor.columns = columns;
  }
  void SetType(TensorRole role, TensorType type) { tensors_[role].type = type; }

  const model::ModelConfig& config() const override { return config_; }
  const model::TokenizerSource& tokenizer() const override { return tokenizer_; }
  const std::string& chat_template() const override { return text_; }
  const std::string& tool_chat_template() const override { return text_; }
  const std::vector<int32_t>& stop_token_ids() const override { return stops_; }
  const model::StoredTensor* Find(TensorRole role, int) const override {
    const auto found = tensors_.find(role);
    return found == tensors_.end() ? nullptr : &found->second;
  }
  const std::vector<model::CheckpointFile>& files() const override { return files_; }
  const std::string& fingerprint() const override { return text_; }

 private:
  model::ModelConfig config_;
  model::TokenizerSource tokenizer_;
  std::string text_;
  std::vector<int32_t> stops_;
  std::vector<model::CheckpointFile> files_;
  std::map<TensorRole, model::StoredTensor> tensors_;
};

void ExpectBytes(const FakeCheckpoint& checkpoint, const std::string& types, double layer,
                 double output) {
  const WeightBytes bytes = WeightBytesOf(checkpoint, "cpu-avx2-1-w" + types + "-kvbf16-b16");
  EXPECT_DOUBLE_EQ(bytes.layers, 2 * layer) << types;
  EXPECT_DOUBLE_EQ(bytes.output, output) << types;
  EXPECT_EQ(bytes.int8_products, types.find("int") != std::string::npos) << types;
}

TEST(WeightBytes, OfOneTypeForAllMatrices) {
  const FakeCheckpoint checkpoint(TensorType::kBF16);
  const double all = kQkv + kO + kGateUp + kDown;
  ExpectBytes(checkpoint, "f32", 4 * all, 4 * kOutput);
  ExpectBytes(checkpoint, "bf16", 2 * all, 2 * kOutput);
  ExpectBytes(checkpoint, "bf16+f32", 2 * all, 4 * kOutput);
  ExpectBytes(checkpoint, "int8", all, kOutput);
  ExpectBytes(checkpoint, "int4+int8", kInt4 * all, kOutput);
  ExpectBytes(checkpoint, "fp8+int8", all, kOutput);
}

TEST(WeightBytes, OfMatricesThatStayAsTheyAreStored) {
  FakeCheckpoint checkpoint(TensorType::kQ4_K);
  const double all = kQkv + kO + kGateUp + kDown;
  ExpectBytes(checkpoint, "stored-int8+q4k", kQ4K * all, kOutput);
  // A GPU keeps the groups of Q4_K as others of four bits.
  ExpectBytes(checkpoint, "stored-int4+int8", kInt4 * all, kOutput);
  // As Q4_K_M files have it: parts of some fused matrices have more bits.
  checkpoint.SetType(TensorRole::kV, TensorType::kQ6_K);
  checkpoint.SetType(TensorRole::kDown, TensorType::kQ6_K);
  ExpectBytes(checkpoint, "stored-int8+q4k", kQkv + kDown + kQ4K * (kO + kGateUp), kOutput);
  checkpoint.SetType(TensorRole::kO, TensorType::kQ4_0);
  ExpectBytes(checkpoint, "stored-int4+int8+q4k", kQkv + kDown + kInt4 * kO + kQ4K * kGateUp,
              kOutput);
}

}  // namespace
}  // namespace tandem::engine
