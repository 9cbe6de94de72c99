// Goal: the hash engine's stream is the oracle's under any chunking, batch mix and placement of
// blocks, and any block that is swapped, stale, zeroed, torn or foreign changes the stream or is
// reported as data loss.
#include "common/engine/hash/hash_engine.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "common/engine/partial_check.h"
#include "tests/testing/status_matchers.h"

namespace tandem::engine {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

constexpr int64_t kBlocks = 256;

struct TestSequence {
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;
  request::SamplingParams sampling;
  int32_t index = 0;
  int64_t computed = 0;
  std::vector<TokenId> expected;  // what comes after `tokens`, by the oracle
};

class HashEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    seed_ = std::random_device()();
    random_.seed(seed_);
    std::cout << "seed " << seed_ << "\n";
    auto engine = NewHashEngine(options_);
    ASSERT_OK(engine.status());
    engine_ = *std::move(engine);
    ASSERT_OK(engine_->AllocateKv(kBlocks));
    free_.resize(kBlocks);
    for (int i = 0; i < kBlocks; ++i) free_[i] = BlockId(i);
    std::shuffle(free_.begin(), free_.end(), random_);
  }

  TestSequence NewSequence(int prompt_tokens, int output_tokens) {
    TestSequence s;
    for (int i = 0; i < prompt_tokens; ++i) {
      s.tokens.push_back(static_cast<TokenId>(random_() % 259));
    }
    s.sampling.temperature = random_() % 2 == 0 ? 0.0 : 1.0;
    s.sampling.seed = random_();
    s.index = static_cast<int32_t>(random_() % 3);
    std::vector<TokenId> all = s.tokens;
    for (int i = 0; i < output_tokens; ++i) {
      s.expected.push_back(HashEngineNextToken(options_, all, s.sampling, s.index));
      all.push_back(s.expected.back());
    }
    const int64_t blocks = engine_->spec().layout.BlocksFor(prompt_tokens + output_tokens);
    s.blocks.assign(free_.end() - blocks, free_.end());
    free_.resize(free_.size() - blocks);
    return s;
  }

  SequenceSlice Slice(const TestSequence& s, int64_t rows) {
    const int64_t size = static_cast<int64_t>(s.tokens.size());
    const int64_t count = std::min(rows, size - s.computed);
    return {.tokens = s.tokens,
            .num_computed = s.computed,
            .num_new = count,
            .blocks = s.blocks,
            .sample = s.computed + count == size,
            .prompt_tokens = size,
            .sequence_index = s.index,
            .sampling = &s.sampling};
  }

  absl::StatusOr<std::vector<SampledToken>> Step(const std::vector<SequenceSlice>& slices) {
    return engine_->Step(slices, [](int) {});
  }

  // Computes a prompt of 70 tokens (5 blocks) in one step and returns the sequence, one token
  // later, ready for a decode step.
  TestSequence Started() {
    TestSequence s = NewSequence(70, 8);
    const auto sampled = Step({Slice(s, 1000)});
    EXPECT_OK(sampled);
    s.computed = 70;
    s.tokens.push_back((*sampled)[0].token);
    return s;
  }

  // `damaged` is `s` after a fault: its next tokens differ, or the engine refuses the step.
  void ExpectOtherTokens(const TestSequence& s, TestSequence damaged, const char* fault) {
    const auto sampled = Step({Slice(damaged, 1)});
    ASSERT_OK(sampled);
    if (!(*sampled)[0].damaged.has_value()) {
      // One token may coincide by chance (1 in 95); two more make it one in a million.
      std::vector<TokenId> stream = {(*sampled)[0].token};
      while (stream.size() < 4) {
        ++damaged.computed;
        damaged.tokens.push_back(stream.back());
        const auto more = Step({Slice(damaged, 1)});
        ASSERT_OK(more);
        if ((*more)[0].damaged.has_value()) return;
        stream.push_back((*more)[0].token);
      }
      const std::vector<TokenId> expected(s.expected.begin() + 1, s.expected.begin() + 5);
      EXPECT_NE(stream, expected) << fault;
    }
  }

  std::byte* Bytes(int layer, BlockId block) { return engine_->arena().Block(layer, block).data(); }
  size_t block_bytes() { return engine_->spec().layout.layer_block_bytes; }

  const HashEngineOptions options_{};
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::unique_ptr<Engine> engine_;
  std::vector<BlockId> free_;
};

