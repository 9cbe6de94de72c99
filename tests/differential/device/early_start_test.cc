// Goal: a kernel that starts before its predecessor has ended never sees, in the emulator, what
// that one has not written yet, unless it waits; and it does not overwrite what that one still
// reads. Norms and RoPE start so, on Hopper products and attention too, and give the bits that they
// give behind a finished kernel.
#include <cstring>
#include <vector>

#include "device_fixture.h"
#include "kernels/api/attention_schedule.h"
#include "kernels/api/device_attention.h"
#include "kernels/api/device_embed.h"
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_rms_norm.h"
#include "kernels/api/device_rope_kv.h"
#include "kernels/cuda/simt/hopper.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::emulated {
namespace {

constexpr int kThreads = 64, kBlocks = 3, kCount = kThreads * kBlocks;

struct Buffers {
  float* from;
  float* to;
};
int Index() { return BlockX() * kThreads + ThreadIndex(); }

// to = from + 1
struct FirstKernel {
  using Params = Buffers;
  static constexpr int kThreads = emulated::kThreads;
  static void Run(const Params& p) { p.to[Index()] = p.from[Index()] + 1; }
};

enum class Mistake { kNone, kNoWait, kReadBeforeWait, kWriteBeforeWait };

// from = to · 2, of what FirstKernel wrote to where it read from.
template <Mistake kMistake>
struct SecondKernel {
  using Params = Buffers;
  static constexpr int kThreads = emulated::kThreads;
  static constexpr bool kStartsEarly = true;
  static void Run(const Params& p) {
    float value = p.to[Index()];
    if (kMistake == Mistake::kWriteBeforeWait) p.from[Index()] = -1;
    if (kMistake != Mistake::kNoWait) WaitForPredecessor();
    if (kMistake != Mistake::kReadBeforeWait && kMistake != Mistake::kNoWait) value = p.to[Index()];
    p.from[Index()] = value * 2;
  }
};

// How many of several chains of the two kernels end with a wrong number.
template <Mistake kMistake>
int CountWrong(uint64_t seed, bool in_graph) {
  constexpr int kChains = 20;
  const std::unique_ptr<Device> device = NewEmulatedDevice(seed, EmulatedChip::kHopper);
  const std::unique_ptr<DeviceStream> stream = *device->NewStream();
  int wrong = 0;
  for (int chain = 0; chain < kChains; ++chain) {
    std::vector<float> from(kCount, 3.0f), to(kCount, std::nanf(""));
    const auto enqueue = [&] {
      for (int i = 0; i < 2; ++i) {
        Launch<FirstKernel>({.x = kBlocks, .threads = kThreads}, {from.data(), to.data()}, *stream);
        Launch<SecondKernel<kMistake>>({.x = kBlocks, .threads = kThreads},
                                       {from.data(), to.data()}, *stream);
      }
    };
    std::unique_ptr<DeviceGraph> graph;
    if (in_graph) {
      graph = *stream->Capture(enqueue);
      stream->Launch(*graph);
    } else {
      enqueue();
    }
    EXPECT_TRUE(stream->Synchronize().ok());
    for (const float value : from) {
      if (value == ((3.0f + 1) * 2 + 1) * 2) continue;
      ++wrong;
      break;
    }
  }
  return wrong;
}

TEST(EarlyStart, ShowsWhatAKernelDoesBeforeItWaits) {
  for (uint64_t seed = 1; seed < 4; ++seed) {
    for (const bool in_graph : {false, true}) {
      EXPECT_EQ(CountWrong<Mistake::kNone>(seed, in_graph), 0);
      EXPECT_GT(CountWrong<Mistake::kNoWait>(seed, in_graph), 0);
      EXPECT_GT(CountWrong<Mistake::kReadBeforeWait>(seed, in_graph), 0);
      EXPECT_GT(CountWrong<Mistake::kWriteBeforeWait>(seed, in_graph), 0);
    }
  }
}

// Copies eight rows that FirstKernel wrote, by the copy engine, which works before or after the
// wait.
template <bool kBeforeWait>
struct CopyKernel {
  struct Params {
    PanelMap map;
    float* out;  // [8]: the first number of each row
  };
  static constexpr int kThreads = 32;
  static constexpr bool kStartsEarly = true;
  static void Run(const Params& p) {
    char* panel = PanelMemory();
    Barrier* barrier = reinterpret_cast<Barrier*>(panel + PanelBytes(8));
    if (!kBeforeWait) WaitForPredecessor();
    if (ThreadIndex() == 0) {
      InitBarrier(barrier, 1);
      FenceBarrierInit();
      ArriveExpecting(barrier, PanelBytes(8));
      CopyPanel(panel, p.map, 0, 0, barrier);
    }
    SyncThreads();
    if (kBeforeWait) WaitForPredecessor();
    WaitPhase(barrier, 0);
    if (ThreadIndex() >= 8) return;
    const int row = ThreadIndex();
    std::memcpy(p.out + row, panel + row * kPanelRowBytes + (row % 8) * 16, sizeof(float));
  }
};

template <bool kBeforeWait>
int CountWrongCopies(uint64_t seed) {
  const std::unique_ptr<Device> device = NewEmulatedDevice(seed, EmulatedChip::kHopper);
  const std::unique_ptr<DeviceStream> stream = *device->NewStream();
  // A panel of eight rows of 32 floats.
  std::vector<float> from(8 * 32, 3.0f), to(8 * 32, 0.0f), out(8);
  const PanelMap map = DescribePanels({to.data(), 8, 64, 8}, *stream);
  int wrong = 0;
  for (int i = 0; i < 20; ++i) {
    std::fill(to.begin(), to.end(), 0.0f);
    Launch<FirstKernel>({.x = 4, .threads = kThreads}, {from.data(), to.data()}, *stream);
    Launch<CopyKernel<kBeforeWait>>({.threads = 32, .shared_bytes = 2048 + kPanelAlignment},
                                    {map, out.data()}, *stream);
    EXPECT_TRUE(stream->Synchronize().ok());
    for (const float value : out) wrong += value == 4.0f ? 0 : 1;
  }
  return wrong;
}

TEST(EarlyStart, ShowsCopiesThatBeginBeforeTheWait) {
  for (uint64_t seed = 1; seed < 4; ++seed) {
    EXPECT_EQ(CountWrongCopies<false>(seed), 0);
    EXPECT_GT(CountWrongCopies<true>(seed), 0);
  }
}

}  // namespace
}  // namespace tandem::kernels::emulated

