// The choice of one token from one row of logits: a pure function of the logits, the parameters and
// (seed, sequence index, position). No random state lives anywhere.
//
// Order: logit bias, allowed tokens, penalties, temperature, min-p, top-k, top-p, then Gumbel-max:
// the token is argmax(logit/T + g) over the tokens that remain, g = -log(-log u), with u from
// Philox4x32-10 keyed by (seed, sequence index) and counted by (position, token id / 4), word token
// id % 4. Temperature 0 is plain argmax. Ties go to the lower id everywhere. Logprobs are of the
// raw distribution, before bias, penalties and temperature. A NaN logit counts as minus infinity;
// when no token remains the result's token is -1. Finite logits stay finite: penalties and the
// temperature take them to the largest float of their sign at most, so only tokens that are not
// allowed, or whose logit or bias is minus infinity or NaN, are excluded.
//
// Thread safety: pure functions; calls with different scratch may run at once. Owner: the caller
// owns all memory. Errors: none; a broken REQUIRES ends the process (require.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::kernels {

struct TokenBias {
  int32_t token = 0;
  float bias = 0;
};

// How often a token occurred in the sequence so far. One entry for each distinct token.
struct TokenCount {
  int32_t token = 0;
  int32_t prompt_count = 0;
  int32_t output_count = 0;
};

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0;
};

struct SamplingArgs {
  const float* logits = nullptr;  // [vocab_size], not changed
  int32_t vocab_size = 0;
  float temperature = 1.0f;  // ≥ 0
  int32_t top_k = 0;         // 0 = off
  float top_p = 1.0f;        // (0, 1]; 1 = off
  float min_p = 0.0f;        // [0, 1]; 0 = off
  const TokenBias* biases = nullptr;
  int32_t num_biases = 0;
  // Bit i % 32 of word i / 32 says whether token i may be chosen; nullptr = all may.
  const uint32_t* allowed_tokens = nullptr;
  float repetition_penalty = 1.0f;  // divides positive logits, multiplies others, of tokens seen
  float presence_penalty = 0.0f;    // subtracted from logits of tokens generated so far
  float frequency_penalty = 0.0f;   // the same, times the number of occurrences
  const TokenCount* counts = nullptr;
  int32_t num_counts = 0;
  uint64_t seed = 0;
  uint32_t sequence_index = 0;           // among the n sequences of a request
  uint32_t position = 0;                 // absolute position of the token being chosen
  bool want_logprob = false;             // fill SamplingResult::logprob
  int32_t num_top_logprobs = 0;          // ≤ vocab_size
  TokenLogprob* top_logprobs = nullptr;  // [num_top_logprobs], highest first
  void* scratch = nullptr;               // [SamplingScratchBytes(vocab_size)], 64-byte boundary
};

struct SamplingResult {
  int32_t token = -1;
  float logprob = 0;  // of `token`, when asked for
};

// One row, on the calling thread; rows are independent, so callers spread them over threads.
using SampleFn = SamplingResult (*)(const SamplingArgs& args);

size_t SamplingScratchBytes(int32_t vocab_size);

// The generator: ten rounds of Philox4x32 (Salmon et al., SC 2011). A draw's key is the seed's low
// and high word; its counter is (token id / 4, position, sequence index, 0), so that no two draws
// of any two requests with different seeds or indices share a block.
struct PhiloxBlock {
  uint32_t word[4];
};
PhiloxBlock Philox4x32_10(const uint32_t counter[4], const uint32_t key[2]);

}  // namespace tandem::kernels
