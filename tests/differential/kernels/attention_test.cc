// Goal: paged attention equals the double-precision softmax within a derived bound, and a row's
// bits depend on its own sequence alone: however the prompt is cut into chunks, whether the row is
// prompt or generated, beside which other sequences, on how many threads, in which physical blocks,
// at which block size and in which class. Unwritten cache is NaN, so reading a token too many
// shows.
#include "paged_batch.h"

namespace tandem::kernels {
namespace {

class AttentionTest : public ClassTest {
 protected:
  AttentionShape RandomShape() {
    const int32_t head_dims[] = {16, 64, 80, 128, 256};
    const int32_t blocks[] = {16, 32, 64, 256};
    AttentionShape shape;
    shape.kv.num_kv_heads = static_cast<int32_t>(Uniform(1, 3));
    shape.kv.head_dim = head_dims[Uniform(0, 4)];
    shape.kv.block_tokens = blocks[Uniform(0, 3)];
    constexpr KvType kTypes[] = {KvType::kF32, KvType::kBf16, KvType::kInt8};
    shape.kv.type = kTypes[Uniform(0, 2)];
    shape.num_heads = shape.kv.num_kv_heads * static_cast<int32_t>(Uniform(1, 5));
    const int64_t window = Uniform(0, 2);
    shape.sliding_window = static_cast<int32_t>(window == 0 ? 0 : Uniform(1, 600));
    return shape;
  }

  SequenceData RandomSequence(const AttentionShape& shape, int32_t length) {
    const size_t tokens = static_cast<size_t>(length);
    const size_t kv_size = static_cast<size_t>(shape.kv.num_kv_heads * shape.kv.head_dim);
    SequenceData data;
    data.length = length;
    data.q = Normal(tokens * static_cast<size_t>(shape.num_heads * shape.kv.head_dim), 2.0f);
    data.k = Normal(tokens * kv_size);
    data.v = Normal(tokens * kv_size);
    return data;
  }

  static Floats Copy(const Floats& from) {
    Floats to(from.size());
    std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
    return to;
  }

  // Moves q onto the integers that an int8 cache's attention rounds it to, head by head.
  static void RoundQueries(const AttentionShape& shape, SequenceData* data) {
    const size_t size = static_cast<size_t>(shape.kv.head_dim);
    for (size_t head = 0; head < data->q.size(); head += size) {
      float most = 0;
      for (size_t d = 0; d < size; ++d) most = std::max(most, std::fabs(data->q[head + d]));
      for (size_t d = 0; d < size; ++d) {
        float& x = data->q[head + d];
        x = std::nearbyint(x * (127 / most)) * (most / 127);
      }
    }
  }

  // All rows of one sequence in one call of its own.
  Floats RunAlone(const AttentionShape& shape, const std::vector<SequenceData>& data) {
    PagedCache cache(shape.kv, {data[0].length}, &generator_);
    return RunBatch(*backend_, shape, data, {{0, 0, data[0].length}}, &cache, {});
  }

