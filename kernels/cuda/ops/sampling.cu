// One token from each row of logits: bias, allowed tokens, penalties, temperature, min-p, top-k,
// top-p, Gumbel-max; logprobs of the raw distribution. kernels/api/sampling.h defines all of
// it, kernels/api/device_sampling.h the arguments.
//
// Grid: a block of 512 threads for each row. No sort: a token's key orders by (logit descending, id
// ascending), and top-k and top-p find the largest key that stays by radix selection, eight bits a
// pass, over histograms of counts or of probabilities as 40-bit integers. Integer sums do not
// depend on the order of atomics. exp, log, and the order in which log-probabilities' sum is taken
// are the CPU classes': the same logits give the same token and the same bits there and here. A
// greedy row without options reads its logits once. Other rows copy them to a work row, which L2
// holds after the first pass. Shared memory: 256 histogram bins, then a word for each warp.
#include "kernels/api/device_sampling.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/simt/exact_math.h"
#include "kernels/cuda/simt/launch.h"
#include "kernels/cuda/simt/philox.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr int kSampleThreads = 512;
constexpr int kWarps = kSampleThreads / kWarpSize;
constexpr int kBins = 256;
constexpr float kLargest = 3.402823466e38f;
// The bits of a key that hold the token; the logit lies above them.
constexpr int kTokenBits = 24;
constexpr uint64_t kNoKey = ~uint64_t{0};
// The order in which the CPU classes sum: vectors of sixteen, in chunks of 1024 logits.
constexpr int kSumLanes = 16;
constexpr int kSumChunk = 1024;

TANDEM_DEVICE float Infinity() { return BitsToFloat(0x7f800000u); }

// Replaces NaN by −inf, and +inf by the largest float.
TANDEM_DEVICE float Clean(float x) { return x != x ? -Infinity() : Min(x, kLargest); }

// The key of a token: ascending keys are descending logits, then ascending ids. −0 and 0 are equal.
TANDEM_DEVICE uint64_t MakeKey(float logit, int token) {
  const uint32_t bits = FloatToBits(logit + 0.0f);
  const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{~ascending} << kTokenBits | static_cast<uint32_t>(token);
}
TANDEM_DEVICE int TokenOfKey(uint64_t key) {
  return static_cast<int>(key & ((uint64_t{1} << kTokenBits) - 1));
}

struct SampleKernel {
  using Params = DeviceSampleArgs;
  static constexpr const char* kName = "sample kernel";
  static constexpr int kThreads = kSampleThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr size_t kSharedBytes = (kBins + kWarps) * sizeof(uint64_t);

  // The row that the block works on.
  struct Row {
    const DeviceSampleRow* parameters;
    const float* logits;
    float* work;
    int vocab_size;
  };

  TANDEM_KERNEL uint64_t* Histogram() { return reinterpret_cast<uint64_t*>(SharedMemory()); }
  TANDEM_KERNEL uint64_t* WarpWords() { return Histogram() + kBins; }

