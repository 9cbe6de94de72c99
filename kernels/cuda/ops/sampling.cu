// One token from each row of logits: bias, allowed tokens, penalties, temperature, min-p, top-k,
// top-p, Gumbel-max; logprobs of the raw distribution. kernels/api/sampling.h defines all of
// it, kernels/api/device_sampling.h the arguments.
//
// Grid: a block of 512 threads for each row. No sort: sampling_select.h finds what top-k and top-p
// keep. exp, log, and the order in which log-probabilities' sum is taken are the CPU classes': the
// same logits give the same token and the same bits there and here. A greedy row without options
// reads its logits once. Other rows copy them to a work row, which L2 holds after the first scan.
// With filters a row takes one more scan: it lists the tokens near the largest logit in shared
// memory, where top-k, top-p and the draw usually end. Rows whose filters reach further scan the
// work row instead. Shared memory: SampleMemory. Bound: bytes of logits through one
// multiprocessor's port to L2, and the exponentials of a scan for top-p (docs/GPU.md).
#include "kernels/api/device_sampling.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/ops/sampling_select.h"
#include "kernels/cuda/simt/launch.h"
#include "kernels/cuda/simt/philox.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

// The order in which the CPU classes sum: vectors of sixteen, in chunks of 1024 logits.
constexpr int kSumLanes = 16;
constexpr int kSumChunk = 1024;
// Lists hold tokens at most so far below the largest logit. Any value gives the same tokens.
constexpr float kNear = 8.0f, kFar = 24.0f, kNearest = 1.0f;
// No noise is larger: −log 2^−33 is 22.9.
constexpr float kNoiseMax = 23.0f;

// Replaces NaN by −inf, and +inf by the largest float.
TANDEM_DEVICE float Clean(float x) { return x != x ? NegativeInfinity() : Min(x, kLargestLogit); }

struct SampleKernel {
  using Params = DeviceSampleArgs;
  static constexpr const char* kName = "sample kernel";
  static constexpr int kThreads = kSampleThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr size_t kSharedBytes = sizeof(SampleMemory);
  static_assert(kSharedBytes <= 48 << 10);

  // The row that the block works on.
  struct Row {
    const DeviceSampleRow* parameters;
    const float* logits;
    float* work;
    int vocab_size;
  };

  TANDEM_KERNEL void StoreFour(float* values, int size, int first, const FourValues& four) {
    if (size % 4 == 0) {
      if (first < size) *reinterpret_cast<FourValues*>(values + first) = four;
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (first + j < size) values[first + j] = four.of[j];
    }
  }

  // Adds biases and penalties to `work`, which holds the clean logits.
  TANDEM_KERNEL void AdjustSeen(const Row& row) {
    const DeviceSampleRow& p = *row.parameters;
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
  }

  // Fills `work` with the adjusted logits that the choice uses; −inf is never chosen. Returns the
  // key of the best; kNoKey: every token is −inf.
  TANDEM_KERNEL uint64_t Adjust(const Row& row) {
    const DeviceSampleRow& p = *row.parameters;
    const float* from = row.logits;
    if (p.num_biases > 0 || p.num_counts > 0) {
      ForEachFour(row.logits, row.vocab_size, [&](int first, FourValues four) {
#pragma unroll
        for (int j = 0; j < 4; ++j) four.of[j] = Clean(four.of[j]);
        StoreFour(row.work, row.vocab_size, first, four);
      });
      AdjustSeen(row);
      from = row.work;
    }
    const float temperature = p.temperature == 0 ? 1.0f : p.temperature;
    uint64_t best = kNoKey;
    ForEachFour(from, row.vocab_size, [&](int first, FourValues four) {
      uint32_t allowed = 0xf;
      if (p.allowed_tokens != nullptr && first < row.vocab_size) {
        allowed = p.allowed_tokens[first / 32] >> (first % 32);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float logit = from == row.logits ? Clean(four.of[j]) : four.of[j];
        four.of[j] = (allowed >> j & 1u) != 0 ? Clean(logit / temperature) : NegativeInfinity();
        const uint64_t key = MakeKey(four.of[j], first + j);
        if (four.of[j] > NegativeInfinity() && key < best) best = key;
      }
      StoreFour(row.work, row.vocab_size, first, four);
    });
    return BlockMin(best);
  }

  // Whether selection that needs `wanted` may use the list, which has `of_list` of it.
  TANDEM_KERNEL bool Suffices(int list_size, uint64_t of_list, uint64_t wanted) {
    return list_size <= kListMax && of_list >= wanted;
  }

