// Choosing a token, see kernels/api/sampling.h. No full sort: top-k and top-p find their prefix of
// the (logit descending, id ascending) order by quickselect on 64-bit keys, with probabilities as
// 40-bit integers, so that sums do not depend on the order the selection met them in.
#include "kernels/api/sampling.h"

#include "kernels/api/require.h"
#include "kernels/cpu/gumbel.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/prefix_select.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

constexpr int32_t kLanes = 16;
constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLargest = 3.402823466e38f;

// A NaN becomes -inf, +inf the largest float.
TANDEM_INLINE V16 Clean(V16 x) { return Min(Max(x, Set1(kMinusInfinity)), Set1(kLargest)); }

TANDEM_INLINE V16 LoadLogits(const float* x, int32_t i, int32_t size) {
  const Mask16 mask = LaneRange(0, size - i);
  return Select(mask, Clean(LoadMasked(mask, x + i)), Set1(kMinusInfinity));
}

float MaxLogit(const float* x, int32_t size) {
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

RawDistribution Normalise(const float* x, int32_t size) {
  // Sums of 1024 first, then of those: keeps the error of a large vocabulary's sum near one ulp.
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
void TopLogprobs(const SamplingArgs& args, const RawDistribution& raw) {
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

void ApplyAllowed(const uint32_t* allowed, int32_t vocab_size, float* work) {
  for (int32_t word = 0; word * 32 < vocab_size; ++word) {
    if (allowed[word] == ~0u) continue;
    for (int32_t i = word * 32; i < word * 32 + 32 && i < vocab_size; ++i) {
      if ((allowed[word] >> (i % 32) & 1u) == 0) work[i] = kMinusInfinity;
    }
  }
}

void ApplyPenalties(const SamplingArgs& args, float* work) {
  for (int32_t i = 0; i < args.num_counts; ++i) {
    const TokenCount& seen = args.counts[i];
    KERNEL_REQUIRE(seen.token >= 0 && seen.token < args.vocab_size);
    float logit = work[seen.token];
    if (seen.prompt_count + seen.output_count > 0) {
      logit = logit > 0 ? logit / args.repetition_penalty : logit * args.repetition_penalty;
    }
    if (seen.output_count > 0) {
      logit -= args.presence_penalty;
      logit -= args.frequency_penalty * static_cast<float>(seen.output_count);
    }
    work[seen.token] = logit;
  }
}

// Copies the logits into `work` (padded to whole vectors with -inf) with bias, allowed tokens,
// penalties and temperature applied.
void Adjust(const SamplingArgs& args, float* work) {
  for (int32_t i = 0; i < args.vocab_size; i += kLanes) {
    Store(work + i, LoadLogits(args.logits, i, args.vocab_size));
  }
  for (int32_t i = 0; i < args.num_biases; ++i) {
    KERNEL_REQUIRE(args.biases[i].token >= 0 && args.biases[i].token < args.vocab_size);
    work[args.biases[i].token] += args.biases[i].bias;
  }
  if (args.allowed_tokens != nullptr) ApplyAllowed(args.allowed_tokens, args.vocab_size, work);
  ApplyPenalties(args, work);
  const bool divides = args.temperature != 0 && args.temperature != 1;
  if (!divides && args.num_biases == 0 && args.num_counts == 0) return;
  const V16 temperature = Set1(divides ? args.temperature : 1.0f);
  for (int32_t i = 0; i < args.vocab_size; i += kLanes) {
    Store(work + i, Clean(Div(Load(work + i), temperature)));
  }
}

// The best of a sequence of scored tokens; equal scores go to the lower id, -inf to none.
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

int32_t Argmax(const float* work, int32_t vocab_size) {
  const float max = MaxLogit(work, vocab_size);
  if (max == kMinusInfinity) return -1;
  int32_t i = 0;
  while (!Any(LessEqual(Set1(max), Load(work + i)))) i += kLanes;
  while (work[i] != max) ++i;
  return i;
}

// Tokens that are judged by their largest logit before each is looked at.
constexpr int32_t kGroup = 64;

// The largest logit of a group; `work` is padded to whole vectors only.
TANDEM_INLINE float GroupMax(const float* work, int32_t first, int32_t vocab_size) {
  V16 most = Load(work + first);
  for (int32_t i = first + kLanes; i < first + kGroup && i < vocab_size; i += kLanes) {
    most = Max(most, Load(work + i));
  }
  return ReduceMax(most);
}

int32_t DrawFromAll(const SamplingArgs& args, const float* work) {
  const GumbelNoise noise(args.seed, args.sequence_index, args.position);
  Best best;
  alignas(64) uint32_t ids[kLanes];
  const auto take = [&](int32_t i) {
    StoreIds(i, ids);
    best.Take(ids, Add(Load(work + i), noise.At(LoadU(ids))));
  };
  // The likeliest token sets a mark that the noise of few others can reach.
  const int32_t likeliest = Argmax(work, args.vocab_size);
  if (likeliest < 0) return -1;
  take(likeliest / kLanes * kLanes);
  for (int32_t first = 0; first < args.vocab_size; first += kGroup) {
    const float max = GroupMax(work, first, args.vocab_size);
    if (max == kMinusInfinity || !noise.MayReach(best.score, max, first)) continue;
    for (int32_t i = first; i < first + kGroup && i < args.vocab_size; i += kLanes) take(i);
  }
  return best.token;
}

int32_t DrawFrom(const SamplingArgs& args, const uint64_t* keys, int32_t count) {
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
uint64_t ComputeMasses(const uint64_t* keys, int32_t count, float max, uint64_t* masses) {
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

// The sum of ComputeMasses over all tokens of at least `least`, 2^40 being the likeliest token's.
uint64_t TotalMass(const float* work, int32_t vocab_size, float max, float least) {
  // A mass is split into its upper and lower 20 bits, each exact in fp32; sums of so many vectors
  // stay below 2^31.
  constexpr int32_t kSpan = 1024 * kLanes;
  const float negligible = max - 28.5f;  // e^-28.5 < 2^-41
  const V16 bound = Set1(least > negligible ? least : negligible);
  const auto floor = [](V16 x) {
    const V16 nearest = RoundNearest(x);
    return Sub(nearest, Select(Less(x, nearest), Set1(1.0f), Zero()));
  };
  uint64_t total = 0;
  for (int32_t begin = 0; begin < vocab_size; begin += kSpan) {
    U16 upper = SetU1(0), lower = SetU1(0);
    for (int32_t i = begin; i < begin + kSpan && i < vocab_size; i += kLanes) {
      const V16 x = Load(work + i);
      const Mask16 counts = LessEqual(bound, x);
      if (!Any(counts)) continue;
      const V16 scaled = Mul(Select(counts, Exp(Sub(x, Set1(max))), Zero()), Set1(0x1p20f));
      const V16 whole = floor(scaled);
      upper = AddU(upper, ToInt(whole));
      lower = AddU(lower, ToInt(floor(Mul(Sub(scaled, whole), Set1(0x1p20f)))));
    }
    alignas(64) uint32_t sums[2][kLanes];
    StoreU(sums[0], upper);
    StoreU(sums[1], lower);
    for (int32_t j = 0; j < kLanes; ++j) {
      total += (static_cast<uint64_t>(sums[0][j]) << 20) + sums[1][j];
    }
  }
  return total;
}

// Keys of the tokens whose logit is at least `least`; their number.
int32_t CollectKeys(const float* work, int32_t vocab_size, float least, uint64_t* keys) {
  int32_t count = 0;
  for (int32_t i = 0; i < vocab_size; i += kLanes) {
    if (!Any(LessEqual(Set1(least), Load(work + i)))) continue;
    for (int32_t j = i; j < i + kLanes && j < vocab_size; ++j) {
      if (work[j] >= least) keys[count++] = MakeKey(work[j], j);
    }
  }
  return count;
}

// A logit that at least `k` tokens reach: the k-th largest of the groups' largest. `keys` is room.
float TopKBound(const float* work, int32_t vocab_size, int32_t k, uint64_t* keys) {
  const int32_t groups = (vocab_size + kGroup - 1) / kGroup;
  if (k > groups / 2) return -kLargest;
  for (int32_t g = 0; g < groups; ++g) {
    keys[g] = MakeKey(GroupMax(work, g * kGroup, vocab_size), g);
  }
  SelectPrefix({keys, nullptr, groups, static_cast<uint64_t>(k)});
  uint64_t last = 0;
  for (int32_t i = 0; i < k; ++i) last = keys[i] > last ? keys[i] : last;
  return LogitOfKey(last);
}

uint64_t TargetMass(float top_p, uint64_t total) {
  const double wanted = static_cast<double>(top_p) * static_cast<double>(total);
  const uint64_t target = static_cast<uint64_t>(wanted);
  return static_cast<double>(target) < wanted || target == 0 ? target + 1 : target;
}

struct MassQuery {
  int32_t vocab_size;
  float max, least;  // of the logits that count
  uint64_t target;
};

// A logit, `least` or above, whose tokens and those above it weigh `target` or more. Where few
// tokens do, a look at them is cheap, so bounds are tried from above.
float TopPBound(const float* work, const MassQuery& query) {
  constexpr float kSpans[] = {2.0f, 4.0f, 6.0f, 9.0f, 13.0f, 18.0f};
  for (const float span : kSpans) {
    const float bound = query.max - span;
    if (bound <= query.least) break;
    if (TotalMass(work, query.vocab_size, query.max, bound) >= query.target) return bound;
  }
  return query.least;
}

// Applies min-p, top-k and top-p; the tokens left are keys[0, result).
int32_t Filter(const SamplingArgs& args, const float* work, uint64_t* keys, uint64_t* masses) {
  const float max = MaxLogit(work, args.vocab_size);
  if (max == kMinusInfinity) return 0;
  float least = args.min_p > 0 ? max + First(Log(Set1(args.min_p))) : -kLargest;
  if (args.top_k > 0 && args.top_k < args.vocab_size) {
    const float bound = TopKBound(work, args.vocab_size, args.top_k, keys);
    int32_t count = CollectKeys(work, args.vocab_size, least > bound ? least : bound, keys);
    if (args.top_k < count) {
      count = SelectPrefix({keys, nullptr, count, static_cast<uint64_t>(args.top_k)});
    }
    if (args.top_p >= 1.0f) return count;
    const uint64_t total = ComputeMasses(keys, count, max, masses);
    return SelectPrefix({keys, masses, count, TargetMass(args.top_p, total)});
  }
  uint64_t target = 0;
  if (args.top_p < 1.0f) {
    target = TargetMass(args.top_p, TotalMass(work, args.vocab_size, max, least));
    least = TopPBound(work, {args.vocab_size, max, least, target});
  }
  const int32_t count = CollectKeys(work, args.vocab_size, least, keys);
  if (args.top_p >= 1.0f) return count;
  ComputeMasses(keys, count, max, masses);
  return SelectPrefix({keys, masses, count, target});
}

}  // namespace

SamplingResult Sample(const SamplingArgs& args) {
  KERNEL_REQUIRE(args.vocab_size > 0 && args.scratch != nullptr);
  KERNEL_REQUIRE(args.temperature >= 0 && args.top_p > 0 && args.min_p >= 0 && args.min_p <= 1);
  KERNEL_REQUIRE(args.repetition_penalty > 0 && args.num_top_logprobs <= args.vocab_size);
  const int64_t padded = (static_cast<int64_t>(args.vocab_size) + kLanes - 1) / kLanes * kLanes;
  float* work = static_cast<float*>(args.scratch);
  uint64_t* keys = reinterpret_cast<uint64_t*>(work + padded);
  SamplingResult result;
  Adjust(args, work);
  if (args.temperature == 0) {
    result.token = Argmax(work, args.vocab_size);
  } else if (args.min_p == 0 && args.top_k == 0 && args.top_p >= 1) {
    result.token = DrawFromAll(args, work);
  } else {
    result.token = DrawFrom(args, keys, Filter(args, work, keys, keys + padded));
  }
  if (args.want_logprob || args.num_top_logprobs > 0) {
    const RawDistribution raw = Normalise(args.logits, args.vocab_size);
    if (result.token >= 0) result.logprob = raw.Logprob(args.logits[result.token]);
    if (args.num_top_logprobs > 0) TopLogprobs(args, raw);
  }
  return result;
}

}  // namespace tandem::kernels::TANDEM_ISA
