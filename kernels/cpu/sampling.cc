// The choice of a token (kernels/api/sampling.h) without a full sort: top-k and top-p find their
// prefix of the (logit descending, id ascending) order by quickselect on 64-bit keys, with
// probabilities as 40-bit integers, so that sums do not depend on the order the selection met them
// in.
#include "kernels/api/sampling.h"

#include "kernels/cpu/ops.h"
#include "kernels/cpu/prefix_select.h"
#include "kernels/cpu/sampling_steps.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

// Writes adjusted logits. It skips the division where that and the cleaning after it change
// nothing.
void AdjustAndDivide(const SamplingArgs& args, float* work) {
  Adjust(args, work);
  const bool divides = args.temperature != 0 && args.temperature != 1;
  if (divides || args.num_biases > 0 || args.num_counts > 0) DivideByTemperature(args, work);
}

int32_t Argmax(const float* work, int32_t vocab_size) {
  const float max = MaxLogit(work, vocab_size);
  if (max == kMinusInfinity) return -1;
  int32_t i = 0;
  while (!Any(LessEqual(Set1(max), Load(work + i)))) i += kLanes;
  while (work[i] != max) ++i;
  return i;
}

// The size of a group of tokens, which the scan skips when the group's largest logit is too small.
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
  // Start with the score of the most likely token: few other tokens can exceed it.
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

// A logit that at least `k` tokens reach: the k-th largest of the groups' largest. `keys` is
// scratch.
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

struct MassQuery {
  int32_t vocab_size;
  float max, least;  // of the logits that count
  uint64_t target;
};

// A logit of at least `least` such that the tokens at or above it weigh at least `target`. It tries
// high bounds first, because summing few tokens is cheap.
float TopPBound(const float* work, const MassQuery& query) {
  constexpr float kSpans[] = {2.0f, 4.0f, 6.0f, 9.0f, 13.0f, 18.0f};
  for (const float span : kSpans) {
    const float bound = query.max - span;
    if (bound <= query.least) break;
    if (TotalMass(work, query.vocab_size, query.max, bound) >= query.target) return bound;
  }
  return query.least;
}

// Applies min-p, top-k and top-p; the tokens left are room.keys[0, result).
int32_t Filter(const SamplingArgs& args, const SamplingRoom& room) {
  const auto [work, keys, masses] = room;
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
  const SamplingRoom room = CheckedRoom(args);
  AdjustAndDivide(args, room.work);
  if (args.temperature == 0) return WithLogprobs(args, Argmax(room.work, args.vocab_size));
  if (!HasFilters(args)) return WithLogprobs(args, DrawFromAll(args, room.work));
  return WithLogprobs(args, DrawFrom(args, room.keys, Filter(args, room)));
}

}  // namespace tandem::kernels::TANDEM_ISA
