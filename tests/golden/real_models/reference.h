// Reads the goldens of scripts/make_goldens/real_models.py: what transformers answers in fp32 on a
// real model's dequantised checkpoint. Thread safety: values.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "tests/golden/tokenizer/golden_files.h"
#include "tests/testing/models.h"

namespace tandem::testing {

// A prompt and its greedy answer.
struct ReferenceAnswer {
  std::vector<TokenId> prompt;
  std::vector<TokenId> answer;  // ends with the end token, or is 64 tokens long
  // [answer]: the largest logit minus the second largest where each token was chosen; 0 where two
  // computations of the reference disagree.
  std::vector<float> gaps;
};

// A text, and at each of its positions the distribution of the next token.
struct ReferenceDocument {
  static constexpr size_t kTop = 8;
  std::vector<TokenId> tokens;
  std::vector<TokenId> top_tokens;  // [tokens][kTop], most likely first
  std::vector<float> top_logprobs;  // [tokens][kTop], natural logarithm

  absl::Span<const TokenId> TopTokens(size_t position) const {
    return absl::MakeConstSpan(top_tokens).subspan(position * kTop, kTop);
  }
  absl::Span<const float> TopLogprobs(size_t position) const {
    return absl::MakeConstSpan(top_logprobs).subspan(position * kTop, kTop);
  }
};

struct Reference {
  std::vector<ReferenceAnswer> answers;
  std::vector<ReferenceDocument> documents;
};

// Takes 32-bit words, little endian as this machine's, from a string that outlives it.
class WordReader {
 public:
  explicit WordReader(const std::string& data) : data_(data) {}
  uint32_t Next() { return Take<uint32_t>(1)[0]; }
  template <typename T>
  std::vector<T> Take(size_t count) {
    static_assert(sizeof(T) == 4);
    TANDEM_CHECK(count <= (data_.size() - offset_) / 4, "the golden ends at byte ", data_.size());
    std::vector<T> values(count);
    std::memcpy(values.data(), data_.data() + offset_, count * 4);
    offset_ += count * 4;
    return values;
  }
  bool AtEnd() const { return offset_ == data_.size(); }

 private:
  const std::string& data_;
  size_t offset_ = 0;
};

// `name`: "smollm2" or "gemma3".
inline Reference ReadReference(const std::string& name) {
  constexpr uint32_t kMagic = 0x31474454;
  const std::string data = model::ReadGzip(GoldenPath("real_models/" + name + ".golden.gz"));
  WordReader words(data);
  TANDEM_CHECK(words.Next() == kMagic, "not a golden of real models: ", name);
  Reference reference;
  for (uint32_t left = words.Next(); left > 0; --left) {
    ReferenceAnswer& answer = reference.answers.emplace_back();
    answer.prompt = words.Take<TokenId>(words.Next());
    answer.answer = words.Take<TokenId>(words.Next());
    answer.gaps = words.Take<float>(answer.answer.size());
  }
  for (uint32_t left = words.Next(); left > 0; --left) {
    ReferenceDocument& document = reference.documents.emplace_back();
    document.tokens = words.Take<TokenId>(words.Next());
    const size_t entries = document.tokens.size() * ReferenceDocument::kTop;
    document.top_tokens = words.Take<TokenId>(entries);
    document.top_logprobs = words.Take<float>(entries);
  }
  TANDEM_CHECK(words.AtEnd(), "bytes follow the last document of ", name);
  return reference;
}

}  // namespace tandem::testing