  // The smallest `x` of the block, in every thread.
  TANDEM_KERNEL uint64_t BlockMin(uint64_t x) {
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
      const uint64_t other = ShuffleXor(x, mask);
      x = other < x ? other : x;
    }
    SyncThreads();
    if (LaneIndex() == 0) WarpWords()[WarpIndex()] = x;
    SyncThreads();
    for (int warp = 0; warp < kWarps; ++warp) {
      const uint64_t other = WarpWords()[warp];
      x = other < x ? other : x;
    }
    return x;
  }

  TANDEM_KERNEL uint64_t SumOf(uint64_t x) {
    SyncThreads();
    if (ThreadIndex() == 0) WarpWords()[0] = 0;
    SyncThreads();
    SharedAdd(WarpWords(), x);
    SyncThreads();
    return WarpWords()[0];
  }

  // Fills `work` with the adjusted logits that the choice uses; −inf is never chosen.
  TANDEM_KERNEL void Adjust(const Row& row) {
    const DeviceSampleRow& p = *row.parameters;
    for (int i = ThreadIndex(); i < row.vocab_size; i += kThreads)
      row.work[i] = Clean(row.logits[i]);
    SyncThreads();
    if (ThreadIndex() == 0) {
      for (int i = 0; i < p.num_biases; ++i) row.work[p.biases[i].token] += p.biases[i].bias;
    }
    SyncThreads();
    for (int i = ThreadIndex(); i < p.num_counts; i += kThreads) {
      const TokenCount seen = p.counts[i];
      float logit = row.work[seen.token];
      if (seen.prompt_count + seen.output_count > 0) {
        logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
      }
      if (seen.output_count > 0) {
        logit = Add(logit, -p.presence_penalty);
        logit = Add(logit, -Mul(p.frequency_penalty, static_cast<float>(seen.output_count)));
      }
      row.work[seen.token] = logit;
    }
    SyncThreads();
    const float temperature = p.temperature == 0 ? 1.0f : p.temperature;
    for (int i = ThreadIndex(); i < row.vocab_size; i += kThreads) {
      const bool allowed =
          p.allowed_tokens == nullptr || (p.allowed_tokens[i / 32] >> (i % 32) & 1u) != 0;
      row.work[i] = allowed ? Clean(row.work[i] / temperature) : -Infinity();
    }
    SyncThreads();
  }

  // The lowest key of tokens for which `score(i)` is above −inf.
  template <typename Score>
  TANDEM_KERNEL uint64_t BestKey(int vocab_size, const Score& score) {
    uint64_t best = kNoKey;
    for (int i = ThreadIndex(); i < vocab_size; i += kThreads) {
      const float value = score(i);
      if (!(value > -Infinity())) continue;
      const uint64_t key = MakeKey(value, i);
      best = key < best ? key : best;
    }
    return BlockMin(best);
  }

  // The tokens that min-p, top-k and top-p keep: keys up to `cut`, and logits of at least `least`.
  struct Kept {
    float least;
    float max;
    uint64_t cut;

    TANDEM_DEVICE bool Has(float logit, uint64_t key) const {
      return logit > -Infinity() && logit >= least && key <= cut;
    }
  };

  TANDEM_KERNEL uint64_t MassOf(float logit, float max) {
    return static_cast<uint64_t>(static_cast<double>(ExactExp(Add(logit, -max))) * 0x1p40);
  }

  // The key of the last token of the shortest prefix whose weights reach `target`: a count of
  // tokens, or masses where `by_mass`. REQUIRES: all kept tokens together reach it.
  TANDEM_KERNEL uint64_t SelectCut(const Row& row, const Kept& kept, bool by_mass,
                                   uint64_t target) {
    uint64_t prefix = 0, reached = 0;
    for (int shift = kTokenBits + 24; shift >= 0; shift -= 8) {
      for (int i = ThreadIndex(); i < kBins; i += kThreads) Histogram()[i] = 0;
      SyncThreads();
      for (int i = ThreadIndex(); i < row.vocab_size; i += kThreads) {
        const uint64_t key = MakeKey(row.work[i], i);
        if (key >> (shift + 8) != prefix || !kept.Has(row.work[i], key)) continue;
        SharedAdd(Histogram() + (key >> shift) % kBins,
                  by_mass ? MassOf(row.work[i], kept.max) : 1);
      }
      SyncThreads();
      // Every thread walks the bins in the same way.
      int bin = 0;
      while (bin < kBins - 1 && reached + Histogram()[bin] < target) reached += Histogram()[bin++];
      prefix = prefix << 8 | static_cast<uint32_t>(bin);
      SyncThreads();
    }
    return prefix;
  }

  TANDEM_KERNEL uint64_t CountKept(const Row& row, const Kept& kept, bool by_mass) {
    uint64_t sum = 0;
    for (int i = ThreadIndex(); i < row.vocab_size; i += kThreads) {
      if (!kept.Has(row.work[i], MakeKey(row.work[i], i))) continue;
      sum += by_mass ? MassOf(row.work[i], kept.max) : 1;
    }
    return SumOf(sum);
  }

  TANDEM_KERNEL Kept Filter(const Row& row, uint64_t best) {
    const DeviceSampleRow& p = *row.parameters;
    Kept kept = {-kLargest, row.work[TokenOfKey(best)], kNoKey};
    if (p.min_p > 0) kept.least = Add(kept.max, ExactLog(p.min_p));
    if (p.top_k > 0 && CountKept(row, kept, false) > static_cast<uint64_t>(p.top_k)) {
      kept.cut = SelectCut(row, kept, false, static_cast<uint64_t>(p.top_k));
    }
    if (p.top_p < 1.0f) {
      const double wanted =
          static_cast<double>(p.top_p) * static_cast<double>(CountKept(row, kept, true));
      uint64_t target = static_cast<uint64_t>(wanted);
      if (static_cast<double>(target) < wanted || target == 0) ++target;
      kept.cut = SelectCut(row, kept, true, target);
    }
    return kept;
  }

  TANDEM_KERNEL int Choose(const Row& row) {
    const DeviceSampleRow& p = *row.parameters;
    const uint64_t best = BestKey(row.vocab_size, [&](int i) { return row.work[i]; });
    if (best == kNoKey) return -1;
    if (p.temperature == 0) return TokenOfKey(best);
    const Kept kept = Filter(row, best);
    const uint64_t drawn = BestKey(row.vocab_size, [&](int i) {
      const float logit = row.work[i];
      if (!kept.Has(logit, MakeKey(logit, i))) return -Infinity();
      return Add(logit, GumbelOf(PhiloxWord(p.seed, p.sequence_index, p.position,
                                            static_cast<uint32_t>(i))));
    });
    return TokenOfKey(drawn);
  }

  // Σ e^(logit − max) in the CPU classes' order: sixteen lanes over each chunk, chunks in order,
  // then a tree over the lanes. A pass has 32 chunks, one for each sixteen threads; their sums use
  // the histogram's shared memory. The first sixteen threads get the result.
  TANDEM_KERNEL float SumOfExponentials(const Row& row, float max) {
    static_assert(kThreads * sizeof(float) <= kBins * sizeof(uint64_t));
    float* of_chunk = reinterpret_cast<float*>(Histogram());
    constexpr int kChunks = kThreads / kSumLanes;
    const int lane = ThreadIndex() % kSumLanes;
    float total = 0;
    for (int first = 0; first < row.vocab_size; first += kChunks * kSumChunk) {
      const int begin = first + ThreadIndex() / kSumLanes * kSumChunk;
      const int end = begin + kSumChunk < row.vocab_size ? begin + kSumChunk : row.vocab_size;
      float sum = 0;
      for (int i = begin + lane; i < end; i += kSumLanes) {
        sum = Add(sum, ExactExp(Add(Clean(row.logits[i]), -max)));
      }
      SyncThreads();
      of_chunk[ThreadIndex()] = sum;
      SyncThreads();
      for (int chunk = 0; ThreadIndex() < kSumLanes && chunk < kChunks; ++chunk) {
        total = Add(total, of_chunk[chunk * kSumLanes + lane]);
      }
    }
    for (int mask = kSumLanes / 2; mask > 0; mask /= 2) total = Add(total, ShuffleXor(total, mask));
    return total;
  }

  // The model's own distribution, in the first sixteen threads.
  struct RawDistribution {
    float max;
    float log_sum;

    TANDEM_DEVICE float Logprob(float logit) const {
      return max == -Infinity() ? -Infinity() : Add(Add(Clean(logit), -max), -log_sum);
    }
  };

  // The lowest key above `after` (the lowest of all for kNoKey) of the raw logits, −inf included.
  TANDEM_KERNEL uint64_t NextRawKey(const Row& row, uint64_t after) {
    uint64_t next = kNoKey;
    for (int i = ThreadIndex(); i < row.vocab_size; i += kThreads) {
      const uint64_t key = MakeKey(Clean(row.logits[i]), i);
      if ((after == kNoKey || key > after) && key < next) next = key;
    }
    return BlockMin(next);
  }

  // Fills the row's top_logprobs; returns the log-probability of `token` in thread 0.
  TANDEM_KERNEL float FillLogprobs(const Row& row, int token) {
    const DeviceSampleRow& p = *row.parameters;
    uint64_t last = NextRawKey(row, kNoKey);
    RawDistribution raw = {Clean(row.logits[TokenOfKey(last)]), 0};
    if (raw.max > -Infinity()) raw.log_sum = ExactLog(SumOfExponentials(row, raw.max));
    for (int n = 0; n < p.num_top_logprobs; ++n) {
      if (n > 0) last = NextRawKey(row, last);
      if (ThreadIndex() != 0) continue;
      const int top = TokenOfKey(last);
      p.top_logprobs[n] = {top, raw.Logprob(row.logits[top])};
    }
    return token < 0 ? 0.0f : raw.Logprob(row.logits[token]);
  }

  TANDEM_KERNEL int TokenOf(const Row& row) {
    const DeviceSampleRow& p = *row.parameters;
    if (p.known_token >= 0) return p.known_token;
    const bool plain =
        p.temperature == 0 && p.num_biases == 0 && p.num_counts == 0 && p.allowed_tokens == nullptr;
    if (!plain) {
      Adjust(row);
      return Choose(row);
    }
    const uint64_t best = BestKey(row.vocab_size, [&](int i) { return Clean(row.logits[i]); });
    return best == kNoKey ? -1 : TokenOfKey(best);
  }

  TANDEM_KERNEL void Run(const Params& p) {
    const int64_t first = int64_t{BlockX()} * p.vocab_size;
    const Row row = {p.parameters + BlockX(), p.logits + first, p.work + first, p.vocab_size};
    SamplingResult result;
    result.token = TokenOf(row);
    if (row.parameters->want_logprob != 0 || row.parameters->num_top_logprobs > 0) {
      result.logprob = FillLogprobs(row, result.token);
    }
    if (ThreadIndex() == 0) p.results[BlockX()] = result;
  }
};

}  // namespace

void Sample(const DeviceSampleArgs& args, DeviceStream& stream) {
  KERNEL_REQUIRE(args.vocab_size > 0 && args.vocab_size < (1 << kTokenBits));
  Launch<SampleKernel>(
      {.x = args.rows, .threads = kSampleThreads, .shared_bytes = SampleKernel::kSharedBytes}, args,
      stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