namespace tandem::kernels {
namespace {

class EarlyProductTest : public DeviceTest {
 protected:
  void Finish() { EXPECT_TRUE(stream().Synchronize().ok()); }
};
INSTANTIATE_TEST_SUITE_P(All, EarlyProductTest,
                         ::testing::Values(DeviceKind::kEmulatedHopper, DeviceKind::kCuda),
                         DeviceName);

// x and what y holds come from the kernels before, as in a forward pass.
TEST_P(EarlyProductTest, HasTheBitsOfOneBehindAFinishedKernel) {
  const int32_t rows = Uniform(1, 40), k = 8 * Uniform(8, 60), n = Uniform(30, 140);
  const DeviceBuffer table = Upload(NormalBf16(static_cast<size_t>(rows * k)));
  const DeviceBuffer w = Upload(NormalBf16(static_cast<size_t>(n * k)));
  const DeviceBuffer start = Upload(Normal(static_cast<size_t>(rows * n)));
  std::vector<int32_t> ids;
  for (int32_t row = 0; row < rows; ++row) ids.push_back(row);
  const DeviceBuffer tokens = Upload(ids);
  const DeviceBuffer ones = Upload(std::vector<float>(static_cast<size_t>(k), 1.0f));
  const size_t y_bytes = static_cast<size_t>(rows * n) * sizeof(float);
  const auto run = [&](bool wait) {
    const DeviceBuffer x = Poisoned(static_cast<size_t>(rows * k) * sizeof(Bf16Bits));
    const DeviceBuffer embedded = Poisoned(static_cast<size_t>(rows * k) * sizeof(float));
    const DeviceBuffer y = Poisoned(y_bytes);
    stream().CopyWithin(y.data(), start.data(), y_bytes);
    DeviceEmbedArgs embed;
    embed.tokens = tokens.as<int32_t>();
    embed.table = table.as<Bf16Bits>();
    embed.scale = 1;
    embed.rows = rows;
    embed.size = k;
    embed.y = embedded.as<float>();
    ops().embed(embed, stream());
    DeviceRmsNormArgs norm;
    norm.x = embedded.as<float>();
    norm.weight = ones.as<float>();
    norm.eps = 1e-5f;
    norm.rows = rows;
    norm.size = k;
    norm.y = x.as<Bf16Bits>();
    ops().rms_norm(norm, stream());
    if (wait) Finish();
    DeviceGemmArgs product;
    product.x = x.as<Bf16Bits>();
    product.w = w.as<Bf16Bits>();
    product.rows = rows;
    product.n = n;
    product.k = k;
    product.add_to_y = true;
    product.y = y.as<float>();
    product.multiprocessors = 2;
    // The second adds to what the first writes.
    for (int i = 0; i < 2; ++i) {
      ops().gemm(product, stream());
      if (wait) Finish();
    }
    return Download<float>(y, static_cast<size_t>(rows * n));
  };
  const std::vector<float> expected = run(true);
  for (int i = 0; i < 12; ++i) {
    const std::vector<float> y = run(false);
    ExpectSameBits(y.data(), expected.data(), y.size(), "run " + std::to_string(i));
  }
}

// K and V of the batch's rows, and q, come from the kernel before attention, which may begin with
// tokens before them. That kernel, RoPE, begins with the rows' angles. A generated row, one whose
// partitions are split and merged, and prompt rows that begin within a sub-tile.
class EarlyAttentionTest : public DeviceTest {
 protected:
  static constexpr int32_t kHeads = 4, kKvHeads = 2, kAllHeads = kHeads + 2 * kKvHeads;
  static constexpr int32_t kBlockTokens = 32, kTokens = 640;
  static constexpr int32_t kRowsMax = 90;

