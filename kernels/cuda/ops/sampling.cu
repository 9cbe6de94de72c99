// One token from each row of logits: bias, allowed tokens, penalties, temperature, min-p, top-k,
// top-p, Gumbel-max; logprobs of the raw distribution. kernels/api/sampling.h defines all of
// it, kernels/api/device_sampling.h the arguments.
//
// Grid: a team of blocks of 512 threads for each row: one block, or on Hopper a cluster of up to
// eight where rows are few. No sort: sampling_select.h finds what top-k and top-p keep. exp, log,
// and the order in which log-probabilities' sum is taken are the CPU classes': the same logits give
// the same token and the same bits there and here, whatever the team. A greedy row without options
// reads its logits once. Other rows copy them to a work row, which L2 holds, in the same scan.
// With filters a row takes one more scan: it lists the tokens near the largest logit in shared
// memory, where top-k, top-p and the draw usually end. Rows whose filters reach further scan the
// work row instead. Shared memory: SampleMemory. Bound: instructions and latency (docs/adr/0104).
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

template <bool kCluster>
struct Sampler {
  using Params = DeviceSampleArgs;
  static constexpr int kThreads = kSampleThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr size_t kSharedBytes = sizeof(SampleMemory);
  static_assert(kSharedBytes <= 48 << 10);

  // The row that the block's team works on, and the block's part of it.
  struct Row {
    const DeviceSampleRow* parameters;
    const float* logits;
    float* work;
    int vocab_size;
    Part part;
    Team<kCluster>* team;
  };

  // The bit of each seen token of `part`, from its beginning.
  TANDEM_KERNEL void MarkSeen(const Row& row, const Part& part) {
    const DeviceSampleRow& p = *row.parameters;
    uint32_t* seen = Shared().counts;
    SyncThreads();
    for (int i = ThreadIndex(); i < (part.end - part.begin + 31) / 32; i += kThreads) seen[i] = 0;
    SyncThreads();
    const auto mark = [&](int token) {
      if (token < part.begin || token >= part.end) return;
      SharedOr(seen + (token - part.begin) / 32, 1u << (token - part.begin) % 32);
    };
    for (int i = ThreadIndex(); i < p.num_biases; i += kThreads) mark(p.biases[i].token);
    for (int i = ThreadIndex(); i < p.num_counts; i += kThreads) mark(p.counts[i].token);
    SyncThreads();
  }

  TANDEM_KERNEL float Penalise(const DeviceSampleRow& p, const TokenCount& seen, float before) {
    float logit = before;
    if (seen.prompt_count + seen.output_count > 0) {
      logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    }
    if (seen.output_count > 0) {
      logit = Add(logit, -p.presence_penalty);
      logit = Add(logit, -Mul(p.frequency_penalty, static_cast<float>(seen.output_count)));
    }
    return KeepFinite(before, logit);
  }

  // Divides one adjusted logit, stores it, and returns its key, or kNoKey.
  TANDEM_KERNEL uint64_t StoreSeen(const Row& row, const Divider& divider, int token, float logit) {
    const uint32_t* allowed = row.parameters->allowed_tokens;
    const bool takes = allowed == nullptr || (allowed[token / 32] >> token % 32 & 1u) != 0;
    logit = takes ? divider.Of(logit) : NegativeInfinity();
    row.work[token] = logit;
    return logit > NegativeInfinity() ? MakeKey(logit, token) : kNoKey;
  }

  // Adds biases and penalties to the marked tokens' clean logits; returns the thread's least key.
  TANDEM_KERNEL uint64_t AdjustSeen(const Row& row, const Part& part, const Divider& divider) {
    const DeviceSampleRow& p = *row.parameters;
    const auto in_part = [&part](int token) { return token >= part.begin && token < part.end; };
    uint64_t best = kNoKey;
    SyncThreads();
    if (p.num_biases == 0) {
      for (int i = ThreadIndex(); i < p.num_counts; i += kThreads) {
        const TokenCount seen = p.counts[i];
        if (!in_part(seen.token)) continue;
        const float logit = Penalise(p, seen, Clean(row.logits[seen.token]));
        const uint64_t key = StoreSeen(row, divider, seen.token, logit);
        best = key < best ? key : best;
      }
      return best;
    }
    // A token may have counts too, and several biases, which stand side by side.
    const auto for_each_marked = [&part](const auto& visit) {
      for (int i = ThreadIndex(); i < (part.end - part.begin + 31) / 32; i += kThreads) {
        for (uint32_t left = Shared().counts[i]; left != 0; left &= left - 1) {
          visit(part.begin + i * 32 + LowestBit(left));
        }
      }
    };
    for_each_marked([&row](int token) { row.work[token] = Clean(row.logits[token]); });
    SyncThreads();
    for (int i = ThreadIndex(); i < p.num_biases; i += kThreads) {
      const int token = p.biases[i].token;
      const bool is_first = i == 0 || p.biases[i - 1].token != token;
      for (int j = i; is_first && j < p.num_biases && p.biases[j].token == token; ++j)
        if (in_part(token)) row.work[token] += p.biases[j].bias;
    }
    SyncThreads();
    for (int i = ThreadIndex(); i < p.num_counts; i += kThreads) {
      const TokenCount seen = p.counts[i];
      if (in_part(seen.token)) row.work[seen.token] = Penalise(p, seen, row.work[seen.token]);
    }
    SyncThreads();
    for_each_marked([&](int token) {
      const uint64_t key = StoreSeen(row, divider, token, row.work[token]);
      best = key < best ? key : best;
    });
    return best;
  }