TEST_F(HashEngineTest, EqualsTheOracleUnderAnyChunkingBatchAndPlacement) {
  std::vector<TestSequence> sequences;
  for (int i = 0; i < 12; ++i) {
    sequences.push_back(NewSequence(1 + static_cast<int>(random_() % 120), 20));
  }
  std::vector<size_t> produced(sequences.size(), 0);
  while (std::accumulate(produced.begin(), produced.end(), size_t{0}) < 12 * 20) {
    std::vector<size_t> batch;
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (produced[i] < 20 && random_() % 2 == 0) batch.push_back(i);
    }
    if (batch.empty()) continue;
    std::shuffle(batch.begin(), batch.end(), random_);
    std::vector<SequenceSlice> slices;
    for (const size_t i : batch) {
      slices.push_back(Slice(sequences[i], 1 + static_cast<int64_t>(random_() % 40)));
    }
    std::vector<int> layers;
    const auto sampled = engine_->Step(slices, [&](int layer) { layers.push_back(layer); });
    ASSERT_OK(sampled);
    EXPECT_EQ(layers, (std::vector<int>{0, 1, 2, 3}));
    size_t next = 0;
    for (size_t k = 0; k < batch.size(); ++k) {
      TestSequence& s = sequences[batch[k]];
      s.computed += slices[k].num_new;
      if (!slices[k].sample) continue;
      EXPECT_EQ((*sampled)[next].token, s.expected[produced[batch[k]]++]);
      s.tokens.push_back((*sampled)[next++].token);
    }
    EXPECT_EQ(next, sampled->size());
  }
}

TEST_F(HashEngineTest, PlantedFaultsShow) {
  struct Fault {
    const char* name;
    std::function<void(TestSequence&, const TestSequence& other)> plant;
  };
  const auto each_layer = [&](auto f) {
    for (int layer = 0; layer < options_.num_layers; ++layer) f(layer);
  };
  const std::vector<Fault> faults = {
      {"two blocks of one sequence swapped",
       [](auto& s, const auto&) { std::swap(s.blocks[1], s.blocks[2]); }},
      {"another sequence's block", [](auto& s, const auto& o) { s.blocks[1] = o.blocks[1]; }},
      {"zeroed in all layers",
       [&](auto& s, const auto&) {
         each_layer([&](int l) { std::memset(Bytes(l, s.blocks[3]), 0, block_bytes()); });
       }},
      {"zeroed in one layer",
       [&](auto& s, const auto&) { std::memset(Bytes(2, s.blocks[0]), 0, block_bytes()); }},
      {"torn: the second half is another block's, all layers",
       [&](auto& s, const auto& o) {
         const size_t half = block_bytes() / 2;
         each_layer([&](int l) {
           std::memcpy(Bytes(l, s.blocks[2]) + half, Bytes(l, o.blocks[2]) + half, half);
         });
       }},
      {"torn within one token",
       [&](auto& s, const auto&) { Bytes(3, s.blocks[1])[5 * 64 + 13] ^= std::byte{1}; }},
      {"stale: one layer still holds the block's former content",
       [&](auto& s, const auto& o) {
         std::memcpy(Bytes(1, s.blocks[1]), Bytes(1, o.blocks[1]), block_bytes());
       }},
      {"layers exchanged",
       [&](auto& s, const auto&) {
         std::swap_ranges(Bytes(1, s.blocks[0]), Bytes(1, s.blocks[0]) + block_bytes(),
                          Bytes(2, s.blocks[0]));
       }},
      {"the last token's KV lost",
       [&](auto& s, const auto&) {
         each_layer([&](int l) { std::memset(Bytes(l, s.blocks[4]) + 5 * 64, 0, 64); });
       }},
  };
  const TestSequence other = Started();
  for (const Fault& fault : faults) {
    TestSequence s = Started();
    TestSequence damaged = s;
    fault.plant(damaged, other);
    ExpectOtherTokens(s, damaged, fault.name);
  }
}