  // Attention of rows [begin, end) behind the kernel that writes their K, V and q, which is behind
  // the one that writes its input.
  struct Step {
    int32_t head_dim = 0, begin = 0, end = 0;
    DeviceBuffer embeddings, rows, cache, positions, slots, ones, zeros;
    DeviceBuffer tables, narrow, wide, merges, counts;
    AttentionCounts launch;
  };
  Step Draw(int32_t head_dim, int32_t begin, int32_t end) {
    const int32_t rows = end - begin;
    const KvShape kv = {kKvHeads, head_dim, kBlockTokens};
    Step step;
    step.head_dim = head_dim;
    step.begin = begin;
    step.end = end;
    step.embeddings = Upload(NormalBf16(static_cast<size_t>(rows * kAllHeads * head_dim)));
    step.cache = Upload(NormalBf16(kTokens / kBlockTokens * KvBlockBytes(kv) / 2));
    std::vector<int32_t> numbers, positions, table;
    std::vector<int64_t> slots;
    for (int32_t i = begin; i < end; ++i) {
      numbers.push_back(i - begin);
      positions.push_back(i);
      slots.push_back(i);
    }
    for (int32_t i = 0; i < kTokens / kBlockTokens; ++i) table.push_back(i);
    const AttentionSchedule schedule = ScheduleAttention(
        {kHeads, kKvHeads, 0, /*items_wanted=*/3, /*records_max=*/16}, {{0, rows, begin, 0}});
    step.launch = {static_cast<int32_t>(schedule.narrow_items.size()),
                   static_cast<int32_t>(schedule.wide_items.size()),
                   static_cast<int32_t>(schedule.merges.size())};
    step.rows = Upload(numbers);
    step.positions = Upload(positions);
    step.slots = Upload(slots);
    const size_t angles = static_cast<size_t>(kTokens * head_dim / 2);
    step.ones = Upload(std::vector<float>(angles, 1.0f));
    step.zeros = Upload(std::vector<float>(angles, 0.0f));
    step.tables = Upload(table);
    step.narrow = Upload(schedule.narrow_items);
    step.wide = Upload(schedule.wide_items);
    step.merges = Upload(schedule.merges);
    step.counts = Upload(std::vector<AttentionCounts>{step.launch});
    return step;
  }