  // Fills `work` in `part` with the adjusted logits that the choice uses; −inf is never chosen.
  // Returns the least key that the thread met. REQUIRES: with biases or counts, kSeenTokensMax
  // tokens at most, from a multiple of 32.
  TANDEM_KERNEL uint64_t AdjustPart(const Row& row, const Part& part) {
    const DeviceSampleRow& p = *row.parameters;
    const Divider divider(p.temperature);
    const bool seen = p.num_biases > 0 || p.num_counts > 0;
    if (seen) MarkSeen(row, part);
    const uint32_t* allowed = p.allowed_tokens;
    const uint32_t* seen_bits = Shared().counts;
    BestOfThread best = NoneYet();
    ForEachFour(row.logits, part, [&](int first, FourValues four, bool whole) {
      divider.Apply(&four);
      if (seen || allowed != nullptr) {
        uint32_t takes = 0xf;
        const bool there = whole || first < part.end;
        if (there && allowed != nullptr) {
          takes = allowed[static_cast<uint32_t>(first) / 32] >> first % 32;
        }
        if (there && seen) {
          const uint32_t bit = static_cast<uint32_t>(first - part.begin);
          takes &= ~(seen_bits[bit / 32] >> bit % 32);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if ((takes >> j & 1u) == 0) four.of[j] = NegativeInfinity();
        }
      }
      best.Take(first, four);
      if (whole) {
        *reinterpret_cast<FourValues*>(row.work + first) = four;
      } else {
        StoreFour(row.work, part, first, four);
      }
    });
    const uint64_t key = best.Key();
    const uint64_t of_seen = seen ? AdjustSeen(row, part, divider) : kNoKey;
    return of_seen < key ? of_seen : key;
  }

  // Fills `work`. Returns the key of the best; kNoKey: every token is −inf.
  TANDEM_KERNEL uint64_t Adjust(const Row& row) {
    uint64_t best = kNoKey;
    Part part = row.part;
    for (; part.begin < row.part.end; part.begin = part.end) {
      const int rest = row.part.end - part.begin;
      part.end = part.begin + (rest < kSeenTokensMax ? rest : kSeenTokensMax);
      const uint64_t key = AdjustPart(row, part);
      best = key < best ? key : best;
    }
    return row.team->Min(best);
  }

  // Whether selection that needs `wanted` may use the list, which has `of_list` of it.
  TANDEM_KERNEL bool Suffices(int list_size, uint64_t of_list, uint64_t wanted) {
    return list_size <= kListMax && of_list >= wanted;
  }

