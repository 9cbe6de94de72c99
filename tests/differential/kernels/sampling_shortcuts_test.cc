// Goal: the sampler's shortcuts change nothing. Tokens that noise cannot lift are skipped, top-k
// and top-p look only at what can be in them, probabilities are summed in vectors: yet every token
// and logprob bit is that of a sampler that looks at everything, on random vocabularies, parameters
// and logits of every magnitude, with ties, infinities and NaN among them. And no order of the
// logits, which clients choose by logit_bias, makes a token cost many times what others do.
#if defined(__x86_64__)
#include <time.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "full_pass_sampler.h"
#include "kernel_fixture.h"

namespace tandem::kernels {
namespace {

double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Ranks of keys such that a quickselect that takes the median of the first, the middle and the last
// one as pivot, and puts smaller ones before it, decides only two keys in each pass.
std::vector<int> RanksAgainstMedianOfThree(int count) {
  std::vector<int> place(static_cast<size_t>(count)), ranks(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) place[static_cast<size_t>(i)] = i;
  const auto take = [&](int i, int rank) {
    ranks[static_cast<size_t>(place[static_cast<size_t>(i)])] = rank;
  };
  int low = 0;
  for (; count - low > 4; low += 2) {
    const int middle = low + (count - low) / 2, last = count - 1;
    take(low, low);
    take(middle, low + 1);  // the pivot
    std::swap(place[static_cast<size_t>(middle)], place[static_cast<size_t>(last)]);
    std::swap(place[static_cast<size_t>(low + 1)], place[static_cast<size_t>(last)]);
  }
  for (; low < count; ++low) take(low, low);
  return ranks;
}

class SamplingShortcutsTest : public ClassTest {
 protected:
  void SetUp() override {
    ClassTest::SetUp();
    if (FindBackend(IsaClass::kAvx2) == nullptr) GTEST_SKIP() << "needs AVX2";
  }

  // Logits of one of the kinds that a shortcut could stumble over.
  void DrawLogits() {
    constexpr float kScales[] = {0.0f, 1e-4f, 0.3f, 3.0f, 30.0f, 1e4f, 1e9f, 1e37f};
    const int64_t vocab = Uniform(0, 9) == 0 ? Uniform(1, 40) : Uniform(1, 6000);
    const float scale = kScales[Uniform(0, 7)];
    logits_ = Normal(static_cast<size_t>(vocab), scale);
    const float shift = Uniform(0, 3) == 0 ? kScales[Uniform(0, 7)] : 0.0f;
    const bool coarse = Uniform(0, 2) == 0;
    for (int64_t i = 0; i < vocab; ++i) {
      float& x = logits_[static_cast<size_t>(i)];
      x += shift;
      // Equal logits in plenty.
      if (coarse && scale > 0) x = std::round(x / scale * 2) * (scale / 2);
    }
    const float kOdd[] = {INFINITY,
                          -INFINITY,
                          NAN,
                          0.0f,
                          -0.0f,
                          std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::lowest(),
                          std::numeric_limits<float>::denorm_min()};
    const int64_t odd = Uniform(0, 3) == 0 ? Uniform(1, 20) : 0;
    for (int64_t i = 0; i < odd; ++i) {
      logits_[static_cast<size_t>(Uniform(0, vocab - 1))] = kOdd[Uniform(0, 7)];
    }
    if (Uniform(0, 30) == 0) {
      for (int64_t i = 0; i < vocab; ++i) logits_[static_cast<size_t>(i)] = -INFINITY;
    }
  }

  void DrawBiasesAndCounts(int32_t vocab) {
    biases_.clear();
    counts_.clear();
    for (int64_t i = Uniform(0, 2) * Uniform(0, 4); i > 0; --i) {
      const float bias =
          Uniform(0, 9) == 0 ? -INFINITY : 0.1f * static_cast<float>(Uniform(-99, 99));
      biases_.push_back({static_cast<int32_t>(Uniform(0, vocab - 1)), bias});
    }
    if (Uniform(0, 1) == 0) return;
    for (int32_t token = 0; token < vocab; token += static_cast<int32_t>(Uniform(1, 200))) {
      counts_.push_back(
          {token, static_cast<int32_t>(Uniform(0, 2)), static_cast<int32_t>(Uniform(0, 3))});
    }
  }