  // Lists tokens near the largest logit: further down if there are fewer than `wanted`, less far if
  // the list does not hold them.
  template <typename CleanFn>
  TANDEM_KERNEL int ListNear(const float* values, int size, float max, uint64_t wanted,
                             const CleanFn& clean) {
    int near = FillList(values, size, Add(max, -kNear), clean);
    if (near <= kListMax && static_cast<uint64_t>(near) < wanted && near < size) {
      return FillList(values, size, Add(max, -kFar), clean);
    }
    for (float distance = kNear / 2; near > kListMax && distance >= kNearest; distance /= 2) {
      near = FillList(values, size, Add(max, -distance), clean);
    }
    return near;
  }

  // Whether the kept tokens are all in the list.
  struct Choice {
    KeptTokens kept;
    bool listed;
    int list_size;
  };

  TANDEM_KERNEL uint64_t TopPTarget(float top_p, uint64_t mass) {
    const double wanted = static_cast<double>(top_p) * static_cast<double>(mass);
    const uint64_t target = static_cast<uint64_t>(wanted);
    return static_cast<double>(target) < wanted || target == 0 ? target + 1 : target;
  }

  // Applies top-k, then top-p.
  TANDEM_KERNEL Choice Filter(const Row& row, uint64_t best) {
    const DeviceSampleRow& p = *row.parameters;
    Choice choice = {{-kLargestLogit, row.work[TokenOfKey(best)], kNoKey}, false, 0};
    KeptTokens& kept = choice.kept;
    if (p.min_p > 0) kept.least = Add(kept.max, ExactLog(p.min_p));
    if (p.top_k <= 0 && !(p.top_p < 1.0f)) return choice;
    const RowSource all = {row.work, row.vocab_size};
    const auto as_is = [](float logit) { return logit; };
    choice.list_size = ListNear(row.work, row.vocab_size, kept.max,
                                p.top_k > 0 ? static_cast<uint64_t>(p.top_k) : 1, as_is);
    const ListSource listed = {choice.list_size <= kListMax ? choice.list_size : 0};
    if (p.top_k > 0) {
      const uint64_t k = static_cast<uint64_t>(p.top_k);
      const uint64_t near = SumKept(listed, kept, false).count;
      if (Suffices(choice.list_size, near, k)) {
        kept.cut = SelectCut(listed, kept, false, k);
        choice.listed = true;
      } else if (SumKept(all, kept, false).count > k) {
        kept.cut = SelectCut(all, kept, false, k);
      }
    }
    if (p.top_p < 1.0f) {
      const TokenSum near = SumKept(listed, kept, true);
      const uint64_t mass = choice.listed ? near.mass : SumKept(all, kept, true).mass;
      const uint64_t target = TopPTarget(p.top_p, mass);
      if (target > mass) return choice;  // rounded up beyond all of it
      choice.listed = choice.listed || Suffices(choice.list_size, near.mass, target);
      const uint64_t cut = choice.listed ? SelectCut(listed, kept, true, target)
                                         : SelectCut(all, kept, true, target);
      // A cut tells kept tokens apart. Behind the last of them it may let tokens pass that top-k
      // dropped.
      if (cut < kept.cut) kept.cut = cut;
    }
    return choice;
  }

  TANDEM_KERNEL uint64_t ScoreKey(float logit, uint32_t noise, int token) {
    return MakeKey(Add(logit, GumbelOf(noise)), token);
  }

