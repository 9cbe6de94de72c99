// Goal: what a worker fetches ahead is what it will read, every line of it once, task after task:
// the K and V of all tokens that a generated row attends to, in tiles of sixteen, and nothing else.
// A wrong stream changes no result, so nothing but speed would show it.
#include <algorithm>
#include <numeric>
#include <set>

#include "kernel_fixture.h"
#include "kv_stream_lines.h"

namespace tandem::kernels {
namespace {

#if defined(__x86_64__)

class KvStreamTest : public ClassTest {};
INSTANTIATE_TEST_SUITE_P(Cpu, KvStreamTest, testing::Values(IsaClass::kAvx2), ClassName);

// The lines of K and V of tiles [first, end) of a sequence and some heads.
std::set<const char*> LinesOf(const AttentionArgs& args, const SequenceRows& sequence,
                              int32_t first_head, int32_t end_head) {
  const KvShape& shape = args.layer.shape;
  const int64_t slab = static_cast<int64_t>(KvSlabBytes(shape));
  const int64_t tile = slab / (shape.block_tokens / 16);
  const int32_t position = sequence.first_position;
  const int32_t window = args.sliding_window;
  const int32_t lowest = window > 0 && position >= window ? position + 1 - window : 0;
  std::set<const char*> lines;
  for (int32_t token = lowest / 16 * 16; token <= position; token += 16) {
    const char* block =
        static_cast<const char*>(args.layer.base) +
        sequence.block_table[token / shape.block_tokens] * args.layer.block_stride_bytes;
    for (int32_t which = first_head * 2; which < end_head * 2; ++which) {
      const char* at = block + which * slab + token % shape.block_tokens / 16 * tile;
      for (int64_t i = 0; i < tile; i += 64) lines.insert(at + i);
    }
  }
  return lines;
}

TEST_P(KvStreamTest, NamesEveryLineOfItsTasksOnceInTheirOrder) {
  for (int trial = 0; trial < 60; ++trial) {
    AttentionArgs args;
    KvShape& shape = args.layer.shape;
    shape.num_kv_heads = static_cast<int32_t>(Uniform(1, 5));
    shape.head_dim = static_cast<int32_t>(Uniform(1, 2)) * 32;
    shape.block_tokens = 16 << Uniform(0, 2);
    shape.type = Uniform(0, 1) == 0 ? KvType::kBf16 : KvType::kInt8;
    args.sliding_window = static_cast<int32_t>(Uniform(0, 1) * Uniform(1, 400));
    args.num_sequences = static_cast<int32_t>(Uniform(1, 9));
    args.layer.block_stride_bytes = static_cast<int64_t>(KvBlockBytes(shape));
    constexpr int32_t kBlocks = 20;
    std::vector<char> region(static_cast<size_t>(args.layer.block_stride_bytes * 9 * kBlocks));
    args.layer.base = region.data();
    std::vector<int32_t> table(9 * kBlocks);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), generator_);
    std::vector<SequenceRows> sequences;
    for (int32_t s = 0; s < args.num_sequences; ++s) {
      const int32_t position = static_cast<int32_t>(Uniform(0, 300));
      sequences.push_back({table.data() + s * kBlocks, s, 1, position});
    }
    args.sequences = sequences.data();
    const stream_lines::StreamCall call = {&args, static_cast<int32_t>(Uniform(1, 5))};
    const int32_t head_tasks = (shape.num_kv_heads + call.heads - 1) / call.heads;
    int64_t task = Uniform(0, 2);
    const std::vector<const char*> lines = stream_lines::LinesFrom(call, task);
    size_t next = 0;
    for (; task < args.num_sequences * head_tasks; ++task) {
      const int32_t head = static_cast<int32_t>(task) % head_tasks * call.heads;
      const std::set<const char*> expected =
          LinesOf(args, sequences[static_cast<size_t>(task / head_tasks)], head,
                  std::min(head + call.heads, shape.num_kv_heads));
      ASSERT_LE(next + expected.size(), lines.size()) << "trial " << trial << ", task " << task;
      const auto begin = lines.begin() + static_cast<std::ptrdiff_t>(next);
      next += expected.size();
      const std::set<const char*> named(begin, lines.begin() + static_cast<std::ptrdiff_t>(next));
      ASSERT_TRUE(named == expected) << "trial " << trial << ", task " << task;
    }
    ASSERT_EQ(next, lines.size()) << "trial " << trial;
  }
}

#endif

}  // namespace
}  // namespace tandem::kernels
