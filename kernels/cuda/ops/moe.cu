// A mixture of experts without its matrix products (kernels/api/device_experts.h): the choice of
// each row's experts, the order of rows by expert, and the weighted sum of the experts' results.
//
// Route: a warp for each row, lane i holding experts i, i + 32, …; the sum of exponentials is taken
// over a lane's experts in order, then by a tree over the lanes. Sort: a block for each expert; its
// threads read consecutive parts of all choices, so an expert's rows keep their order. Combine: a
// thread for each output. All are bound by memory, and small beside the experts' weights.
#include "kernels/api/device_experts.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/simt/exact_math.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr float kLargest = 3.402823466e38f;
constexpr uint64_t kNoKey = ~uint64_t{0};

struct RouteExpertsKernel {
  using Params = DeviceRouteArgs;
  static constexpr const char* kName = "route experts kernel";
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kWarps = kThreads / kWarpSize;
  static constexpr int kPerLane = kExpertsMax / kWarpSize;

  // NaN counts as the lowest logit.
  TANDEM_KERNEL float Clean(float x) {
    return x != x ? -kLargest : Max(Min(x, kLargest), -kLargest);
  }
  // Ascending keys are descending logits, then ascending experts.
  TANDEM_KERNEL uint64_t KeyOf(float logit, int expert) {
    const uint32_t bits = FloatToBits(Add(logit, 0.0f));
    const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    return uint64_t{~ascending} << 32 | static_cast<uint32_t>(expert);
  }
  TANDEM_KERNEL uint64_t WarpMin(uint64_t x) {
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
      const uint64_t other = ShuffleXor(x, mask);
      x = other < x ? other : x;
    }
    return x;
  }

  TANDEM_KERNEL void Run(const Params& p) {
    const int row = BlockX() * kWarps + WarpIndex();
    if (row >= p.rows) return;  // whole warps
    const float* from = p.logits + int64_t{row} * p.num_experts;
    float logits[kPerLane];
    uint64_t keys[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = i * kWarpSize + LaneIndex();
      const bool there = expert < p.num_experts;
      logits[i] = there ? Clean(from[expert]) : -kLargest;
      keys[i] = there ? KeyOf(logits[i], expert) : kNoKey;
    }
    // Lane j of the warp keeps the j-th most likely expert.
    uint64_t after = 0;
    int mine = -1;
    for (int n = 0; n < p.top_k; ++n) {
      uint64_t next = kNoKey;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if ((n == 0 || keys[i] > after) && keys[i] < next) next = keys[i];
      }
      after = WarpMin(next);
      if (LaneIndex() == n) mine = static_cast<int>(after & 0xffffffffu);
    }
    Weigh(p, row, logits, mine);
  }

  // Writes the row's experts, ascending, and their weights; lane j < top_k keeps one, `mine`.
  TANDEM_KERNEL void Weigh(const Params& p, int row, const float logits[kPerLane], int mine) {
    float max = -kLargest;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) max = Max(max, logits[i]);
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) max = Max(max, ShuffleXor(max, mask));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i * kWarpSize + LaneIndex() < p.num_experts) sum += ExactExp(Add(logits[i], -max));
    }
    sum = WarpSum(sum);
    int rank = 0;
    for (int other = 0; other < p.top_k; ++other) {
      const int theirs = LaneValue(mine, other);
      if (theirs >= 0 && theirs < mine) ++rank;
    }
    const float* from = p.logits + int64_t{row} * p.num_experts;
    const float weight = mine < 0 ? 0.0f : ExactExp(Add(Clean(from[mine]), -max));
    if (p.renormalise) {
      // In ascending order of experts, the order in which CombineExperts adds them.
      sum = 0;
      for (int n = 0; n < p.top_k; ++n)
        sum = Add(sum, WarpSum(rank == n && mine >= 0 ? weight : 0));
    }
    if (mine < 0) return;
    p.experts[int64_t{row} * p.top_k + rank] = mine;
    p.weights[int64_t{row} * p.top_k + rank] = Divide(weight, sum);
  }

  // Lane `lane`'s value of a small integer.
  TANDEM_KERNEL int LaneValue(int x, int lane) {
    return static_cast<int>(WarpSum(LaneIndex() == lane ? static_cast<float>(x) : 0.0f));
  }
};

