// The choice of tokens on a device: kernels/api/sampling.h defines every parameter, and a device
// gives the bits of the CPU's vector classes. DeviceOps::sample enqueues it for a batch of rows.
//
// All pointers are device memory, except where a comment says otherwise; the caller owns that
// memory and keeps it unchanged until the enqueued work is done. Thread safety: the stream's.
// Errors: the stream's status; a broken REQUIRES ends the process.
#pragma once

#include <cstdint>

#include "kernels/api/sampling.h"

namespace tandem::kernels {

// The largest vocabulary: a token takes 24 bits of a key, and the key behind all is none's.
inline constexpr int32_t kDeviceVocabularyMax = (1 << 24) - 1;

// One row's parameters. Each member has the meaning of the SamplingArgs member of that name.
// `biases` are in ascending order of tokens.
struct DeviceSampleRow {
  // ≥ 0: the token is given, and only its log-probabilities are wanted.
  int32_t known_token = -1;
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f, presence_penalty = 0.0f, frequency_penalty = 0.0f;
  int32_t num_biases = 0, num_counts = 0;
  const TokenBias* biases = nullptr;
  const TokenCount* counts = nullptr;
  const uint32_t* allowed_tokens = nullptr;
  uint64_t seed = 0;
  uint32_t sequence_index = 0, position = 0;
  int32_t want_logprob = 0;
  int32_t num_top_logprobs = 0;
  TokenLogprob* top_logprobs = nullptr;  // [num_top_logprobs ≤ vocab_size]
};
struct DeviceSampleArgs {
  const float* logits = nullptr;  // [rows][vocab_size]
  int32_t vocab_size = 0;
  int32_t rows = 0;
  const DeviceSampleRow* parameters = nullptr;  // [rows]
  float* work = nullptr;                        // [rows][vocab_size]
  SamplingResult* results = nullptr;            // [rows]
};

}  // namespace tandem::kernels