  std::vector<Bf16Bits> Run(const Step& step, bool wait) {
    const int32_t rows = step.end - step.begin;
    const KvShape kv = {kKvHeads, step.head_dim, kBlockTokens};
    const size_t size = static_cast<size_t>(rows * kHeads * step.head_dim);
    const int32_t row_size = kAllHeads * step.head_dim;
    const DeviceBuffer qkv = Poisoned(static_cast<size_t>(rows * row_size) * sizeof(float)),
                       q = Poisoned(size * sizeof(Bf16Bits)),
                       out = Poisoned(size * sizeof(Bf16Bits)),
                       records = Poisoned(static_cast<size_t>(16 * kHeads * (step.head_dim + 2)) *
                                          sizeof(float)),
                       region = Poisoned(step.cache.bytes());
    stream().CopyWithin(region.data(), step.cache.data(), step.cache.bytes());
    ops().embed({step.rows.as<int32_t>(), step.embeddings.as<Bf16Bits>(), 1.0f, rows, row_size,
                 qkv.as<float>()},
                stream());
    if (wait) {
      EXPECT_TRUE(stream().Synchronize().ok());
    }
    DeviceRopeKvArgs rope;
    rope.qkv = qkv.as<float>();
    rope.rows = rows;
    rope.num_heads = kHeads;
    rope.positions = step.positions.as<int32_t>();
    rope.cos = step.ones.as<float>();
    rope.sin = step.zeros.as<float>();
    rope.slots = step.slots.as<int64_t>();
    rope.layer = {kv, region.data(), static_cast<int64_t>(KvBlockBytes(kv))};
    rope.q = q.as<Bf16Bits>();
    ops().rope_kv(rope, stream());
    if (wait) {
      EXPECT_TRUE(stream().Synchronize().ok());
    }
    DeviceAttentionArgs args;
    args.q = q.as<Bf16Bits>();
    args.num_heads = kHeads;
    args.scale = 0.125f;
    args.layer = rope.layer;
    args.tables = step.tables.as<int32_t>();
    args.narrow_items = step.narrow.as<AttentionItem>();
    args.wide_items = step.wide.as<AttentionItem>();
    args.merges = step.merges.as<AttentionMerge>();
    args.counts = step.counts.as<AttentionCounts>();
    args.launch = step.launch;
    args.multiprocessors = 2;
    args.records = records.as<float>();
    args.out = out.as<Bf16Bits>();
    ops().attention(args, stream());
    return Download<Bf16Bits>(out, size);
  }
};
INSTANTIATE_TEST_SUITE_P(All, EarlyAttentionTest,
                         ::testing::Values(DeviceKind::kEmulatedHopper, DeviceKind::kCuda),
                         DeviceName);

TEST_P(EarlyAttentionTest, HasTheBitsOfOneBehindAFinishedKernel) {
  const int32_t prompt = Uniform(10, 200);
  struct Case {
    int32_t head_dim, begin, end;
  };
  for (const Case& of : {Case{64, 600, 601}, Case{128, 63, 64}, Case{64, 64, 65},
                         Case{64, prompt, prompt + kRowsMax}}) {
    const Step step = Draw(of.head_dim, of.begin, of.end);
    const std::vector<Bf16Bits> expected = Run(step, true);
    for (int i = 0; i < 6; ++i) {
      const std::vector<Bf16Bits> out = Run(step, false);
      ExpectSameBits(out.data(), expected.data(), out.size(),
                     "rows from " + std::to_string(step.begin) + ", run " + std::to_string(i));
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
