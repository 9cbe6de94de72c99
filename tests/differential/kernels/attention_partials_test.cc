// Goal: however the partitions of a sequence are divided between nodes, as single partitions or as
// whole groups, merging all records gives plain attention to the bit. Beyond one group of 4,096
// tokens plain attention equals one softmax in double within a derived bound, and its bits depend
// on no chunk border and no thread count. A call that breaks a precondition is refused by name.
// Unwritten cache and records are NaN, so a token too many or a record too few shows.
#include "paged_batch.h"

namespace tandem::kernels {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kGroupTokens = kGroupPartitions * kPartitionTokens;

int32_t PartitionsOf(int32_t tokens) { return (tokens - 1) / kPartitionTokens + 1; }

// A sequence in a cache, and the rows at its end that attend.
struct Tail {
  AttentionShape shape;
  std::vector<SequenceData> data;
  int32_t first = 0;  // position of the first row

  int32_t length() const { return data[0].length; }
  int32_t rows() const { return length() - first; }
  size_t size() const { return static_cast<size_t>(rows() * shape.num_heads * shape.kv.head_dim); }
  const float* q() const {
    return data[0].q.data() + int64_t{first} * shape.num_heads * shape.kv.head_dim;
  }
};

class AttentionPartialsTest : public ClassTest {
 protected:
  AttentionShape RandomShape() {
    const int32_t head_dims[] = {16, 64, 80, 128, 256};
    const int32_t blocks[] = {16, 32, 64, 256};
    AttentionShape shape;
    shape.kv.num_kv_heads = static_cast<int32_t>(Uniform(1, 2));
    shape.kv.head_dim = head_dims[Uniform(0, 4)];
    shape.kv.block_tokens = blocks[Uniform(0, 3)];
    constexpr KvType kTypes[] = {KvType::kF32, KvType::kBf16, KvType::kInt8};
    shape.kv.type = kTypes[Uniform(0, 2)];
    shape.num_heads = shape.kv.num_kv_heads * static_cast<int32_t>(Uniform(1, 3));
    return shape;
  }

  // Only the last `rows` rows have a q.
  Tail RandomTail(const AttentionShape& shape, int32_t length, int32_t rows) {
    const size_t tokens = static_cast<size_t>(length);
    const size_t kv_size = static_cast<size_t>(shape.kv.num_kv_heads * shape.kv.head_dim);
    Tail tail;
    tail.shape = shape;
    tail.first = length - std::min(length, rows);
    SequenceData& data = tail.data.emplace_back();
    data.length = length;
    data.q = Floats(tokens * static_cast<size_t>(shape.num_heads * shape.kv.head_dim));
    const Floats q = Normal(tail.size(), 2.0f);
    std::memcpy(data.q.data() + data.q.size() - q.size(), q.data(), q.size() * 4);
    data.k = Normal(tokens * kv_size);
    data.v = Normal(tokens * kv_size);
    return tail;
  }

  // A cache of its own with the sequence's K and V in it, except those of the rows of the tail if
  // `tail_rows` is false.
  PagedCache CacheOf(const Tail& tail, bool tail_rows) {
    PagedCache cache(tail.shape.kv, {tail.length()}, &generator_);
    const int32_t end = tail_rows ? tail.length() : tail.first;
    WriteRows(*backend_, BatchRows(tail.shape, tail.data, {{0, 0, end}}, &cache), &cache, {});
    return cache;
  }

  Floats Plain(const Tail& tail, const ParallelFor& parallel, uint16_t* out_bf16 = nullptr) {
    PagedCache cache = CacheOf(tail, false);
    return RunBatch(*backend_, tail.shape, tail.data, {{0, tail.first, tail.length()}}, &cache,
                    parallel, out_bf16);
  }