struct SortByExpertKernel {
  using Params = DeviceSortByExpertArgs;
  static constexpr const char* kName = "sort by expert kernel";
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr size_t kSharedBytes = 2 * kThreads * sizeof(int32_t);

  TANDEM_KERNEL void Run(const Params& p) {
    int32_t* below = reinterpret_cast<int32_t*>(SharedMemory());  // of lower experts, by thread
    int32_t* own = below + kThreads;                              // of this expert
    const int expert = BlockX(), me = ThreadIndex();
    const int part = (p.num_choices + kThreads - 1) / kThreads;
    const int begin = me * part < p.num_choices ? me * part : p.num_choices;
    const int end = begin + part < p.num_choices ? begin + part : p.num_choices;
    int lower = 0, mine = 0;
    for (int i = begin; i < end; ++i) {
      lower += p.experts[i] < expert ? 1 : 0;
      mine += p.experts[i] == expert ? 1 : 0;
    }
    below[me] = lower;
    own[me] = mine;
    SyncThreads();
    int place = 0;
    for (int thread = 0; thread < kThreads; ++thread) {
      place += below[thread] + (thread < me ? own[thread] : 0);
    }
    if (me == 0) {
      p.offsets[expert] = place;
      if (expert == p.num_experts - 1) p.offsets[p.num_experts] = p.num_choices;
    }
    for (int i = begin; i < end; ++i) {
      if (p.experts[i] != expert) continue;
      p.rows[place] = i / p.top_k;
      p.places[i] = place++;
    }
  }
};

struct CombineExpertsKernel {
  using Params = DeviceCombineArgs;
  static constexpr const char* kName = "combine experts kernel";
  static constexpr int kThreads = 256;
  static constexpr int kBlocksPerMultiprocessor = 1;

  TANDEM_KERNEL void Run(const Params& p) {
    const int i = BlockX() * kThreads + ThreadIndex();
    const int64_t row = BlockY();
    if (i >= p.size) return;
    float sum = 0;
    for (int n = 0; n < p.top_k; ++n) {
      const int64_t place = p.places[row * p.top_k + n];
      sum = Fma(p.weights[row * p.top_k + n], p.y[place * p.size + i], sum);
    }
    float* out = p.out + row * p.size + i;
    *out = p.add_to_out ? Add(*out, sum) : sum;
  }
};

}  // namespace

void RouteExperts(const DeviceRouteArgs& args, DeviceStream& stream) {
  KERNEL_REQUIRE(args.num_experts > 0 && args.num_experts <= kExpertsMax);
  KERNEL_REQUIRE(args.top_k > 0 && args.top_k <= kExpertsPerRowMax &&
                 args.top_k <= args.num_experts);
  constexpr int kRows = RouteExpertsKernel::kWarps;
  Launch<RouteExpertsKernel>(
      {.x = (args.rows + kRows - 1) / kRows, .threads = RouteExpertsKernel::kThreads}, args,
      stream);
}

void SortByExpert(const DeviceSortByExpertArgs& args, DeviceStream& stream) {
  KERNEL_REQUIRE(args.top_k > 0 && args.num_choices % args.top_k == 0);
  Launch<SortByExpertKernel>({.x = args.num_experts,
                              .threads = SortByExpertKernel::kThreads,
                              .shared_bytes = SortByExpertKernel::kSharedBytes},
                             args, stream);
}

void CombineExperts(const DeviceCombineArgs& args, DeviceStream& stream) {
  constexpr int kThreads = CombineExpertsKernel::kThreads;
  Launch<CombineExpertsKernel>(
      {.x = (args.size + kThreads - 1) / kThreads, .y = args.rows, .threads = kThreads}, args,
      stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