  // The lowest key of kept tokens' scores: logit + noise. Tokens that no noise can lift above the
  // score of `best`, the largest logit's key, get none.
  TANDEM_KERNEL uint64_t Draw(const Row& row, const Choice& choice, uint64_t best) {
    const DeviceSampleRow& p = *row.parameters;
    const auto block_of = [&p](int token) {
      return PhiloxBlock(p.seed, p.sequence_index, p.position, static_cast<uint32_t>(token) / 4);
    };
    const int first_token = TokenOfKey(best);
    uint64_t drawn =
        ScoreKey(LogitOfKey(best), block_of(first_token).WordAt(first_token % 4), first_token);
    const float floor = LogitOfKey(drawn);
    if (choice.listed) {
      for (int i = ThreadIndex(); i < choice.list_size; i += kThreads) {
        const uint64_t key = Shared().list[i];
        const float logit = LogitOfKey(key);
        const int token = TokenOfKey(key);
        if (!choice.kept.Has(logit, key) || Add(logit, kNoiseMax) < floor) continue;
        const uint64_t score = ScoreKey(logit, block_of(token).WordAt(token % 4), token);
        drawn = score < drawn ? score : drawn;
      }
      return BlockMin(drawn);
    }
    ForEachFour(row.work, row.vocab_size, [&](int first, const FourValues& four) {
      bool in[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        in[j] = choice.kept.Has(four.of[j], MakeKey(four.of[j], first + j)) &&
                !(Add(four.of[j], kNoiseMax) < floor);
      }
      if (!in[0] && !in[1] && !in[2] && !in[3]) return;
      const PhiloxWords words = block_of(first);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!in[j]) continue;
        const uint64_t score = ScoreKey(four.of[j], words.of[j], first + j);
        drawn = score < drawn ? score : drawn;
      }
    });
    return BlockMin(drawn);
  }

  TANDEM_KERNEL int Choose(const Row& row) {
    const uint64_t best = Adjust(row);
    if (best == kNoKey) return -1;
    if (row.parameters->temperature == 0) return TokenOfKey(best);
    const Choice choice = Filter(row, best);
    return TokenOfKey(Draw(row, choice, best));
  }

  // Σ e^(logit − max) in the CPU classes' order: sixteen lanes over each chunk, chunks in order,
  // then a tree over the lanes. A pass has 32 chunks, one for each sixteen threads; their sums use
  // the histogram's shared memory. The first sixteen threads get the result.
  TANDEM_KERNEL float SumOfExponentials(const Row& row, float max) {
    static_assert(kThreads * sizeof(float) <= sizeof(SampleMemory::counts));
    float* of_chunk = reinterpret_cast<float*>(Shared().counts);
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
      return max == NegativeInfinity() ? NegativeInfinity()
                                       : Add(Add(Clean(logit), -max), -log_sum);
    }
  };

  // The lowest key above `after` (the lowest of all for kNoKey) of the raw logits, −inf included.
  TANDEM_KERNEL uint64_t NextRawKey(const Row& row, uint64_t after) {
    uint64_t next = kNoKey;
    ForEachFour(row.logits, row.vocab_size, [&](int first, const FourValues& four) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint64_t key = MakeKey(Clean(four.of[j]), first + j);
        const bool later = after == kNoKey || key > after;
        if (first + j < row.vocab_size && later && key < next) next = key;
      }
    });
    return BlockMin(next);
  }
  // The same of the list's keys.
  TANDEM_KERNEL uint64_t NextListed(int list_size, uint64_t after) {
    uint64_t next = kNoKey;
    for (int i = ThreadIndex(); i < list_size; i += kThreads) {
      const uint64_t key = Shared().list[i];
      if (key > after && key < next) next = key;
    }
    return BlockMin(next);
  }

  // Fills the row's top_logprobs; returns the log-probability of `token` in thread 0.
  TANDEM_KERNEL float FillLogprobs(const Row& row, int token) {
    const DeviceSampleRow& p = *row.parameters;
    uint64_t last = NextRawKey(row, kNoKey);
    RawDistribution raw = {Clean(row.logits[TokenOfKey(last)]), 0};
    if (raw.max > NegativeInfinity()) raw.log_sum = ExactLog(SumOfExponentials(row, raw.max));
    const int wanted = p.num_top_logprobs;
    int list_size = 0;
    if (wanted > 1) {
      list_size = ListNear(row.logits, row.vocab_size, raw.max, static_cast<uint64_t>(wanted),
                           [](float logit) { return Clean(logit); });
    }
    const bool listed = list_size >= wanted && list_size <= kListMax;
    for (int n = 0; n < wanted; ++n) {
      if (n > 0) last = listed ? NextListed(list_size, last) : NextRawKey(row, last);
      if (ThreadIndex() != 0) continue;
      const int top = TokenOfKey(last);
      p.top_logprobs[n] = {top, raw.Logprob(row.logits[top])};
    }
    return token < 0 ? 0.0f : raw.Logprob(row.logits[token]);
  }

  // The best token of the clean raw logits; −1: all are −inf.
  TANDEM_KERNEL int BestRaw(const Row& row) {
    uint64_t best = kNoKey;
    ForEachFour(row.logits, row.vocab_size, [&](int first, const FourValues& four) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float logit = Clean(four.of[j]);
        const uint64_t key = MakeKey(logit, first + j);
        if (logit > NegativeInfinity() && key < best) best = key;
      }
    });
    best = BlockMin(best);
    return best == kNoKey ? -1 : TokenOfKey(best);
  }

  TANDEM_KERNEL int TokenOf(const Row& row) {
    const DeviceSampleRow& p = *row.parameters;
    if (p.known_token >= 0) return p.known_token;
    const bool plain =
        p.temperature == 0 && p.num_biases == 0 && p.num_counts == 0 && p.allowed_tokens == nullptr;
    return plain ? BestRaw(row) : Choose(row);
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
