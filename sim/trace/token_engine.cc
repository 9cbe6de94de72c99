#include "sim/trace/token_engine.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/model/hash_model.h"

namespace tandem::sim {
namespace {

class TokenEngine final : public engine::Engine {
 public:
  explicit TokenEngine(engine::EngineSpec spec) : spec_(std::move(spec)) {}

  const engine::EngineSpec& spec() const override { return spec_; }
  absl::StatusOr<int64_t> ProfileStepBytes(int64_t) override { return 0; }
  absl::Status AllocateKv(int64_t) override { return absl::OkStatus(); }
  kv::BlockArena& arena() override {
    TANDEM_CHECK(false, "the token engine has no arena");
    std::abort();
  }

  absl::StatusOr<std::vector<engine::SampledToken>> Step(
      absl::Span<const engine::SequenceSlice> slices, LayerDone layer_done) override {
    layer_done(0);
    std::vector<engine::SampledToken> sampled;
    sampled.reserve(slices.size());
    for (const engine::SequenceSlice& slice : slices)
      if (slice.sample) sampled.push_back({.token = Next(slice)});
    return sampled;
  }

 private:
  TokenId Next(const engine::SequenceSlice& slice) const {
    const uint64_t mixed = (static_cast<uint64_t>(slice.tokens.back()) + slice.tokens.size()) *
                           0x9e3779b97f4a7c15;  // 2^64 / the golden ratio
    return static_cast<TokenId>((mixed >> 32) % static_cast<uint64_t>(spec_.vocab_size));
  }

  const engine::EngineSpec spec_;
};

}  // namespace

std::unique_ptr<engine::Engine> NewTokenEngine(const TokenEngineOptions& options) {
  engine::EngineSpec spec;
  spec.model_name = std::string(model::kHashModelName);
  spec.model_fingerprint = std::string(model::kHashModelFingerprint);
  spec.numerics_id = absl::StrCat("tokens1-b", options.block_tokens);
  spec.vocab_size = options.vocab_size;
  spec.context_tokens = options.context_tokens;
  spec.layout = {.num_layers = 1,
                 .block_tokens = options.block_tokens,
                 .layer_block_bytes = options.block_tokens * options.kv_bytes_per_token};
  return std::make_unique<TokenEngine>(std::move(spec));
}

}  // namespace tandem::sim