  // Lists tokens near the largest logit: further down if there are fewer than `wanted`, less far if
  // the list does not hold them. REQUIRES: a barrier of the team since the last list.
  TANDEM_KERNEL int ListNear(const float* values, const Row& row, float max, uint64_t wanted) {
    for (float distance = kNear;;) {
      const int mine = FillList(values, row.part, Add(max, -distance), row.team->PartOfList());
      const int near = static_cast<int>(row.team->TotalOfBlocks(static_cast<uint64_t>(mine)));
      const bool overflows = near > kListMax;
      const bool too_few =
          !overflows && static_cast<uint64_t>(near) < wanted && near < row.vocab_size;
      const bool further = too_few && distance == kNear;
      const bool nearer = overflows && distance > kNearest && distance <= kNear;
      if (!further && !nearer) {
        if (!overflows) row.team->GatherList();
        return near;
      }
      distance = further ? kFar : distance / 2;
    }
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
    Choice choice = {{-kLargestLogit, LogitOfKey(best), kNoKey}, false, 0};
    KeptTokens& kept = choice.kept;
    if (p.min_p > 0) kept.least = Add(kept.max, ExactLog(p.min_p));
    if (p.top_k <= 0 && !(p.top_p < 1.0f)) return choice;
    const RowSource<kCluster> all = {row.work, row.part, row.team};
    choice.list_size =
        ListNear(row.work, row, kept.max, p.top_k > 0 ? static_cast<uint64_t>(p.top_k) : 1);
    const ListSource listed = {choice.list_size <= kListMax ? choice.list_size : 0};
    // One copy of the code for both: it is long, and fetching it takes longer than running it.
#pragma unroll 1
    for (int filter = 0; filter < 2; ++filter) {
      const bool by_mass = filter == 1;
      if (by_mass ? !(p.top_p < 1.0f) : p.top_k <= 0) continue;
      const uint64_t k = static_cast<uint64_t>(p.top_k);
      const uint64_t near = SumKept(listed, kept, by_mass);
      if (!by_mass) choice.listed = Suffices(choice.list_size, near, k);
      const uint64_t sum = choice.listed ? near : SumKept(all, kept, by_mass);
      const uint64_t target = by_mass ? TopPTarget(p.top_p, sum) : k;
      if (target > sum) continue;  // keeps all; top-p's may be rounded up beyond all
      choice.listed = choice.listed || Suffices(choice.list_size, near, target);
      const uint64_t cut = choice.listed ? SelectCut(listed, kept, by_mass, target)
                                         : SelectCut(all, kept, by_mass, target);
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
    ForEachFour(row.work, row.part, [&](int first, const FourValues& four, bool) {
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
    return row.team->Min(drawn);
  }

  TANDEM_KERNEL int Choose(const Row& row) {
    const uint64_t best = Adjust(row);
    if (best == kNoKey) return -1;
    if (row.parameters->temperature == 0) return TokenOfKey(best);
    const Choice choice = Filter(row, best);
    return TokenOfKey(Draw(row, choice, best));
  }

  // Σ e^(logit − max) in the CPU classes' order: sixteen lanes over each chunk, chunks in order,
  // then a tree over the lanes. In a pass sixteen threads of each block sum a chunk, neighbouring
  // blocks neighbouring ones; the sums use the histogram's shared memory. The first sixteen threads
  // get the result.
  TANDEM_KERNEL float SumOfExponentials(const Row& row, float max) {
    constexpr int kChunks = kThreads / kSumLanes;  // of a block
    static_assert(kThreads * sizeof(float) <= sizeof(SampleMemory::counts));
    static_assert(kTeamMax * kThreads * sizeof(float) <=
                  sizeof(SampleMemory::low) + sizeof(SampleMemory::high));
    float* of_block = reinterpret_cast<float*>(Shared().counts);
    float* of_team = kCluster ? reinterpret_cast<float*>(Shared().low) : of_block;
    const int blocks = row.team->blocks();
    const int lane = ThreadIndex() % kSumLanes;
    const int mine = ThreadIndex() / kSumLanes * blocks + row.team->rank();
    float total = 0;
    for (int first = 0; first < row.vocab_size; first += kChunks * blocks * kSumChunk) {
      const int begin = first + mine * kSumChunk;
      const int end = begin + kSumChunk < row.vocab_size ? begin + kSumChunk : row.vocab_size;
      float sum = 0;
      for (int i = begin + lane; i < end; i += kSumLanes) {
        sum = Add(sum, ExactExp(Add(Clean(row.logits[i]), -max)));
      }
      row.team->Sync();
      of_block[ThreadIndex()] = sum;
      row.team->Sync();
      if constexpr (kCluster) {
        for (int rank = 0; rank < blocks; ++rank) {
          of_team[rank * kThreads + ThreadIndex()] = LoadFromBlock(rank, of_block + ThreadIndex());
        }
        SyncThreads();
      }
      const int left = (row.vocab_size - first + kSumChunk - 1) / kSumChunk;
      const int chunks = left < kChunks * blocks ? left : kChunks * blocks;
      for (int chunk = 0; ThreadIndex() < kSumLanes && chunk < chunks; ++chunk) {
        const int at = chunk % blocks * kThreads + chunk / blocks * kSumLanes;
        total = Add(total, of_team[at + lane]);
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

  // The key of the best of the raw logits; kNoKey: all are −inf.
  TANDEM_KERNEL uint64_t BestRaw(const Row& row) {
    BestOfThread best = NoneYet();
    ForEachFour(row.logits, row.part,
                [&](int first, const FourValues& four, bool) { best.Take(first, four); });
    return row.team->Min(best.Key());
  }

  // The lowest key above `after` (the lowest of all for kNoKey) of the raw logits, −inf included.
  TANDEM_KERNEL uint64_t NextRawKey(const Row& row, uint64_t after) {
    if (after == kNoKey) {
      const uint64_t best = BestRaw(row);
      return best == kNoKey ? MakeKey(NegativeInfinity(), 0) : best;
    }
    uint64_t next = kNoKey;
    ForEachFour(row.logits, row.part, [&](int first, const FourValues& four, bool whole) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint64_t key = MakeKey(Clean(four.of[j]), first + j);
        if ((whole || first + j < row.part.end) && key > after && key < next) next = key;
      }
    });
    return row.team->Min(next);
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
      list_size = ListNear(row.logits, row, raw.max, static_cast<uint64_t>(wanted));
    }
    const bool listed = list_size >= wanted && list_size <= kListMax;
    for (int n = 0; n < wanted; ++n) {
      if (n > 0) last = listed ? NextListed(list_size, last) : NextRawKey(row, last);
      if (ThreadIndex() != 0 || row.team->rank() != 0) continue;
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
    if (!plain) return Choose(row);
    const uint64_t best = BestRaw(row);
    return best == kNoKey ? -1 : TokenOfKey(best);
  }

  // The tokens of the team's block `rank`: whole chunks.
  TANDEM_KERNEL Part PartOf(int vocab_size, int rank, int blocks) {
    const int chunks = (vocab_size + kSumChunk - 1) / kSumChunk;
    const int each = (chunks + blocks - 1) / blocks * kSumChunk;
    const int begin = rank * each < vocab_size ? rank * each : vocab_size;
    const int end = begin + each < vocab_size ? begin + each : vocab_size;
    return {begin, end, vocab_size % 4 == 0};
  }

  TANDEM_KERNEL void Run(const Params& p) {
    Team<kCluster> team;
    const int index = BlockX() / team.blocks();
    const int64_t first = int64_t{index} * p.vocab_size;
    const Row row = {p.parameters + index,
                     p.logits + first,
                     p.work + first,
                     p.vocab_size,
                     PartOf(p.vocab_size, team.rank(), team.blocks()),
                     &team};
    SamplingResult result;
    result.token = TokenOf(row);
    if (row.parameters->want_logprob != 0 || row.parameters->num_top_logprobs > 0) {
      result.logprob = FillLogprobs(row, result.token);
    }
    if (ThreadIndex() == 0 && team.rank() == 0) p.results[index] = result;
    if constexpr (kCluster) SyncCluster();  // until no other block reads this one's shared memory
  }
};

struct SampleKernel : Sampler<false> {
  static constexpr const char* kName = "sample kernel";
};
// A cluster of blocks for each row.
struct ClusterSampleKernel : Sampler<true> {
  static constexpr const char* kName = "cluster sample kernel";
  TANDEM_KERNEL void Run(const Params& p) {
    if constexpr (kCompilesForHopper) {
      Sampler<true>::Run(p);
    } else {
      Trap();
    }
  }
};

// How many blocks share a row, so that each has a multiprocessor and a chunk at least: Hopper has
// 132, in groups of 16 or more that hold whole clusters. It depends on nothing that changes from
// step to step but the rows, so a captured graph has the right number.
int TeamSize(int rows, int vocab_size) {
  int team = rows <= 16 ? 8 : rows <= 32 ? 4 : rows <= 64 ? 2 : 1;
  while (team > 1 && team * kSumChunk > vocab_size) team /= 2;
  return team;
}

template <typename Kernel>
void LaunchTeams(const DeviceSampleArgs& args, int team, DeviceStream& stream) {
  static_assert(kDeviceVocabularyMax < 1 << kTokenBits);
  KERNEL_REQUIRE(args.vocab_size > 0 && args.vocab_size <= kDeviceVocabularyMax);
  Launch<Kernel>({.x = args.rows * team,
                  .threads = kSampleThreads,
                  .shared_bytes = Kernel::kSharedBytes,
                  .cluster = team},
                 args, stream);
}

}  // namespace

void Sample(const DeviceSampleArgs& args, DeviceStream& stream) {
  LaunchTeams<SampleKernel>(args, 1, stream);
}

void SampleOnHopper(const DeviceSampleArgs& args, DeviceStream& stream) {
  const int team = TeamSize(args.rows, args.vocab_size);
  if (team == 1) return Sample(args, stream);
  LaunchTeams<ClusterSampleKernel>(args, team, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
