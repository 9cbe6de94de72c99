// Goal: a vocabulary that is too large for the sampling kernel is refused when the engine starts.
#include "common/model/checkpoint.h"
#include "tests/golden/device_engine/device_engines.h"

namespace tandem::engine {
namespace {

using ::testing::HasSubstr;

// A tiny checkpoint that says that it has `vocab_size` tokens.
class OfVocabulary final : public model::Checkpoint {
 public:
  OfVocabulary(const model::Checkpoint& tiny, int32_t vocab_size)
      : tiny_(tiny), config_(tiny.config()) {
    config_.vocab_size = vocab_size;
  }
  const model::ModelConfig& config() const override { return config_; }
  const model::TokenizerSource& tokenizer() const override { return tiny_.tokenizer(); }
  const std::string& chat_template() const override { return tiny_.chat_template(); }
  const std::string& tool_chat_template() const override { return tiny_.tool_chat_template(); }
  const std::vector<int32_t>& stop_token_ids() const override { return tiny_.stop_token_ids(); }
  const model::StoredTensor* Find(model::TensorRole role, int layer) const override {
    return tiny_.Find(role, layer);
  }
  const std::vector<model::CheckpointFile>& files() const override { return tiny_.files(); }
  const std::string& fingerprint() const override { return tiny_.fingerprint(); }

 private:
  const model::Checkpoint& tiny_;
  model::ModelConfig config_;
};

TEST(DeviceVocabulary, ALargerOneThanKeysHoldIsRefused) {
  ASSERT_OK_AND_ASSIGN(const auto tiny, model::Checkpoint::Open(testing::GoldenPath("tiny/llama")));
  const OfVocabulary large(*tiny, 1 << 24);
  const DeviceEngineOptions options = {.threads = 1, .block_tokens = 16};
  EXPECT_THAT(NewEngineOn(DeviceKind::kEmulated, large, options).status(),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("vocabulary has 16777216 tokens")));
}

}  // namespace
}  // namespace tandem::engine
