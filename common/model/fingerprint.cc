#include "common/model/fingerprint.h"

#include <algorithm>
#include <cstring>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/model/dequantize.h"
#include "xxhash.h"

namespace tandem::model {
namespace {

// Below this much tensor data all of it is hashed (3 ms at 5 GB/s); above, kSamples runs of
// kSampleBytes from each tensor, first and last included, so that a model of any size starts fast.
constexpr int64_t kWholeBytesMax = int64_t{16} << 20;
constexpr int64_t kSamples = 16;
constexpr int64_t kSampleBytes = 256;

// A float's exact value, independent of text formatting.
std::string Bits(double value) {
  return absl::StrCat(absl::Hex(absl::bit_cast<uint64_t>(value), absl::kZeroPad16));
}

std::string ConfigText(const ModelConfig& c) {
  std::string text = absl::StrCat(c.architecture, " ", c.num_layers, " ", c.hidden_size, " ",
                                  c.num_heads, " ", c.num_kv_heads, " ", c.head_dim, " ",
                                  c.ffn_size, " ", c.vocab_size, " ", c.context_tokens);
  absl::StrAppend(&text, " ", static_cast<int>(c.activation), c.attention_bias,
                  c.attention_output_bias, c.qk_norm, c.sandwich_norms, c.tied_embeddings);
  absl::StrAppend(&text, " ", Bits(c.rms_norm_eps), Bits(c.embedding_scale),
                  Bits(c.attention_scale));
  for (const LayerConfig& layer : c.layers) {
    const RopeScaling& s = layer.rope_scaling;
    absl::StrAppend(&text, "\n", layer.sliding_window, " ", Bits(layer.rope_theta), " ",
                    static_cast<int>(s.kind), " ", s.original_context);
    absl::StrAppend(&text, Bits(s.factor), Bits(s.low_freq_factor), Bits(s.high_freq_factor),
                    Bits(s.attention_factor));
    absl::StrAppend(&text, Bits(s.beta_fast), Bits(s.beta_slow));
    for (const float factor : s.frequency_factors) absl::StrAppend(&text, Bits(factor));
  }
  return text;
}

void HashSample(XXH3_state_t* state, const StoredTensor& tensor) {
  const int64_t bytes = tensor.rows * tensor.row_bytes;
  if (bytes <= kSamples * kSampleBytes) {
    XXH3_64bits_update(state, tensor.data, static_cast<size_t>(bytes));
    return;
  }
  for (int64_t i = 0; i < kSamples; ++i) {
    // Not (bytes - kSampleBytes) * i: that may pass 2^63 for sizes only a hostile file claims.
    const int64_t offset =
        i == kSamples - 1 ? bytes - kSampleBytes : (bytes - kSampleBytes) / (kSamples - 1) * i;
    XXH3_64bits_update(state, tensor.data + offset, kSampleBytes);
  }
}

}  // namespace

std::string Fingerprint(const ModelConfig& config, const std::vector<StoredTensor>& tensors) {
  struct StateDeleter {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  const std::unique_ptr<XXH3_state_t, StateDeleter> state(XXH3_createState());
  TANDEM_CHECK(state != nullptr, "out of memory");
  XXH3_64bits_reset(state.get());
  std::string text = ConfigText(config);
  int64_t total_bytes = 0;
  for (const StoredTensor& tensor : tensors) {
    total_bytes += tensor.rows * tensor.row_bytes;
    absl::StrAppend(&text, "\n", tensor.name, " ", TensorTypeName(tensor.type), " ", tensor.rows,
                    " ", tensor.columns);
    if (!tensor.scales.values.empty()) {
      absl::StrAppend(&text, " / ", tensor.scales.rows, " ", tensor.scales.columns);
    }
  }
  XXH3_64bits_update(state.get(), text.data(), text.size());
  for (const StoredTensor& tensor : tensors) {
    if (total_bytes <= kWholeBytesMax) {
      XXH3_64bits_update(state.get(), tensor.data,
                         static_cast<size_t>(tensor.rows * tensor.row_bytes));
    } else {
      HashSample(state.get(), tensor);
    }
    // All of them: at most a few for each row.
    XXH3_64bits_update(state.get(), tensor.scales.values.data(),
                       tensor.scales.values.size() * sizeof(float));
  }
  return absl::StrCat(absl::Hex(XXH3_64bits_digest(state.get()), absl::kZeroPad16));
}

}  // namespace tandem::model
