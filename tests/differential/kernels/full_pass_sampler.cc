// The sampler's definition: the same steps, but every token is looked at in each and nothing is
// skipped because it cannot matter. What kernels/cpu/sampling.cc must equal to the bit.
#include "full_pass_sampler.h"

#include "kernels/cpu/prefix_select.h"
#include "kernels/cpu/sampling_steps.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

int32_t Argmax(const float* work, int32_t vocab_size) {
  Best best;
  alignas(64) uint32_t ids[kLanes];
  for (int32_t i = 0; i < vocab_size; i += kLanes) {
    StoreIds(i, ids);
    best.Take(ids, Load(work + i));
  }
  return best.token;
}

int32_t DrawFromAll(const SamplingArgs& args, const float* work) {
  const GumbelNoise noise(args.seed, args.sequence_index, args.position);
  Best best;
  alignas(64) uint32_t ids[kLanes];
  for (int32_t i = 0; i < args.vocab_size; i += kLanes) {
    StoreIds(i, ids);
    best.Take(ids, Add(Load(work + i), noise.At(LoadU(ids))));
  }
  return best.token;
}

// Applies min-p, top-k and top-p; the tokens left are room.keys[0, result).
int32_t Filter(const SamplingArgs& args, const SamplingRoom& room) {
  const auto [work, keys, masses] = room;
  const float max = MaxLogit(work, args.vocab_size);
  if (max == kMinusInfinity) return 0;
  const float least = args.min_p > 0 ? max + First(Log(Set1(args.min_p))) : -kLargest;
  int32_t count = 0;
  for (int32_t i = 0; i < args.vocab_size; ++i) {
    if (work[i] >= least) keys[count++] = MakeKey(work[i], i);
  }
  if (args.top_k > 0 && args.top_k < count) {
    count = SelectPrefix({keys, nullptr, count, static_cast<uint64_t>(args.top_k)});
  }
  if (args.top_p < 1.0f) {
    const uint64_t total = ComputeMasses(keys, count, max, masses);
    count = SelectPrefix({keys, masses, count, TargetMass(args.top_p, total)});
  }
  return count;
}

}  // namespace

SamplingResult SampleInFullPasses(const SamplingArgs& args) {
  const SamplingRoom room = CheckedRoom(args);
  Adjust(args, room.work);
  DivideByTemperature(args, room.work);
  if (args.temperature == 0) return WithLogprobs(args, Argmax(room.work, args.vocab_size));
  if (!HasFilters(args)) return WithLogprobs(args, DrawFromAll(args, room.work));
  return WithLogprobs(args, DrawFrom(args, room.keys, Filter(args, room)));
}

}  // namespace tandem::kernels::TANDEM_ISA
