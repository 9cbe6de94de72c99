// The steps of choosing a token that need no shortcut. kernels/api/sampling.h defines them;
// sampling.cc keeps the number of tokens that the later steps process small. One source of each
// class includes this header. Thread safety: one thread a row, with scratch of its own.
#pragma once

#include "kernels/api/require.h"
#include "kernels/api/sampling.h"
#include "kernels/cpu/gumbel.h"
#include "kernels/cpu/prefix_select.h"

namespace tandem::kernels::TANDEM_ISA {

constexpr int32_t kLanes = 16;
constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLargest = 3.402823466e38f;

// A NaN becomes -inf, +inf the largest float.
TANDEM_INLINE V16 Clean(V16 x) { return Min(Max(x, Set1(kMinusInfinity)), Set1(kLargest)); }

// `x` was computed from `before`. Only a -inf or a NaN there becomes -inf: -inf excludes a token,
// and the quotient of a finite logit may exceed the floats.
TANDEM_INLINE V16 KeepFinite(V16 before, V16 x) {
  const V16 finite = Min(Max(x, Set1(-kLargest)), Set1(kLargest));
  return Select(Less(Set1(kMinusInfinity), before), finite, Set1(kMinusInfinity));
}

TANDEM_INLINE V16 LoadLogits(const float* x, int32_t i, int32_t size) {
  const Mask16 mask = LaneRange(0, size - i);
  return Select(mask, Clean(LoadMasked(mask, x + i)), Set1(kMinusInfinity));
}

inline float MaxLogit(const float* x, int32_t size) {
  V16 most = Set1(kMinusInfinity);
  for (int32_t i = 0; i < size; i += kLanes) most = Max(most, LoadLogits(x, i, size));
  return ReduceMax(most);
}

// The model's own distribution: logprob(x) = (x - max) - log_sum.
struct RawDistribution {
  float max;
  float log_sum;

  TANDEM_INLINE float Logprob(float logit) const {
    const float clean = First(Clean(Set1(logit)));
    return max == kMinusInfinity ? kMinusInfinity : (clean - max) - log_sum;
  }
};

inline RawDistribution Normalise(const float* x, int32_t size) {
  // Sum chunks of 1024 first, then their sums. This keeps the error of a large vocabulary's sum
  // near one ulp.
  constexpr int32_t kChunk = 1024;
  RawDistribution raw = {MaxLogit(x, size), 0};
  if (raw.max == kMinusInfinity) return raw;
  V16 total = Zero();
  for (int32_t begin = 0; begin < size; begin += kChunk) {
    V16 sum = Zero();
    for (int32_t i = begin; i < begin + kChunk && i < size; i += kLanes) {
      sum = Add(sum, Exp(Sub(LoadLogits(x, i, size), Set1(raw.max))));
    }
    total = Add(total, sum);
  }
  raw.log_sum = First(Log(Set1(ReduceAdd(total))));
  return raw;
}

// Fills args.top_logprobs, highest first; ties by the lower id.
inline void TopLogprobs(const SamplingArgs& args, const RawDistribution& raw) {
  const int32_t wanted = args.num_top_logprobs;
  TokenLogprob* top = args.top_logprobs;
  int32_t count = 0;
  float lowest = kMinusInfinity;
  for (int32_t i = 0; i < args.vocab_size; i += kLanes) {
    const V16 values = LoadLogits(args.logits, i, args.vocab_size);
    if (count == wanted && !Any(Less(Set1(lowest), values))) continue;
    alignas(64) float lanes[kLanes];
    Store(lanes, values);
    for (int32_t j = 0; j < kLanes && i + j < args.vocab_size; ++j) {
      if (count == wanted && !(lanes[j] > lowest)) continue;
      int32_t place = count < wanted ? count++ : wanted - 1;
      for (; place > 0 && top[place - 1].logprob < lanes[j]; --place) top[place] = top[place - 1];
      top[place] = {i + j, lanes[j]};
      lowest = top[count - 1].logprob;
    }
  }
  for (int32_t i = 0; i < count; ++i) top[i].logprob = raw.Logprob(top[i].logprob);
}

inline void ApplyAllowed(const uint32_t* allowed, int32_t vocab_size, float* work) {
  for (int32_t word = 0; word * 32 < vocab_size; ++word) {
    if (allowed[word] == ~0u) continue;
    for (int32_t i = word * 32; i < word * 32 + 32 && i < vocab_size; ++i) {
      if ((allowed[word] >> (i % 32) & 1u) == 0) work[i] = kMinusInfinity;
    }
  }
}

inline void ApplyPenalties(const SamplingArgs& args, float* work) {
  for (int32_t i = 0; i < args.num_counts; ++i) {
    const TokenCount& seen = args.counts[i];
    KERNEL_REQUIRE(seen.token >= 0 && seen.token < args.vocab_size);
    const float before = work[seen.token];
    float logit = before;
    if (seen.prompt_count + seen.output_count > 0) {
      logit = logit > 0 ? logit / args.repetition_penalty : logit * args.repetition_penalty;
    }
    if (seen.output_count > 0) {
      logit -= args.presence_penalty;
      logit -= args.frequency_penalty * static_cast<float>(seen.output_count);
    }
    work[seen.token] = First(KeepFinite(Set1(before), Set1(logit)));
  }
}

// Copies the logits into `work` (padded to whole vectors with -inf) with bias, allowed tokens and
// penalties applied.
inline void Adjust(const SamplingArgs& args, float* work) {
  for (int32_t i = 0; i < args.vocab_size; i += kLanes) {
    Store(work + i, LoadLogits(args.logits, i, args.vocab_size));
  }
  for (int32_t i = 0; i < args.num_biases; ++i) {
    KERNEL_REQUIRE(args.biases[i].token >= 0 && args.biases[i].token < args.vocab_size);
    work[args.biases[i].token] += args.biases[i].bias;
  }
  if (args.allowed_tokens != nullptr) ApplyAllowed(args.allowed_tokens, args.vocab_size, work);
  ApplyPenalties(args, work);
}

// Divides what Adjust left by the temperature; a temperature of 0 counts as 1.
inline void DivideByTemperature(const SamplingArgs& args, float* work) {
  const V16 temperature = Set1(args.temperature == 0 ? 1.0f : args.temperature);
  for (int32_t i = 0; i < args.vocab_size; i += kLanes) {
    const V16 logits = Load(work + i);
    Store(work + i, KeepFinite(logits, Div(logits, temperature)));
  }
}

// The best of a sequence of scored tokens; ties go to the lower id, and -inf is never best.
struct Best {
  int32_t token = -1;
  float score = kMinusInfinity;