  // The records of one span, computed by a node that holds nothing but its blocks.
  Floats RecordsOf(const Tail& tail, const PartitionSpan& span, const ParallelFor& parallel) {
    PagedCache cache = CacheOf(tail, true);
    const int32_t per_partition = kPartitionTokens / tail.shape.kv.block_tokens;
    std::vector<int32_t> table;
    for (int32_t b = span.first * per_partition; b < span.end * per_partition; ++b) {
      const bool exists = b <= (tail.length() - 1) / tail.shape.kv.block_tokens;
      table.push_back(exists ? cache.table(0)[static_cast<size_t>(b)] : -1000000);
    }
    Floats records(static_cast<size_t>(NumPieces(span)) * PieceFloats(tail));
    const PartialsSequence sequence = {table.data(), 0,    tail.rows(),
                                       tail.first,   span, records.data()};
    const PartialsLimits limits = {tail.shape.num_heads, tail.shape.kv, 1, parallel.num_workers};
    Floats scratch(PartialsScratchBytes(limits) / sizeof(float));
    AttentionPartialsArgs args;
    args.q = tail.q();
    args.num_heads = tail.shape.num_heads;
    args.q_stride = int64_t{args.num_heads} * tail.shape.kv.head_dim;
    args.scale = 1.0f / std::sqrt(static_cast<float>(tail.shape.kv.head_dim));
    args.sliding_window = tail.shape.sliding_window;
    args.layer = cache.layer();
    args.sequences = &sequence;
    args.num_sequences = 1;
    args.scratch = scratch.data();
    args.scratch_bytes = scratch.size() * sizeof(float);
    EXPECT_EQ(FaultOf(args), "");
    backend_->attention_partials(args, parallel);
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_FALSE(std::isnan(records[i])) << "float " << i << " of the records was not written";
      if (std::isnan(records[i])) break;
    }
    return records;
  }
  static size_t PieceFloats(const Tail& tail) {
    return static_cast<size_t>(
        PieceBytes(tail.rows(), tail.shape.num_heads, tail.shape.kv.head_dim) / 4);
  }

  // The lowest partition that a row of the tail attends to.
  static int32_t FirstPartition(const Tail& tail) {
    const int32_t window = tail.shape.sliding_window;
    return window == 0 ? 0 : std::max(0, tail.first + 1 - window) / kPartitionTokens;
  }

  // Spans that cover the partitions that the tail attends to: single partitions, pieces of groups,
  // whole groups and more.
  std::vector<PartitionSpan> RandomSpans(const Tail& tail) {
    std::vector<PartitionSpan> spans;
    const int32_t end = PartitionsOf(tail.length());
    for (int32_t at = FirstPartition(tail); at < end;) {
      const int32_t ends[] = {at + 1, EndOfGroup(at), at + static_cast<int32_t>(Uniform(1, 40))};
      spans.push_back({at, std::min(end, ends[Uniform(0, 2)])});
      at = spans.back().end;
    }
    return spans;
  }

  // Output of the merge of `spans`' records, as plain attention writes it.
  Floats Merged(const Tail& tail, const std::vector<PartitionSpan>& spans,
                uint16_t* out_bf16 = nullptr) {
    std::vector<Floats> records;
    std::vector<PieceRecords> pieces;
    for (const PartitionSpan& span : spans) {
      Threads threads(static_cast<int>(Uniform(1, 3)));
      records.push_back(RecordsOf(tail, span, threads.parallel()));
      for (int32_t i = 0; i < NumPieces(span); ++i) {
        pieces.push_back(
            {PieceAt(span, i), records.back().data() + static_cast<size_t>(i) * PieceFloats(tail)});
      }
    }
    const MergeSequence sequence = {pieces.data(), static_cast<int32_t>(pieces.size()), 0,
                                    tail.rows(), tail.first};
    Floats out(tail.size());
    MergePartialsArgs args;
    args.kv = tail.shape.kv;
    args.num_heads = tail.shape.num_heads;
    args.sliding_window = tail.shape.sliding_window;
    args.sequences = &sequence;
    args.num_sequences = 1;
    args.out = out_bf16 == nullptr ? out.data() : nullptr;
    args.out_bf16 = out_bf16;
    args.out_stride = int64_t{args.num_heads} * tail.shape.kv.head_dim;
    EXPECT_EQ(FaultOf(args), "");
    Threads threads(static_cast<int>(Uniform(1, 3)));
    backend_->merge_partials(args, threads.parallel());
    return out;
  }

