// Goal: the sampler follows its specification. Philox matches the published known answers; choices,
// filters and logprobs equal a sort-everything reference in double; the distribution drawn is the
// one asked for; classes agree on every token and logprob bit; ties, masks and hostile logits are
// safe.
#include <algorithm>
#include <limits>
#include <map>

#include "kernel_fixture.h"

namespace tandem::kernels {
namespace {

TEST(Philox, KnownAnswers) {
  // Random123's kat_vectors, philox4x32 with 10 rounds.
  struct Answer {
    uint32_t counter[4], key[2], word[4];
  };
  const Answer answers[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Answer& answer : answers) {
    const PhiloxBlock block = Philox4x32_10(answer.counter, answer.key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(block.word[i], answer.word[i]);
  }
}

// Runs with scratch of its own, poisoned.
SamplingResult Choose(const Backend& backend, SamplingArgs args) {
  Floats scratch(SamplingScratchBytes(args.vocab_size) / sizeof(float));
  args.scratch = scratch.data();
  return backend.sample(args);
}

class SamplingTest : public ClassTest {
 protected:
  // Random parameters over random logits; members own what the arguments point to.
  SamplingArgs RandomArgs() {
    const int32_t vocab = static_cast<int32_t>(Uniform(1, 3000));
    logits_ = Normal(static_cast<size_t>(vocab), 4.0f);
    biases_.clear();
    counts_.clear();
    for (int64_t i = Uniform(0, 5); i > 0; --i) {
      biases_.push_back({static_cast<int32_t>(Uniform(0, vocab - 1)), 5.0f});
    }
    for (int32_t token = 0; token < vocab; token += static_cast<int32_t>(Uniform(1, 200))) {
      counts_.push_back(
          {token, static_cast<int32_t>(Uniform(0, 2)), static_cast<int32_t>(Uniform(0, 3))});
    }
    allowed_.assign(static_cast<size_t>(vocab / 32 + 1), 0);
    for (uint32_t& word : allowed_) word = static_cast<uint32_t>(generator_() | generator_());
    SamplingArgs args;
    args.logits = logits_.data();
    args.vocab_size = vocab;
    args.temperature = Uniform(0, 4) == 0 ? 0.0f : 0.1f * static_cast<float>(Uniform(1, 20));
    if (Uniform(0, 1) == 0) args.top_k = static_cast<int32_t>(Uniform(1, 60));
    if (Uniform(0, 1) == 0) args.top_p = 0.01f * static_cast<float>(Uniform(1, 99));
    if (Uniform(0, 2) == 0) args.min_p = 0.01f * static_cast<float>(Uniform(1, 30));
    args.biases = biases_.data();
    args.num_biases = static_cast<int32_t>(biases_.size());
    if (Uniform(0, 2) == 0) args.allowed_tokens = allowed_.data();
    if (Uniform(0, 1) == 0) args.repetition_penalty = 1.3f;
    if (Uniform(0, 1) == 0) args.presence_penalty = 0.7f;
    if (Uniform(0, 1) == 0) args.frequency_penalty = -0.2f;
    args.counts = counts_.data();
    args.num_counts = static_cast<int32_t>(counts_.size());
    args.seed = generator_();
    args.sequence_index = static_cast<uint32_t>(Uniform(0, 9));
    args.position = static_cast<uint32_t>(Uniform(0, 100000));
    args.want_logprob = true;
    return args;
  }

  Floats logits_{0};
  std::vector<TokenBias> biases_;
  std::vector<TokenCount> counts_;
  std::vector<uint32_t> allowed_;
};
INSTANTIATE_TEST_SUITE_P(Cpu, SamplingTest, kCpuClasses, ClassName);

TEST_P(SamplingTest, AgreesWithSortingInDouble) {
  // fp32 and double may differ where two scores, or a probability and top-p's border, lie within a
  // few roundings of each other: a chance of about 1e-5 a draw. Anything systematic shows.
  constexpr int kDraws = 3000;
  int different = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    SamplingArgs args = RandomArgs();
    std::vector<TokenLogprob> top(static_cast<size_t>(std::min(20, args.vocab_size)));
    std::vector<TokenLogprob> expected_top = top;
    args.num_top_logprobs = static_cast<int32_t>(top.size());
    args.top_logprobs = top.data();
    const SamplingResult mine = Choose(*backend_, args);
    args.top_logprobs = expected_top.data();
    const SamplingResult expected = Choose(ref_, args);
    if (mine.token != expected.token) {
      ++different;
    } else if (mine.token >= 0) {
      ASSERT_NEAR(mine.logprob, expected.logprob, 16 * kUnit * (2 + std::abs(expected.logprob)));
    }
    for (size_t i = 0; i < top.size(); ++i) {
      ASSERT_EQ(top[i].token, expected_top[i].token);
      ASSERT_NEAR(top[i].logprob, expected_top[i].logprob,
                  16 * kUnit * (2 + std::abs(expected_top[i].logprob)));
    }
  }
  EXPECT_LE(different, 3);
}

TEST_P(SamplingTest, ClassesAgreeToTheBit) {
  const Backend* narrow = FindBackend(IsaClass::kAvx2);
  if (narrow == nullptr) GTEST_SKIP() << "needs AVX2";
  for (int draw = 0; draw < 1000; ++draw) {
    const SamplingArgs args = RandomArgs();
    const SamplingResult mine = Choose(*backend_, args), other = Choose(*narrow, args);
    ASSERT_EQ(mine.token, other.token);
    ExpectSameBits(&mine.logprob, &other.logprob, 1, "logprob");
  }
}

TEST_P(SamplingTest, DrawsTheDistributionAskedFor) {
  // 60,000 draws over 50 tokens: Pearson's chi-square with 49 degrees of freedom exceeds 110 with
  // probability below 1e-6.
  constexpr int kDraws = 60000, kVocab = 50;
  const Floats logits = Normal(kVocab);
  SamplingArgs args;
  args.logits = logits.data();
  args.vocab_size = kVocab;
  args.temperature = 0.8f;
  args.seed = seed_;
  std::vector<double> p(kVocab);
  double sum = 0, chi_square = 0;
  for (size_t i = 0; i < kVocab; ++i) sum += p[i] = std::exp(logits[i] / 0.8);
  std::vector<int> seen(kVocab);
  for (uint32_t position = 0; position < kDraws; ++position) {
    args.position = position;
    ++seen[static_cast<size_t>(Choose(*backend_, args).token)];
  }
  for (size_t i = 0; i < kVocab; ++i) {
    const double expected = kDraws * p[i] / sum;
    chi_square += (seen[i] - expected) * (seen[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 110);
}

TEST_P(SamplingTest, LargeFlatVocabularyIsDrawnEvenly) {
  // Equal logits over a quarter of a million tokens: if noise came in steps, ties would favour low
  // ids.
  constexpr int kVocab = 262144, kDraws = 1000;
  Floats logits(kVocab);
  for (size_t i = 0; i < kVocab; ++i) logits[i] = 1.0f;
  SamplingArgs args;
  args.logits = logits.data();
  args.vocab_size = kVocab;
  args.seed = seed_;
  double mean = 0;
  for (uint32_t position = 0; position < kDraws; ++position) {
    args.position = position;
    mean += static_cast<double>(Choose(*backend_, args).token) / kVocab / kDraws;
  }
  // The mean of 1,000 uniforms has deviation 0.0091; six of them.
  EXPECT_NEAR(mean, 0.5, 0.055);
}

TEST_P(SamplingTest, SeedIndexAndPositionEachMatter) {
  const Floats logits = Normal(4000, 0.1f);
  SamplingArgs args;
  args.logits = logits.data();
  args.vocab_size = 4000;
  args.seed = generator_();
  const int32_t token = Choose(*backend_, args).token;
  EXPECT_EQ(Choose(*backend_, args).token, token);
  int equal = 0;
  for (uint32_t i = 1; i <= 20; ++i) {
    SamplingArgs other = args;
    other.seed += i;
    equal += Choose(*backend_, other).token == token;
    other = args;
    other.seed += static_cast<uint64_t>(i) << 32;
    equal += Choose(*backend_, other).token == token;
    other = args;
    other.sequence_index = i;
    equal += Choose(*backend_, other).token == token;
    other = args;
    other.position = i;
    equal += Choose(*backend_, other).token == token;
  }
  EXPECT_LE(equal, 3);
}

TEST_P(SamplingTest, TiesGoToTheLowerId) {
  Floats logits(100);
  for (size_t i = 0; i < 100; ++i) logits[i] = i >= 37 ? 2.5f : -1.0f;
  SamplingArgs args;
  args.logits = logits.data();
  args.vocab_size = 100;
  args.temperature = 0;
  EXPECT_EQ(Choose(*backend_, args).token, 37);
  // top-k among equals keeps the lowest ids, so the draw never leaves them.
  args.temperature = 1;
  args.top_k = 3;
  for (uint32_t position = 0; position < 200; ++position) {
    args.position = position;
    const int32_t token = Choose(*backend_, args).token;
    EXPECT_TRUE(token >= 37 && token < 40) << token;
  }
  TokenLogprob top[5];
  args.top_logprobs = top;
  args.num_top_logprobs = 5;
  Choose(*backend_, args);
  for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(top[i].token, 37 + i);
}

TEST_P(SamplingTest, HostileLogits) {
  Floats logits = Normal(40);
  logits[3] = NAN;
  logits[9] = -INFINITY;
  logits[20] = INFINITY;
  SamplingArgs args;
  args.logits = logits.data();
  args.vocab_size = 40;
  for (float temperature : {0.0f, 1e-30f, 1.0f}) {
    args.temperature = temperature;
    EXPECT_EQ(Choose(*backend_, args).token, 20) << temperature;
  }
  uint32_t nothing[2] = {0, 0};
  args.allowed_tokens = nothing;
  for (float top_p : {1.0f, 0.5f}) {
    args.top_p = top_p;
    EXPECT_EQ(Choose(*backend_, args).token, -1);
  }
  nothing[1] = 1u << 7;  // token 39 alone
  EXPECT_EQ(Choose(*backend_, args).token, 39);
}

// Quotients and penalties may take finite logits beyond the floats. That excludes no token.
TEST_P(SamplingTest, FiniteLogitsCanBeChosenWhateverDividesThem) {
  Floats logits = Normal(40);
  for (size_t i = 0; i < 40; ++i) logits[i] -= 50;
  logits[7] = -INFINITY;
  const TokenBias bias = {5, -100};
  const uint32_t only[2] = {1u << 5, 0}, excluded[2] = {1u << 7, 0};
  const TokenCount count = {5, 1, 1};
  SamplingArgs args;
  args.logits = logits.data();
  args.vocab_size = 40;
  args.biases = &bias;
  args.num_biases = 1;
  for (const Backend* backend : {backend_, &ref_}) {
    for (const float temperature : {1e-38f, 2e-38f, 1e-45f, 1e-30f, 1.0f, 0.0f}) {
      for (const float penalty : {1.0f, std::numeric_limits<float>::max()}) {
        for (const int filter : {0, 1, 2, 3}) {
          args.temperature = temperature;
          args.repetition_penalty = penalty;
          args.counts = &count;
          args.num_counts = penalty == 1 ? 0 : 1;
          args.top_k = filter == 1 ? 3 : 0;
          args.top_p = filter == 2 ? 0.5f : 1.0f;
          args.min_p = filter == 3 ? 0.5f : 0.0f;
          args.allowed_tokens = only;
          EXPECT_EQ(Choose(*backend, args).token, 5)
              << "temperature " << temperature << " penalty " << penalty << " filter " << filter;
          args.allowed_tokens = excluded;
          EXPECT_EQ(Choose(*backend, args).token, -1);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