TEST_F(HashEngineTest, AForkGivesTheOraclesTokensWhileItsParentGoesOn) {
  TestSequence parent = Started();  // 70 tokens and one: four full blocks and a part of a fifth
  std::vector<TestSequence> children(3, parent);
  std::vector<SequenceSlice> slices = {Slice(parent, 1)};
  for (TestSequence& child : children) {
    child.blocks = NewSequence(70, 8).blocks;
    for (size_t full = 0; full < 4; ++full) child.blocks[full] = parent.blocks[full];
    child.tokens.back() = static_cast<TokenId>(random_() % 259);
    slices.push_back(Slice(child, 1));
    slices.back().forked_from = parent.blocks[4];
  }
  const auto sampled = Step(slices);
  ASSERT_OK(sampled);
  EXPECT_EQ((*sampled)[0].token, parent.expected[1]);
  for (size_t i = 0; i < children.size(); ++i) {
    const TestSequence& child = children[i];
    EXPECT_FALSE((*sampled)[i + 1].damaged.has_value());
    EXPECT_EQ((*sampled)[i + 1].token,
              HashEngineNextToken(options_, child.tokens, child.sampling, child.index));
  }
}

// Its first slice ends in another block than it begins in, and samples nothing.
TEST_F(HashEngineTest, AForkMayComputeMoreRowsThanFitIntoTheCopiedBlock) {
  const TestSequence parent = Started();
  TestSequence child = parent;
  child.blocks = NewSequence(70, 8).blocks;
  for (size_t full = 0; full < 2; ++full) child.blocks[full] = parent.blocks[full];
  for (size_t i = 40; i < child.tokens.size(); ++i)
    child.tokens[i] = static_cast<TokenId>(random_() % 259);
  SequenceSlice slice = Slice(child, 1);
  slice.num_computed = 40;
  slice.num_new = 20;
  slice.sample = false;
  slice.forked_from = parent.blocks[2];
  auto sampled = Step({slice});
  ASSERT_OK(sampled);
  EXPECT_TRUE(sampled->empty());
  child.computed = 60;
  sampled = Step({Slice(child, 100)});
  ASSERT_OK(sampled);
  EXPECT_EQ((*sampled)[0].token,
            HashEngineNextToken(options_, child.tokens, child.sampling, child.index));
}