  // Row `row` of the tail and `head` by one softmax over all tokens, in double.
  std::vector<double> OneSoftmax(const Tail& tail, PagedCache* cache, int32_t row, int32_t head) {
    const KvShape& kv = tail.shape.kv;
    const size_t size = static_cast<size_t>(kv.head_dim);
    const float* q = tail.q() + (int64_t{row} * tail.shape.num_heads + head) * kv.head_dim;
    const double scale = 1.0f / std::sqrt(static_cast<float>(kv.head_dim));
    const int32_t position = tail.first + row, window = tail.shape.sliding_window;
    const int32_t begin = window == 0 ? 0 : std::max(0, position + 1 - window);
    KvReadArgs read;
    read.layer = cache->layer();
    read.kv_head = head / (tail.shape.num_heads / kv.num_kv_heads);
    Floats vector(size);
    read.out = vector.data();
    const auto read_token = [&](int32_t token, bool value) {
      read.block = cache->table(0)[static_cast<size_t>(token / kv.block_tokens)];
      read.token = token % kv.block_tokens;
      read.value = value;
      backend_->kv_read(read);
    };
    std::vector<double> scores, out(size);
    for (int32_t t = begin; t <= position; ++t) {
      read_token(t, false);
      double score = 0;
      for (size_t d = 0; d < size; ++d) score += double{q[d]} * vector[d];
      scores.push_back(score * scale);
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (int32_t t = begin; t <= position; ++t) {
      const double p = std::exp(scores[static_cast<size_t>(t - begin)] - most);
      sum += p;
      read_token(t, true);
      for (size_t d = 0; d < size; ++d) out[d] += p * vector[d];
    }
    for (double& x : out) x /= sum;
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, AttentionPartialsTest,
                         ::testing::Values(IsaClass::kRef, IsaClass::kAvx2, IsaClass::kAvx512,
                                           IsaClass::kAvx512Bf16, IsaClass::kAmx,
                                           IsaClass::kAmxEmulated),
                         ClassName);

std::string Describe(const Tail& tail) {
  const AttentionShape& shape = tail.shape;
  return "heads " + std::to_string(shape.num_heads) + "/" + std::to_string(shape.kv.num_kv_heads) +
         " of " + std::to_string(shape.kv.head_dim) + ", cache type " +
         std::to_string(static_cast<int>(shape.kv.type)) + ", blocks of " +
         std::to_string(shape.kv.block_tokens) + ", window " +
         std::to_string(shape.sliding_window) + ", rows from " + std::to_string(tail.first) +
         " of " + std::to_string(tail.length());
}

TEST_P(AttentionPartialsTest, AnyDivisionMergesToPlainAttention) {
  for (int trial = 0; trial < 10; ++trial) {
    AttentionShape shape = RandomShape();
    if (trial % 5 == 4) shape.sliding_window = static_cast<int32_t>(Uniform(1, 6000));
    // Generated rows, and prompt rows across a border of partitions or of groups.
    const int32_t rows = trial % 2 == 0 ? 1 : static_cast<int32_t>(Uniform(2, 30));
    const int32_t length = static_cast<int32_t>(
        trial % 3 == 0 ? kGroupTokens * Uniform(1, 2) + Uniform(1, 20) : Uniform(1, 9500));
    const Tail tail = RandomTail(shape, length, rows);
    const Floats expected = Plain(tail, {});
    ExpectSameBits(Merged(tail, RandomSpans(tail)), expected, Describe(tail));
    if (!backend_->dot_products) continue;
    std::vector<uint16_t> plain(tail.size()), merged(tail.size());
    Plain(tail, {}, plain.data());
    Merged(tail, RandomSpans(tail), merged.data());
    EXPECT_EQ(merged, plain) << "in bf16, " << Describe(tail);
  }
}

// The two divisions that lending uses most, of the same long sequence.
TEST_P(AttentionPartialsTest, GroupsAndTheirPartitionsGiveTheSameBits) {
  const Tail tail = RandomTail(RandomShape(), 2 * kGroupTokens + 300, 1);
  std::vector<PartitionSpan> singles;
  for (int32_t p = 0; p < PartitionsOf(tail.length()); ++p) singles.push_back({p, p + 1});
  const Floats expected = Plain(tail, {});
  ExpectSameBits(Merged(tail, singles), expected, "single partitions, " + Describe(tail));
  const std::vector<PartitionSpan> groups = {{0, 16}, {16, 32}, {32, 34}};
  ExpectSameBits(Merged(tail, groups), expected, "whole groups, " + Describe(tail));
}

TEST_P(AttentionPartialsTest, PlainAttentionAgreesWithOneSoftmaxBeyondAGroup) {
  for (int trial = 0; trial < 4; ++trial) {
    AttentionShape shape = RandomShape();
    if (shape.kv.type == KvType::kInt8) shape.kv.type = KvType::kBf16;  // AttentionTest has int8
    if (trial == 3) shape.sliding_window = static_cast<int32_t>(Uniform(4200, 6000));
    const Tail tail = RandomTail(shape, static_cast<int32_t>(Uniform(4200, 9000)), 2);
    const Floats mine = Plain(tail, {});
    PagedCache cache = CacheOf(tail, true);
    // As in AttentionTest.AgreesWithDouble: errors of scores, of p and of sums. Merges of up to 36
    // partitions and 3 groups add three roundings each. `ref` rounds records alone.
    const double score_error = (shape.kv.head_dim + 8) * kUnit * 4 * std::sqrt(shape.kv.head_dim);
    double bound = 6 * (2 * score_error + (300 + 3 * 39) * kUnit);
    if (backend_->isa == IsaClass::kRef) bound = 6 * 3 * 39 * kUnit;
    if (backend_->kv_in_pairs && shape.kv.type == KvType::kBf16) {
      bound += 6 * (2 * 6 * 2 * kBf16Unit / std::sqrt(3.0) + kBf16Unit);
    }
    for (int32_t row = 0; row < tail.rows(); ++row) {
      for (int32_t head = 0; head < shape.num_heads; ++head) {
        const std::vector<double> expected = OneSoftmax(tail, &cache, row, head);
        for (size_t d = 0; d < expected.size(); ++d) {
          const size_t at = static_cast<size_t>(row * shape.num_heads + head) * expected.size() + d;
          ASSERT_NEAR(mine[at], expected[d], bound) << Describe(tail) << " at " << at;
        }
      }
    }
  }
}

TEST_P(AttentionPartialsTest, ChunksAndThreadsDoNotChangeBitsBeyondAGroup) {
  for (int trial = 0; trial < 3; ++trial) {
    AttentionShape shape = RandomShape();
    if (trial == 2) shape.sliding_window = static_cast<int32_t>(Uniform(4000, 6000));
    // Rows on both sides of a border of groups.
    const int32_t length = kGroupTokens * static_cast<int32_t>(Uniform(1, 2)) + 6;
    const Tail tail = RandomTail(shape, length, 12);
    const Floats expected = Plain(tail, {});
    Threads three(3);
    ExpectSameBits(Plain(tail, three.parallel()), expected, "3 threads, " + Describe(tail));
    PagedCache cache = CacheOf(tail, false);
    const size_t row_size = tail.size() / static_cast<size_t>(tail.rows());
    for (int32_t row = 0; row < tail.rows(); ++row) {
      const ParallelFor parallel = row % 2 == 0 ? three.parallel() : ParallelFor{};
      const Floats alone =
          RunBatch(*backend_, shape, tail.data, {{0, tail.first + row, tail.first + row + 1}},
                   &cache, parallel);
      ExpectSameBits(alone.data(), expected.data() + static_cast<size_t>(row) * row_size, row_size,
                     "row " + std::to_string(row) + " alone, " + Describe(tail));
    }
    const Backend* mine = backend_;
    backend_ = FindBackend(IsaClass::kAvx2);
    if (backend_ != nullptr && std::string(mine->numerics) == backend_->numerics) {
      ExpectSameBits(Plain(tail, {}), expected, "avx2 against this class");
    }
    backend_ = mine;
  }
}

TEST_P(AttentionPartialsTest, ARowWithoutATokenHasARecordOfZeros) {
  AttentionShape shape;
  shape.kv = {1, 64, 16, KvType::kBf16};
  shape.num_heads = 2;
  const Tail tail = RandomTail(shape, 258, 4);  // rows 254 and 255 end before partition 1
  const Floats records = RecordsOf(tail, {1, 2}, {});
  const size_t row_floats = 2 * 66;
  for (size_t i = 0; i < 2 * row_floats; ++i) ASSERT_EQ(records[i], 0.0f) << "float " << i;
  // The largest score's own term is 1, but for the rounding of m.
  EXPECT_GT(records[2 * row_floats + 1], 0.999f) << "l of row 256, which attends to itself";
}

// Many sequences of different sizes in one call, each with records of its own.
TEST_P(AttentionPartialsTest, NeighboursDoNotChangeRecords) {
  const AttentionShape shape = RandomShape();
  constexpr size_t kSequences = 5;
  std::vector<Tail> tails;
  std::vector<PagedCache> caches;
  std::vector<int32_t> lengths;
  for (size_t s = 0; s < kSequences; ++s) {
    lengths.push_back(static_cast<int32_t>(Uniform(1, 5000)));
    tails.push_back(RandomTail(shape, lengths[s], static_cast<int32_t>(Uniform(1, 60))));
  }
  PagedCache cache(shape.kv, lengths, &generator_);
  std::vector<SequenceData> data;
  std::vector<Chunk> all, rows;
  for (size_t s = 0; s < kSequences; ++s) {
    data.push_back(std::move(tails[s].data[0]));
    all.push_back({s, 0, lengths[s]});
    rows.push_back({s, tails[s].first, lengths[s]});
  }
  WriteRows(*backend_, BatchRows(shape, data, all, &cache), &cache, {});
  const BatchRows batch(shape, data, rows, &cache);
  for (size_t s = 0; s < kSequences; ++s) tails[s].data[0] = std::move(data[s]);
  std::vector<Floats> records;
  std::vector<PartialsSequence> sequences;
  for (size_t s = 0; s < kSequences; ++s) {
    const PartitionSpan span = {0, PartitionsOf(lengths[s])};
    records.emplace_back(static_cast<size_t>(NumPieces(span)) * PieceFloats(tails[s]));
    sequences.push_back({cache.table(s).data(), batch.sequences[s].first_row, tails[s].rows(),
                         tails[s].first, span, records[s].data()});
  }
  Threads two(2);
  Floats scratch(PartialsScratchBytes({shape.num_heads, shape.kv, kSequences, 2}) / 4);
  AttentionPartialsArgs args;
  args.q = batch.q.data();
  args.num_heads = shape.num_heads;
  args.q_stride = static_cast<int64_t>(batch.q_size);
  args.scale = 1.0f / std::sqrt(static_cast<float>(shape.kv.head_dim));
  args.layer = cache.layer();
  args.sequences = sequences.data();
  args.num_sequences = kSequences;
  args.scratch = scratch.data();
  args.scratch_bytes = scratch.size() * 4;
  backend_->attention_partials(args, two.parallel());
  for (size_t s = 0; s < kSequences; ++s) {
    ExpectSameBits(records[s], RecordsOf(tails[s], sequences[s].span, {}), Describe(tails[s]));
  }
}

class PiecesTest : public KernelTest {};

TEST_F(PiecesTest, CoverTheirSpanOnceAndTakeWholeGroupsTogether) {
  for (int trial = 0; trial < 500; ++trial) {
    const int32_t first = static_cast<int32_t>(Uniform(0, 70));
    const PartitionSpan span = {first, first + static_cast<int32_t>(Uniform(0, 90))};
    int32_t next = span.first;
    for (int32_t i = 0; i < NumPieces(span); ++i) {
      const AttentionPiece piece = PieceAt(span, i);
      ASSERT_EQ(piece.first_partition, next);
      const bool group = next % kGroupPartitions == 0 && next + kGroupPartitions <= span.end;
      ASSERT_EQ(piece.num_partitions, group ? kGroupPartitions : 1);
      next += piece.num_partitions;
    }
    ASSERT_EQ(next, span.end);
  }
}

TEST_F(PiecesTest, BrokenCallsAreNamed) {
  const int32_t table[1] = {0};
  float records[1] = {0};
  AttentionPartialsArgs args;
  args.q = records;
  args.num_heads = 4;
  args.q_stride = 256;
  args.layer.shape = {2, 64, 16, KvType::kBf16};
  args.num_sequences = 1;
  const auto fault = [&](const PartialsSequence& sequence) {
    args.sequences = &sequence;
    return FaultOf(args);
  };
  EXPECT_EQ(fault({table, 0, 1, 600, {0, 3}, records}), "");
  EXPECT_THAT(fault({table, 0, 1, 600, {1, 4}, records}),
              HasSubstr("sequence 0: its span is partitions [1, 4), expected some of [0, 3)"));
  EXPECT_THAT(fault({table, 0, 1, 600, {-1, 2}, records}), HasSubstr("its span is partitions [-1"));
  EXPECT_THAT(fault({table, 0, 1, 600, {2, 2}, records}),
              HasSubstr("its span is partitions [2, 2"));
  EXPECT_THAT(fault({table, 0, 0, 600, {0, 3}, records}), HasSubstr("it has 0 rows"));
  EXPECT_THAT(fault({table, 0, 1, -1, {0, 1}, records}), HasSubstr("begin at position -1"));
  EXPECT_THAT(fault({table, 0, 9, INT32_MAX - 3, {0, 1}, records}), HasSubstr("begin at position"));
  EXPECT_THAT(fault({nullptr, 0, 1, 600, {0, 3}, records}), HasSubstr("no block table"));
  args.num_heads = 3;
  EXPECT_THAT(fault({table, 0, 1, 600, {0, 3}, records}), HasSubstr("3 heads for 2 KV heads"));
}

TEST_F(PiecesTest, BrokenMergesAreNamed) {
  const float records[1] = {0};
  MergePartialsArgs args;
  args.kv = {2, 64, 16, KvType::kBf16};
  args.num_heads = 4;
  args.out_stride = 256;
  args.num_sequences = 1;
  const auto fault = [&](const std::vector<AttentionPiece>& pieces) {
    std::vector<PieceRecords> given;
    for (const AttentionPiece& piece : pieces) given.push_back({piece, records});
    // One row, in partition 18.
    const MergeSequence sequence = {given.data(), static_cast<int32_t>(given.size()), 0, 1, 4700};
    args.sequences = &sequence;
    return FaultOf(args);
  };
  EXPECT_EQ(fault({{0, 16}, {16, 1}, {17, 1}, {18, 1}}), "");
  EXPECT_THAT(fault({{0, 16}, {16, 1}, {18, 1}}),
              HasSubstr("sequence 0: piece 2 begins with partition 18, expected 17"));
  EXPECT_THAT(fault({{0, 16}, {16, 1}, {16, 1}}), HasSubstr("begins with partition 16"));
  EXPECT_THAT(fault({{0, 16}, {16, 1}}), HasSubstr("end before partition 17, expected 19"));
  EXPECT_THAT(fault({}), HasSubstr("end before partition 0, expected 19"));
  EXPECT_THAT(fault({{0, 2}}), HasSubstr("piece 0 is 2 partitions from 0"));
  EXPECT_THAT(fault({{0, 1}, {1, 16}}), HasSubstr("piece 1 is 16 partitions from 1"));
  EXPECT_THAT(fault({{0, 16}, {16, 16}}), HasSubstr("end before partition 32, expected 19"));
  args.sliding_window = 300;  // tokens from 4401 on: partition 17
  EXPECT_EQ(fault({{17, 1}, {18, 1}}), "");
  EXPECT_THAT(fault({{18, 1}}), HasSubstr("begins with partition 18, expected 17"));
  args.sliding_window = 1000;  // tokens from 3701 on: partition 14, which a group may hold
  EXPECT_EQ(fault({{0, 16}, {16, 1}, {17, 1}, {18, 1}}), "");
}

}  // namespace
}  // namespace tandem::kernels