  TANDEM_INLINE void Take(const uint32_t* ids, V16 scores) {
    if (!Any(LessEqual(Set1(score), scores))) return;
    alignas(64) float lanes[kLanes];
    Store(lanes, scores);
    for (int32_t j = 0; j < kLanes; ++j) {
      const int32_t id = static_cast<int32_t>(ids[j]);
      if (lanes[j] > score || (lanes[j] == score && token >= 0 && id < token)) {
        token = id;
        score = lanes[j];
      }
    }
  }
};

TANDEM_INLINE void StoreIds(int32_t first, uint32_t* ids) {
  for (int32_t j = 0; j < kLanes; ++j) ids[j] = static_cast<uint32_t>(first + j);
}

inline int32_t DrawFrom(const SamplingArgs& args, const uint64_t* keys, int32_t count) {
  const GumbelNoise noise(args.seed, args.sequence_index, args.position);
  Best best;
  for (int32_t i = 0; i < count; i += kLanes) {
    alignas(64) uint32_t ids[kLanes] = {};
    alignas(64) float logits[kLanes];
    for (int32_t j = 0; j < kLanes; ++j) {
      const bool in = i + j < count;
      ids[j] = in ? TokenOfKey(keys[i + j]) : 0;
      logits[j] = in ? LogitOfKey(keys[i + j]) : kMinusInfinity;
    }
    best.Take(ids, Add(Load(logits), noise.At(LoadU(ids))));
  }
  return best.token;
}

// Integer probabilities relative to the most likely token, 2^40 being its own.
inline uint64_t ComputeMasses(const uint64_t* keys, int32_t count, float max, uint64_t* masses) {
  uint64_t total = 0;
  for (int32_t i = 0; i < count; i += kLanes) {
    alignas(64) float p[kLanes];
    for (int32_t j = 0; j < kLanes; ++j) {
      p[j] = i + j < count ? LogitOfKey(keys[i + j]) : kMinusInfinity;
    }
    Store(p, Exp(Sub(Load(p), Set1(max))));
    for (int32_t j = 0; j < kLanes && i + j < count; ++j) {
      masses[i + j] = static_cast<uint64_t>(static_cast<double>(p[j]) * 0x1p40);
      total += masses[i + j];
    }
  }
  return total;
}

// The mass that tokens must reach together: top_p of `total`, rounded up, at least 1.
inline uint64_t TargetMass(float top_p, uint64_t total) {
  const double wanted = static_cast<double>(top_p) * static_cast<double>(total);
  const uint64_t target = static_cast<uint64_t>(wanted);
  return static_cast<double>(target) < wanted || target == 0 ? target + 1 : target;
}

// The arrays a sampler works in, inside SamplingArgs::scratch.
struct SamplingRoom {
  float* work;       // [vocab_size, padded to whole vectors]
  uint64_t* keys;    // [vocab_size]
  uint64_t* masses;  // [vocab_size]
};

inline SamplingRoom CheckedRoom(const SamplingArgs& args) {
  KERNEL_REQUIRE(args.vocab_size > 0 && args.scratch != nullptr);
  KERNEL_REQUIRE(args.temperature >= 0 && args.top_p > 0 && args.min_p >= 0 && args.min_p <= 1);
  KERNEL_REQUIRE(args.repetition_penalty > 0 && args.num_top_logprobs <= args.vocab_size);
  const int64_t padded = (static_cast<int64_t>(args.vocab_size) + kLanes - 1) / kLanes * kLanes;
  float* work = static_cast<float*>(args.scratch);
  uint64_t* keys = reinterpret_cast<uint64_t*>(work + padded);
  return {work, keys, keys + padded};
}

inline bool HasFilters(const SamplingArgs& args) {
  return args.min_p != 0 || args.top_k != 0 || args.top_p < 1;
}

// The chosen token with the log-probabilities that were asked for.
TANDEM_INLINE SamplingResult WithLogprobs(const SamplingArgs& args, int32_t token) {
  SamplingResult result;
  result.token = token;
  if (args.want_logprob || args.num_top_logprobs > 0) {
    const RawDistribution raw = Normalise(args.logits, args.vocab_size);
    if (token >= 0) result.logprob = raw.Logprob(args.logits[token]);
    if (args.num_top_logprobs > 0) TopLogprobs(args, raw);
  }
  return result;
}

}  // namespace tandem::kernels::TANDEM_ISA