TEST_F(HashEngineTest, RefusesForksThatBreakTheContract) {
  const TestSequence parent = Started();
  TestSequence child = parent;
  child.blocks = NewSequence(70, 8).blocks;
  const auto refused = [&](const char* what, const std::function<void(SequenceSlice&)>& spoil) {
    SequenceSlice slice = Slice(child, 1);
    slice.forked_from = parent.blocks[4];
    spoil(slice);
    EXPECT_THAT(Step({slice}),
                testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  refused("a fork of block 256, expected one in [0, 256)",
          [](auto& slice) { slice.forked_from = BlockId(kBlocks); });
  refused("to which a fork of the same step is copied",
          [&](auto& slice) { slice.forked_from = child.blocks[4]; });
  refused("first new row 64 begins a block", [](auto& slice) {
    slice.num_computed = 64;
    slice.num_new = 7;
  });
}

TEST_F(HashEngineTest, RefusesSlicesThatBreakTheContractAndWritesNothing) {
  TestSequence s = NewSequence(20, 4);
  const auto refused = [&](const char* what, const std::function<void(SequenceSlice&)>& spoil) {
    SequenceSlice slice = Slice(s, 100);
    spoil(slice);
    EXPECT_THAT(Step({slice}),
                testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  refused("rows [0, 0)", [](auto& slice) { slice.num_new = 0; });
  refused("rows [0, 21)", [](auto& slice) { slice.num_new = 21; });
  refused("1 blocks, expected 2", [](auto& slice) { slice.blocks = slice.blocks.subspan(0, 1); });
  refused("without sampling parameters", [](auto& slice) { slice.sampling = nullptr; });
  refused("samples after row 3", [](auto& slice) { slice.num_new = 3; });
  const std::vector<BlockId> bad = {BlockId(0), BlockId(kBlocks)};
  refused("block 256, expected one in [0, 256)", [&](auto& slice) { slice.blocks = bad; });
  std::vector<TokenId> tokens = s.tokens;
  tokens[7] = 259;
  refused("token 259 at 7", [&](auto& slice) { slice.tokens = tokens; });
  EXPECT_THAT(Step({Slice(s, 100), Slice(s, 100)}),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("written twice")));
  for (int64_t i = 0; i < static_cast<int64_t>(block_bytes()); ++i) {
    ASSERT_EQ(Bytes(0, s.blocks[0])[i], std::byte{0});
  }
}

// Nodes of one fleet may have contexts of different lengths.
TEST(HashEngine, ACreditorAnswersRowsBeyondItsOwnContext) {
  HashEngineOptions options;
  options.context_tokens = 512;
  ASSERT_OK_AND_ASSIGN(const auto engine, NewHashEngine(options));
  ASSERT_OK(engine->AllocateKv(kBlocks));
  const std::vector<TokenId> tokens(static_cast<size_t>(options.unit_tokens), 7);
  std::vector<BlockId> blocks;
  for (int i = 0; i < options.unit_tokens / options.block_tokens; ++i) blocks.push_back(BlockId(i));
  const request::SamplingParams sampling;
  ASSERT_OK(engine->Step({{.tokens = tokens,
                           .num_new = options.unit_tokens,
                           .blocks = blocks,
                           .prompt_tokens = options.unit_tokens,
                           .sampling = &sampling}},
                         [](int) {}));
  const auto attention = engine->NewPartialAttention();
  const std::vector<float> q(static_cast<size_t>(attention->q_floats()));
  const UnitSpan units = {0, 1};
  std::vector<std::byte> answer(static_cast<size_t>(attention->AnswerBytes(0, units, 1)));
  const auto ask = [&](int64_t first_position) {
    return attention->Compute(
        {.units = units, .blocks = blocks, .num_rows = 1, .first_position = first_position, .q = q},
        absl::MakeSpan(answer));
  };
  EXPECT_OK(ask(600));
  EXPECT_OK(ask(kPositionsMax - 1));
  for (const int64_t beyond : {kPositionsMax, std::numeric_limits<int64_t>::max()})
    EXPECT_THAT(ask(beyond), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("position")));
}

TEST(HashEngine, SpendsSimulatedTimeThroughTheSeam) {
  class Recorder : public Waiter {
   public:
    void Wait(absl::Duration duration) override { spent += duration; }
    absl::Duration spent;
  } recorder;
  HashEngineOptions options;
  options.step_time = absl::Hours(5);
  options.row_time = absl::Hours(2);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Engine> engine, NewHashEngine(options, recorder));
  ASSERT_OK(engine->AllocateKv(4));
  const std::vector<TokenId> tokens = {1, 2, 3};
  const std::vector<BlockId> blocks = {BlockId(2)};
  ASSERT_OK(engine->Step({{.tokens = tokens, .num_new = 3, .blocks = blocks}}, [](int) {}));
  // The engine's own time is a part of it.
  EXPECT_LT(recorder.spent, absl::Hours(11));
  EXPECT_GT(recorder.spent, absl::Hours(10));
}

TEST(HashEngine, EndOfSequenceAndAllowedTokens) {
  HashEngineOptions options;
  options.eos_every = 8;
  request::SamplingParams sampling;
  int eos = 0;
  for (int i = 0; i < 4000; ++i) {
    const TokenId token = HashEngineNextToken(options, {i % 259, i / 259}, sampling, 0);
    EXPECT_TRUE(token == 258 || (token >= 32 && token < 127)) << token;
    if (token == 258) ++eos;
  }
  EXPECT_NEAR(eos, 500, 120);  // 5.7 standard deviations; the draw is fixed, so this cannot flake
  sampling.allowed_token_ids = {3, 77};
  for (int i = 0; i < 50; ++i) {
    const TokenId token = HashEngineNextToken(options, {i}, sampling, 0);
    EXPECT_TRUE(token == 3 || token == 77) << token;
  }
}

TEST(HashEngine, OptionsOutOfRangeAreNamed) {
  const auto refused = [](const char* what, const std::function<void(HashEngineOptions&)>& spoil) {
    HashEngineOptions options;
    spoil(options);
    EXPECT_THAT(NewHashEngine(options),
                testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  refused("num_layers: 0", [](auto& o) { o.num_layers = 0; });
  refused("block_tokens: 24", [](auto& o) { o.block_tokens = 24; });
  refused("kv_bytes_per_token_layer: 12", [](auto& o) { o.kv_bytes_per_token_layer = 12; });
  refused("vocab_size: 258", [](auto& o) { o.vocab_size = 258; });
  refused("context_tokens: 0", [](auto& o) { o.context_tokens = 0; });
}

}  // namespace
}  // namespace tandem::engine