  // One sequence in consecutive chunks of random length at most `longest`.
  Floats RunChunked(const AttentionShape& shape, const std::vector<SequenceData>& data,
                    int32_t longest, const ParallelFor& parallel) {
    PagedCache cache(shape.kv, {data[0].length}, &generator_);
    const size_t row_size = static_cast<size_t>(shape.num_heads * shape.kv.head_dim);
    Floats all(static_cast<size_t>(data[0].length) * row_size);
    for (int32_t begin = 0; begin < data[0].length;) {
      const int32_t end =
          std::min<int32_t>(data[0].length, begin + static_cast<int32_t>(Uniform(1, longest)));
      const Floats out = RunBatch(*backend_, shape, data, {{0, begin, end}}, &cache, parallel);
      std::memcpy(all.data() + static_cast<size_t>(begin) * row_size, out.data(), out.size() * 4);
      begin = end;
    }
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, AttentionTest, kCpuClasses, ClassName);

std::string Describe(const AttentionShape& shape, int32_t length) {
  return "heads " + std::to_string(shape.num_heads) + "/" + std::to_string(shape.kv.num_kv_heads) +
         " of " + std::to_string(shape.kv.head_dim) + ", blocks of " +
         std::to_string(shape.kv.block_tokens) + ", window " +
         std::to_string(shape.sliding_window) + ", " + std::to_string(length) + " tokens";
}

TEST_P(AttentionTest, AgreesWithDouble) {
  for (int trial = 0; trial < 12; ++trial) {
    const AttentionShape shape = RandomShape();
    std::vector<SequenceData> data;
    data.push_back(RandomSequence(shape, static_cast<int32_t>(Uniform(1, 700))));
    if (shape.kv.type == KvType::kInt8) RoundQueries(shape, &data[0]);
    const Floats mine = RunAlone(shape, data);
    PagedCache cache(shape.kv, {data[0].length}, &generator_);
    const Floats expected = RunBatch(ref_, shape, data, {{0, 0, data[0].length}}, &cache, {});
    // A score errs by at most head_dim units of Σ|q·k|·scale, of the order of |q||k| ≤
    // 4·head_dim·scale here; p errs relatively by that, and o is a mean of values below 6.
    const double score_error = (shape.kv.head_dim + 8) * kUnit * 4 * std::sqrt(shape.kv.head_dim);
    double bound = 6 * (2 * score_error + 300 * kUnit);
    if (backend_->kv_in_pairs && shape.kv.type == KvType::kBf16) {
      // q, of deviation 2, and p are rounded to bf16. A score, scaled to the deviation of q, is off
      // by one unit of it typically; six times that is not expected among these.
      bound += 6 * (2 * 6 * 2 * kBf16Unit / std::sqrt(3.0) + kBf16Unit);
    }
    if (shape.kv.type == KvType::kInt8) {
      // Each of a partition's 256 products p·sv is off by half of 1/32767 of the largest, times at
      // most 127; l is at least 1.
      bound += 256 * 0.5 / 32767 * 6;
    }
    for (size_t i = 0; i < mine.size(); ++i) {
      ASSERT_NEAR(mine[i], expected[i], bound) << Describe(shape, data[0].length) << " at " << i;
    }
  }
}

TEST_P(AttentionTest, RoundsItsOutputWhereAskedTo) {
  if (!backend_->dot_products) GTEST_SKIP() << "no dot products";
  AttentionShape shape;
  shape.kv = {2, 64, 32, KvType::kBf16};
  shape.num_heads = 6;
  std::vector<SequenceData> data;
  data.push_back(RandomSequence(shape, 300));
  const Floats expected = RunAlone(shape, data);
  PagedCache cache(shape.kv, {300}, &generator_);
  std::vector<uint16_t> rounded(expected.size(), 0xffff);
  RunBatch(*backend_, shape, data, {{0, 0, 300}}, &cache, {}, rounded.data());
  for (size_t i = 0; i < rounded.size(); ++i) {
    const float as_float = RoundedToBf16(expected[i]);
    uint32_t bits = 0;
    std::memcpy(&bits, &as_float, sizeof(bits));
    ASSERT_EQ(rounded[i], bits >> 16) << "at " << i;
  }
}

TEST_P(AttentionTest, EveryChunkingGivesTheSameBits) {
  for (int trial = 0; trial < 8; ++trial) {
    const AttentionShape shape = RandomShape();
    std::vector<SequenceData> data;
    data.push_back(RandomSequence(shape, static_cast<int32_t>(Uniform(300, 900))));
    const Floats expected = RunAlone(shape, data);
    Threads three(3);
    for (int32_t longest : {1, 20, 300}) {
      ExpectSameBits(
          RunChunked(shape, data, longest, {}), expected,
          "chunks of up to " + std::to_string(longest) + ", " + Describe(shape, data[0].length));
    }
    ExpectSameBits(RunChunked(shape, data, 90, three.parallel()), expected, "chunks, 3 threads");
  }
}

TEST_P(AttentionTest, NeighboursDoNotChangeBits) {
  for (int trial = 0; trial < 6; ++trial) {
    const AttentionShape shape = RandomShape();
    std::vector<SequenceData> data;
    std::vector<int32_t> lengths;
    const size_t count = static_cast<size_t>(Uniform(2, 24));
    // Every other batch is one generated row of each: many of those take KV heads together.
    const bool generated = trial % 2 == 0;
    for (size_t s = 0; s < count; ++s) {
      lengths.push_back(static_cast<int32_t>(Uniform(1, 500)));
      data.push_back(RandomSequence(shape, lengths.back()));
    }
    // Fill everything but a last piece of each, then run all the last pieces as one mixed batch.
    PagedCache cache(shape.kv, lengths, &generator_);
    std::vector<Chunk> heads, tails;
    for (size_t s = 0; s < count; ++s) {
      const bool one_row = generated || Uniform(0, 1) == 0;
      const int32_t cut =
          static_cast<int32_t>(one_row ? lengths[s] - 1 : Uniform(0, lengths[s] - 1));
      heads.push_back({s, 0, cut});
      tails.push_back({s, cut, lengths[s]});
    }
    std::shuffle(tails.begin(), tails.end(), generator_);
    RunBatch(*backend_, shape, data, heads, &cache, {});
    Threads two(2);
    const Floats batch = RunBatch(*backend_, shape, data, tails, &cache, two.parallel());
    const size_t row_size = static_cast<size_t>(shape.num_heads * shape.kv.head_dim);
    size_t row = 0;
    for (const Chunk& tail : tails) {
      std::vector<SequenceData> alone(1);
      alone[0].length = data[tail.sequence].length;
      for (auto member : {&SequenceData::q, &SequenceData::k, &SequenceData::v}) {
        const Floats& from = data[tail.sequence].*member;
        alone[0].*member = Floats(from.size());
        std::memcpy((alone[0].*member).data(), from.data(), from.size() * 4);
      }
      const Floats expected = RunAlone(shape, alone);
      const size_t rows = static_cast<size_t>(tail.end - tail.begin);
      ExpectSameBits(
          batch.data() + row * row_size,
          expected.data() + static_cast<size_t>(tail.begin) * row_size, rows * row_size,
          "sequence " + std::to_string(tail.sequence) + ", " + Describe(shape, alone[0].length));
      row += rows;
    }
  }
}

// Rows of one tile may attend to different tokens.
TEST_P(AttentionTest, InfinitiesReachOnlyRowsThatAttendToThem) {
  for (KvType type : {KvType::kF32, KvType::kBf16}) {
    for (int32_t window : {0, 40}) {
      const AttentionShape shape = {{2, 64, 32, type}, 6, window};
      std::vector<SequenceData> finite, infinite;
      finite.push_back(RandomSequence(shape, 400));
      infinite.push_back({400, Copy(finite[0].q), Copy(finite[0].k), Copy(finite[0].v)});
      const int32_t position = static_cast<int32_t>(Uniform(1, 399));
      const size_t kv_size = static_cast<size_t>(shape.kv.num_kv_heads * shape.kv.head_dim);
      for (size_t i = 0; i < kv_size; ++i) {
        const size_t at = static_cast<size_t>(position) * kv_size + i;
        infinite[0].v[at] = i % 2 == 0 ? INFINITY : NAN;
        if (window != 0) infinite[0].k[at] = -INFINITY;
      }
      const Floats expected = RunAlone(shape, finite), out = RunAlone(shape, infinite);
      const size_t row_size = static_cast<size_t>(shape.num_heads * shape.kv.head_dim);
      for (int32_t row = 0; row < 400; ++row) {
        const float* values = out.data() + static_cast<size_t>(row) * row_size;
        if (row >= position && (window == 0 || row < position + window)) {
          EXPECT_FALSE(std::isfinite(values[0])) << "row " << row << ", position " << position;
          continue;
        }
        ExpectSameBits(values, expected.data() + static_cast<size_t>(row) * row_size, row_size,
                       "row " + std::to_string(row) + ", position " + std::to_string(position) +
                           ", window " + std::to_string(window));
      }
    }
  }
}

TEST_P(AttentionTest, ThreadsAndSplitPartitionsDoNotChangeBits) {
  for (int trial = 0; trial < 6; ++trial) {
    const AttentionShape shape = RandomShape();
    std::vector<SequenceData> data;
    const int32_t length = static_cast<int32_t>(Uniform(1100, 1600));
    data.push_back(RandomSequence(shape, length));
    PagedCache cache(shape.kv, {length}, &generator_);
    RunBatch(*backend_, shape, data, {{0, 0, length - 1}}, &cache, {});
    // The last row alone on several threads takes the split path, on one the whole path.
    const std::vector<Chunk> last = {{0, length - 1, length}};
    const Floats expected = RunBatch(*backend_, shape, data, last, &cache, {});
    for (int count : {2, 3, 16}) {
      Threads threads(count);
      ExpectSameBits(RunBatch(*backend_, shape, data, last, &cache, threads.parallel()), expected,
                     std::to_string(count) + " threads, " + Describe(shape, length));
    }
  }
}

// Scratch for the records of two partitions, where five to seven have some: such calls are not
// split.
TEST_P(AttentionTest, ScratchWithoutRoomForRecordsDoesNotChangeBits) {
  for (int trial = 0; trial < 6; ++trial) {
    AttentionShape shape = RandomShape();
    shape.sliding_window = 0;
    std::vector<SequenceData> data;
    const int32_t length = static_cast<int32_t>(Uniform(1100, 1600));
    data.push_back(RandomSequence(shape, length));
    PagedCache cache(shape.kv, {length}, &generator_);
    RunBatch(*backend_, shape, data, {{0, 0, length - 20}}, &cache, {});
    for (const int32_t rows : {1, 20}) {
      const std::vector<Chunk> last = {{0, length - rows, length}};
      const Floats expected = RunBatch(*backend_, shape, data, last, &cache, {});
      for (int count : {2, 16}) {
        Threads threads(count);
        const auto run = [&](int32_t scratch_context) {
          return RunBatch(*backend_, shape, data, last, &cache, threads.parallel(), nullptr,
                          scratch_context);
        };
        const std::string what = std::to_string(rows) + " rows, " + std::to_string(count) +
                                 " threads, " + Describe(shape, length);
        ExpectSameBits(run(0), expected, "with records, " + what);
        ExpectSameBits(run(1), expected, "without records, " + what);
      }
    }
  }
}

TEST_P(AttentionTest, PlacementBlockSizeAndClassDoNotChangeBits) {
  for (int trial = 0; trial < 6; ++trial) {
    AttentionShape shape = RandomShape();
    std::vector<SequenceData> data;
    data.push_back(RandomSequence(shape, static_cast<int32_t>(Uniform(200, 700))));
    const Floats expected = RunAlone(shape, data);
    ExpectSameBits(RunAlone(shape, data), expected, "other physical blocks");
    for (int32_t block_tokens : {16, 32, 128, 256}) {
      shape.kv.block_tokens = block_tokens;
      ExpectSameBits(RunAlone(shape, data), expected, "blocks of " + std::to_string(block_tokens));
    }
    const Backend* mine = backend_;
    backend_ = FindBackend(IsaClass::kAvx2);
    if (backend_ != nullptr && std::string(mine->numerics) == backend_->numerics) {
      ExpectSameBits(RunAlone(shape, data), expected, "avx2 against this class");
    }
    backend_ = FindBackend(IsaClass::kAmxEmulated);
    if (backend_ != nullptr && mine->isa == IsaClass::kAmx) {
      ExpectSameBits(RunAlone(shape, data), expected, "emulated tiles against real ones");
    }
    backend_ = mine;
  }
}

TEST_P(AttentionTest, BlocksBehindTheWindowAreNeverRead) {
  AttentionShape shape;
  shape.kv = {1, 64, 16, KvType::kBf16};
  shape.num_heads = 4;
  shape.sliding_window = 100;
  std::vector<SequenceData> data;
  data.push_back(RandomSequence(shape, 600));
  const Floats expected = RunAlone(shape, data);
  PagedCache cache(shape.kv, {600}, &generator_);
  RunBatch(*backend_, shape, data, {{0, 0, 590}}, &cache, {});
  // Row 590 looks back to token 491: table entries before its block become nonsense.
  for (size_t b = 0; b < 491 / 16; ++b) cache.table(0)[b] = -1000000;
  const Floats tail = RunBatch(*backend_, shape, data, {{0, 590, 600}}, &cache, {});
  ExpectSameBits(tail.data(), expected.data() + 590 * 256, tail.size(), "rows 590 to 599");
}

// The window begins within a block, and within the tokens that one product takes.
TEST_P(AttentionTest, TokensBehindTheWindowMayHoldAnything) {
  AttentionShape shape;
  shape.kv = {1, 64, 64, KvType::kBf16};
  shape.num_heads = 4;
  shape.sliding_window = 100;
  std::vector<SequenceData> data;
  data.push_back(RandomSequence(shape, 600));
  const Floats expected = RunAlone(shape, data);
  PagedCache cache(shape.kv, {600}, &generator_);
  RunBatch(*backend_, shape, data, {{0, 0, 590}}, &cache, {});
  // Row 590 looks back to token 491, whose block begins with token 448.
  BatchRows behind(shape, data, {{0, 448, 491}}, &cache);
  const float nan = std::nanf("");
  std::fill_n(behind.k.data(), behind.k.size(), nan);
  std::fill_n(behind.v.data(), behind.v.size(), nan);
  WriteRows(*backend_, behind, &cache, {});
  const Floats tail = RunBatch(*backend_, shape, data, {{0, 590, 600}}, &cache, {});
  ExpectSameBits(tail.data(), expected.data() + 590 * 256, tail.size(), "rows 590 to 599");
}

// Llama 3.1 8B's heads. The rest of scratch takes less than 16 MiB here.
TEST(AttentionScratchTest, RecordsAreBounded) {
  constexpr size_t kMost = (size_t{256} + 16) << 20;
  const auto bytes = [](int32_t rows, int32_t context, int workers) {
    return AttentionScratchBytes({32, {8, 128, 32}, rows, context, workers});
  };
  // Records of 144 floats for 32 heads, in each partition and two more.
  const auto row_bytes = [](size_t context) { return (context / 256 + 2) * 32 * 144 * 4; };
  for (const int32_t context : {4096, 131072, 1 << 20}) {
    for (const int workers : {2, 64, 128}) EXPECT_LE(bytes(512, context, workers), kMost);
    // One row of any context splits on many threads.
    EXPECT_GE(bytes(1, context, 64), row_bytes(static_cast<size_t>(context)));
  }
  EXPECT_GE(bytes(1, 1 << 22, 64), row_bytes(1 << 22));
  EXPECT_LE(bytes(512, 1 << 22, 64), row_bytes(1 << 22) + (16 << 20));
  EXPECT_GT(bytes(512, 4096, 64), bytes(1, 4096, 64)) << "small ones grow with the rows";
}

}  // namespace
}  // namespace tandem::kernels
