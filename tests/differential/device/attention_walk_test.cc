// Goal: the works that the blocks of a persistent grid walk cover every query vector and KV head of
// random schedules exactly once, whatever the grid; two tiles share a work only where they are
// neighbours of one sequence; and blocks of a long causal prompt have about the same to do.
#include "kernels/cuda/ops/attention_walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/api/attention_schedule.h"
#include "kernels/api/device_attention.h"
#include "kernels/cuda/backend/emulated_device.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::emulated {
namespace {

struct Seen {
  int block;
  AttentionWork work;
};

// Writes down what each block's first thread walks.
template <int kTogether>
struct WalkKernel {
  struct Params {
    DeviceAttentionArgs args;
    AttentionList list;
    std::vector<Seen>* seen;
  };
  static void Run(const Params& p) {
    if (ThreadIndex() != 0) return;
    AttentionWalk<kTogether> walk(p.list);
    AttentionWork work;
    while (walk.Next(p.args, &work)) p.seen->push_back({BlockX(), work});
  }
};

class AttentionWalkTest : public ::testing::Test {
 protected:
  AttentionWalkTest() {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
    stream_ = *device_->NewStream();
  }

  int32_t Uniform(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(generator_);
  }

  template <int kTogether>
  std::vector<Seen> Walk(const DeviceAttentionArgs& args, const std::vector<AttentionItem>& items,
                         int blocks) {
    std::vector<Seen> seen;
    Launch<WalkKernel<kTogether>>(
        {.x = blocks, .threads = 32},
        {args, {items.data(), static_cast<int>(items.size()), {kWideVectors, 64}}, &seen},
        *stream_);
    EXPECT_TRUE(stream_->Synchronize().ok());
    return seen;
  }

  const uint64_t seed_ = std::random_device{}();
  std::mt19937_64 generator_{seed_};
  std::unique_ptr<Device> device_ = NewEmulatedDevice(seed_, EmulatedChip::kHopper);
  std::unique_ptr<DeviceStream> stream_;
};

template <int kTogether>
void ExpectCovered(const DeviceAttentionArgs& args, const std::vector<AttentionItem>& items,
                   const std::vector<Seen>& seen) {
  using Vector = std::tuple<int, int, int>;  // first row, vector, KV head
  std::map<Vector, int> times;
  for (const auto& [block, work] : seen) {
    EXPECT_LE(work.end_vector - work.item.first_vector, kTogether * kWideVectors);
    for (int v = work.item.first_vector; v < work.end_vector; ++v) {
      ++times[{work.item.first_row, v, work.kv_head}];
      // The work has all that the vector attends to.
      EXPECT_LE(work.begin_token, work.RangeOf(v).begin);
      EXPECT_GE(work.end_token, work.RangeOf(v).end);
      EXPECT_GE(work.end_sub_tile * 64, work.end_token);
      EXPECT_LE(work.first_sub_tile * 64, work.begin_token);
    }
  }
  size_t expected = 0;
  const int32_t heads_per_kv = args.num_heads / args.layer.shape.num_kv_heads;
  for (const AttentionItem& item : items) {
    const int32_t end = std::min(item.first_vector + kWideVectors, item.num_rows * heads_per_kv);
    for (int32_t head = 0; head < args.layer.shape.num_kv_heads; ++head) {
      for (int32_t v = item.first_vector; v < end; ++v, ++expected) {
        EXPECT_EQ((times[{item.first_row, v, head}]), 1);
      }
    }
  }
  EXPECT_EQ(times.size(), expected);
}

TEST_F(AttentionWalkTest, CoversEveryVectorOnce) {
  for (int round = 0; round < 50; ++round) {
    DeviceAttentionArgs args;
    const int32_t kv_heads = Uniform(1, 4);
    args.layer.shape.num_kv_heads = kv_heads;
    args.num_heads = kv_heads * Uniform(1, 12);
    args.sliding_window = Uniform(0, 1) * Uniform(1, 1000);
    std::vector<AttentionSequence> sequences;
    int32_t row = 0;
    for (int32_t i = 0; i < Uniform(0, 6); ++i) {
      const int32_t rows = Uniform(0, 150);
      sequences.push_back({row, rows, Uniform(0, 3000), i});
      row += rows;
    }
    const std::vector<AttentionItem> items =
        ScheduleAttention({args.num_heads, kv_heads, args.sliding_window, 8, 64}, sequences)
            .wide_items;
    const int blocks = Uniform(1, 20);
    ExpectCovered<1>(args, items, Walk<1>(args, items, blocks));
    ExpectCovered<2>(args, items, Walk<2>(args, items, blocks));
  }
}

TEST_F(AttentionWalkTest, LevelsACausalPrompt) {
  DeviceAttentionArgs args;
  args.layer.shape.num_kv_heads = 8;
  args.num_heads = 64;
  const std::vector<AttentionItem> items =
      ScheduleAttention({64, 8, 0, 8, 64}, {{0, 4096, 0, 0}}).wide_items;
  constexpr int kBlocks = 132;
  std::vector<int64_t> load(kBlocks);
  for (const auto& [block, work] : Walk<2>(args, items, kBlocks)) {
    load[static_cast<size_t>(block)] += work.end_sub_tile - work.first_sub_tile;
  }
  const auto [least, most] = std::minmax_element(load.begin(), load.end());
  EXPECT_LT(static_cast<double>(*most), 1.1 * static_cast<double>(*least));
}

}  // namespace
}  // namespace tandem::kernels::emulated