  SamplingArgs DrawArgs() {
    DrawLogits();
    const int32_t vocab = static_cast<int32_t>(logits_.size());
    DrawBiasesAndCounts(vocab);
    allowed_.assign(static_cast<size_t>(vocab / 32 + 1), 0);
    const bool few = Uniform(0, 1) == 0;
    for (uint32_t& word : allowed_) {
      word = static_cast<uint32_t>(few ? generator_() & generator_() & generator_() & generator_()
                                       : generator_() | generator_());
    }
    constexpr float kTemperatures[] = {0.0f, 1.0f, 1e-3f, 0.3f, 0.7f, 1.5f, 20.0f};
    constexpr float kTopP[] = {1e-6f, 0.01f, 0.5f, 0.9f, 0.99f, 0.99999f, 1.0f - 0x1p-24f};
    SamplingArgs args;
    args.logits = logits_.data();
    args.vocab_size = vocab;
    args.temperature = kTemperatures[Uniform(0, 6)];
    if (Uniform(0, 1) == 0) {
      args.top_k = static_cast<int32_t>(Uniform(0, 3) == 0 ? Uniform(1, 9000) : Uniform(1, 60));
    }
    if (Uniform(0, 1) == 0) args.top_p = kTopP[Uniform(0, 6)];
    if (Uniform(0, 2) == 0)
      args.min_p = Uniform(0, 3) == 0 ? 1.0f : 0.001f * static_cast<float>(Uniform(1, 300));
    args.biases = biases_.data();
    args.num_biases = static_cast<int32_t>(biases_.size());
    if (Uniform(0, 3) == 0) args.allowed_tokens = allowed_.data();
    if (Uniform(0, 1) == 0) args.repetition_penalty = 1.3f;
    if (Uniform(0, 1) == 0) args.presence_penalty = 0.7f;
    if (Uniform(0, 1) == 0) args.frequency_penalty = -0.2f;
    args.counts = counts_.data();
    args.num_counts = static_cast<int32_t>(counts_.size());
    args.seed = generator_();
    args.sequence_index = static_cast<uint32_t>(Uniform(0, 9));
    args.position = static_cast<uint32_t>(Uniform(0, 100000));
    args.want_logprob = true;
    args.num_top_logprobs = static_cast<int32_t>(std::min<int64_t>(vocab, Uniform(0, 20)));
    return args;
  }

  // Runs both and compares all that comes out.
  void ExpectEqual(SamplingArgs args) {
    const size_t floats = SamplingScratchBytes(args.vocab_size) / sizeof(float);
    Floats scratch(floats), other_scratch(floats);
    std::vector<TokenLogprob> top(static_cast<size_t>(args.num_top_logprobs)), other_top = top;
    args.scratch = scratch.data();
    args.top_logprobs = top.data();
    const SamplingResult mine = backend_->sample(args);
    args.scratch = other_scratch.data();
    args.top_logprobs = other_top.data();
    const SamplingResult other = full_pass::SampleInFullPasses(args);
    ASSERT_EQ(mine.token, other.token)
        << "vocabulary " << args.vocab_size << " temperature " << args.temperature << " top_k "
        << args.top_k << " top_p " << args.top_p << " min_p " << args.min_p;
    ExpectSameBits(&mine.logprob, &other.logprob, 1, "logprob");
    for (size_t i = 0; i < top.size(); ++i) {
      ASSERT_EQ(top[i].token, other_top[i].token);
      ExpectSameBits(&top[i].logprob, &other_top[i].logprob, 1, "top logprob");
    }
  }

  // The processor time of one call, the least of three, in seconds. Fails unless the token is that
  // of a sampler that sorts.
  double SampleSeconds(SamplingArgs args) {
    Floats scratch(SamplingScratchBytes(args.vocab_size) / sizeof(float));
    args.scratch = scratch.data();
    EXPECT_EQ(backend_->sample(args).token, ref_.sample(args).token);
    double least = std::numeric_limits<double>::infinity();
    for (int run = 0; run < 3; ++run) {
      const double begin = ThreadSeconds();
      backend_->sample(args);
      least = std::min(least, ThreadSeconds() - begin);
    }
    return least;
  }

  Floats logits_{0};
  std::vector<TokenBias> biases_;
  std::vector<TokenCount> counts_;
  std::vector<uint32_t> allowed_;
};
INSTANTIATE_TEST_SUITE_P(Cpu, SamplingShortcutsTest, kCpuClasses, ClassName);

TEST_P(SamplingShortcutsTest, ChangeNoBit) {
  for (int draw = 0; draw < 4000 && !HasFatalFailure(); ++draw) ExpectEqual(DrawArgs());
}

TEST_P(SamplingShortcutsTest, ManyDrawsFromOneDistribution) {
  // No filters: only the noise's bound decides who is looked at.
  for (const float scale : {0.0f, 0.01f, 1.0f, 4.0f}) {
    logits_ = Normal(5000, scale);
    SamplingArgs args;
    args.logits = logits_.data();
    args.vocab_size = 5000;
    args.seed = generator_();
    for (uint32_t position = 0; position < 500 && !HasFatalFailure(); ++position) {
      args.position = position;
      ExpectEqual(args);
    }
  }
}

TEST_P(SamplingShortcutsTest, NoOrderOfLogitsMakesAChoiceSlow) {
  constexpr int32_t kVocab = 1 << 15;
  // A quadratic selection takes 300 times the time of the shuffled logits.
  constexpr double kTimesMax = 30;
  SamplingArgs args;
  args.vocab_size = kVocab;
  args.seed = generator_();
  SamplingArgs top_p = args, top_k = args;
  top_p.top_p = 0.99f;
  top_k.top_k = kVocab / 2 + kVocab / 4;
  for (SamplingArgs& filtered : {std::ref(top_p), std::ref(top_k)}) {
    logits_ = Floats(kVocab);
    const std::vector<int> ranks = RanksAgainstMedianOfThree(kVocab);
    for (int i = 0; i < kVocab; ++i) {
      logits_[static_cast<size_t>(i)] =
          -1.5f * static_cast<float>(ranks[static_cast<size_t>(i)]) / kVocab;
    }
    filtered.logits = logits_.data();
    const double hostile = SampleSeconds(filtered);
    std::shuffle(logits_.data(), logits_.data() + kVocab, generator_);
    const double shuffled = SampleSeconds(filtered);
    EXPECT_LT(hostile, kTimesMax * shuffled) << "top_k " << filtered.top_k;
  }
}

}  // namespace
}  // namespace tandem::kernels
#endif
