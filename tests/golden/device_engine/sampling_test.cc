// Goal: the engine that chooses tokens on its device delivers, over many steps of random batches,
// the tokens and the log-probability bits of the one that copies logits out for the host's sampler:
// with every option a request has, chunked prompts, several sequences of one request, rows that
// only the host can serve, and prompt scores. And a decode step asks the device for few things,
// however many rows it has, and brings back no logits.
#include <iostream>
#include <random>

#include "kernels/api/backend.h"
#include "tests/golden/cpu_engine/answer.h"
#include "tests/golden/device_engine/device_engines.h"

namespace tandem::engine {
namespace {

constexpr int64_t kOutputTokens = 8;
constexpr int32_t kVocab = 144;  // tokens that prompts use

// A sequence with what its slices point to.
struct Request {
  DrivenSequence sequence;
  std::vector<uint32_t> allowed;
  request::StopParams stop;
  std::vector<TokenId> eos;
  int32_t prompt_logprobs = -1;
};

class DeviceEngineSamplingTest : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (DeviceIsMissing(GetParam())) GTEST_SKIP() << "needs a GPU: " << kernels::DescribeCuda();
    const char* repeat = std::getenv("TANDEM_TEST_SEED");
    const uint64_t seed =
        repeat != nullptr ? std::strtoull(repeat, nullptr, 10) : std::random_device()();
    random_.seed(seed);
    std::cout << "seed " << seed << " (repeat with TANDEM_TEST_SEED)\n";
    ASSERT_OK_AND_ASSIGN(checkpoint_, model::Checkpoint::Open(testing::GoldenPath("tiny/llama")));
  }

  std::unique_ptr<Engine> NewEngine(bool on_device) {
    auto engine = NewEngineOn(GetParam(), *checkpoint_,
                              {.threads = 2, .block_tokens = 16, .sample_on_device = on_device});
    EXPECT_OK(engine.status());
    if (!engine.ok()) return nullptr;
    EXPECT_OK((*engine)->AllocateKv(64));
    return *std::move(engine);
  }

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

  Request NewRequest(const EngineSpec& spec) {
    Request r;
    r.sequence.prompt_tokens = 2 + static_cast<int64_t>(Below(30));
    for (int64_t i = 0; i < r.sequence.prompt_tokens; ++i) {
      r.sequence.tokens.push_back(static_cast<TokenId>(Below(kVocab)));
    }
    r.sequence.index = static_cast<int32_t>(Below(3));
    request::SamplingParams& p = r.sequence.sampling;
    p.seed = random_();
    p.temperature = OneIn(3) ? 0.0 : 0.2 * static_cast<double>(1 + Below(10));
    if (OneIn(2)) p.top_k = 1 + static_cast<int32_t>(Below(40));
    if (OneIn(2)) p.top_p = 0.05 * static_cast<double>(1 + Below(20));
    if (OneIn(3)) p.min_p = 0.05 * static_cast<double>(Below(20));
    if (OneIn(3)) p.repetition_penalty = 1.3;
    if (OneIn(3)) p.presence_penalty = 0.7;
    if (OneIn(3)) p.frequency_penalty = -0.3;
    if (OneIn(3)) p.logit_bias = {{3, 4.0f}, {17, -100.0f}, {90, OneIn(2) ? 0.25f : 3.0f}};
    if (OneIn(4)) p.allowed_token_ids = {5, 6, 7, 33, 64, 65, 100};
    if (OneIn(4)) p.bad_words = {{5}, {7, 33}};
    if (OneIn(2)) p.logprobs = static_cast<int32_t>(Below(OneIn(4) ? 60 : 6));
    if (OneIn(4)) AddConstraint(static_cast<size_t>(spec.vocab_size), &r);
    if (OneIn(4)) {
      r.stop.min_tokens = 4;
      r.eos = {5, 6, 7, 9};
    }
    if (OneIn(3)) r.prompt_logprobs = static_cast<int32_t>(Below(OneIn(4) ? 60 : 4));
    return r;
  }
  // A mask of many tokens, of one, or of what is banned.
  void AddConstraint(size_t vocab, Request* r) {
    r->allowed.assign(vocab / 32 + 1, 0);
    const int kind = static_cast<int>(Below(3));
    if (kind == 0) {
      for (uint32_t& word : r->allowed) word = static_cast<uint32_t>(random_());
    }
    if (kind == 1) r->allowed[1] = 1u << 9;
    if (kind == 2) {
      r->allowed[0] = 1u << 5 | 1u << 7;
      r->stop.min_tokens = 6;
      r->eos = {5, 7};
    }
    r->allowed[2] |= kind == 0 ? 1u : 0u;
    r->sequence.sampling.allowed_token_ids.clear();
  }

  // Every request's tokens and bits, and those of its prompt's scores. `plan` decides the chunks.
  std::vector<Answer> Run(Engine* engine, std::vector<Request> requests, std::mt19937_64 plan) {
    std::vector<Answer> answers(requests.size());
    std::vector<std::vector<SampledToken>> scores(requests.size());
    int32_t next_block = 0;
    for (Request& r : requests) {
      r.sequence.blocks =
          TakeBlocks(engine->spec(), next_block, r.sequence.prompt_tokens + kOutputTokens);
      next_block += static_cast<int32_t>(r.sequence.blocks.size());
    }
    while (true) {
      std::vector<size_t> chosen;
      std::vector<SequenceSlice> slices;
      for (size_t i = 0; i < requests.size(); ++i) {
        Request& r = requests[i];
        if (answers[i].tokens.size() == kOutputTokens) continue;
        const int64_t left = static_cast<int64_t>(r.sequence.tokens.size()) - r.sequence.computed;
        SequenceSlice slice =
            SliceOf(r.sequence, 1 + static_cast<int64_t>(plan() % static_cast<uint64_t>(left)));
        slice.allowed = r.allowed;
        slice.stop = &r.stop;
        slice.eos_token_ids = r.eos;
        if (r.prompt_logprobs >= 0 && r.sequence.computed < r.sequence.prompt_tokens) {
          slice.prompt_logprobs = r.prompt_logprobs;
          slice.prompt_scores = &scores[i];
        }
        chosen.push_back(i);
        slices.push_back(slice);
      }
      if (slices.empty()) break;
      auto sampled = engine->Step(slices, [](int) {});
      EXPECT_OK(sampled.status());
      if (!sampled.ok()) return {};
      size_t next = 0;
      for (size_t i = 0; i < chosen.size(); ++i) {
        DrivenSequence& sequence = requests[chosen[i]].sequence;
        sequence.computed += slices[i].num_new;
        if (!slices[i].sample) continue;
        answers[chosen[i]].Add((*sampled)[next]);
        sequence.tokens.push_back((*sampled)[next++].token);
      }
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      for (const SampledToken& score : scores[i]) answers[i].Add(score);
    }
    return answers;
  }

  std::mt19937_64 random_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
};

TEST_P(DeviceEngineSamplingTest, DeliversWhatTheHostsSamplerWould) {
  if (kernels::BestPortableBackend().isa == kernels::IsaClass::kRef) {
    GTEST_SKIP() << "needs AVX2: the reference computes in double";
  }
  const std::unique_ptr<Engine> device = NewEngine(true), host = NewEngine(false);
  for (int round = 0; round < 2; ++round) {
    std::vector<Request> requests;
    for (int i = 0; i < 6; ++i) requests.push_back(NewRequest(device->spec()));
    const std::mt19937_64 plan(random_());
    const std::vector<Answer> actual = Run(device.get(), requests, plan);
    const std::vector<Answer> expected = Run(host.get(), requests, plan);
    ASSERT_EQ(actual.size(), requests.size());
    ASSERT_EQ(expected.size(), requests.size());
    for (size_t i = 0; i < requests.size(); ++i) ExpectSame(actual[i], expected[i], "device");
  }
}

TEST_P(DeviceEngineSamplingTest, NothingToChooseConcernsOneSlice) {
  const std::unique_ptr<Engine> engine = NewEngine(true);
  DrivenSequence sequence;
  sequence.tokens = {1, 2, 3};
  sequence.prompt_tokens = 3;
  sequence.blocks = TakeBlocks(engine->spec(), 0, 4);
  DrivenSequence other = sequence;
  other.blocks = TakeBlocks(engine->spec(), 1, 4);
  std::vector<SequenceSlice> slices = {SliceOf(sequence, 3), SliceOf(other, 3)};
  const std::vector<uint32_t> nothing(static_cast<size_t>(engine->spec().vocab_size / 32 + 1), 0);
  slices[0].allowed = nothing;
  ASSERT_OK_AND_ASSIGN(const std::vector<SampledToken> sampled, engine->Step(slices, [](int) {}));
  ASSERT_EQ(sampled.size(), 2u);
  EXPECT_TRUE(sampled[0].no_choice);
  EXPECT_FALSE(sampled[1].no_choice);
}

INSTANTIATE_TEST_SUITE_P(All, DeviceEngineSamplingTest,
                         ::testing::Values(DeviceKind::kEmulated, DeviceKind::kCuda),
                         [](const ::testing::TestParamInfo<DeviceKind>& param) {
                           return DeviceKindName(param.param);
                         });

// Counts what decode steps of `rows` rows ask of the device; `options` may penalise and ask for
// log-probabilities.
kernels::emulated::DeviceCalls CallsOfDecodeStep(const model::Checkpoint& checkpoint, int rows,
                                                 const request::SamplingParams& options,
                                                 bool mirror) {
  std::unique_ptr<kernels::Device> owned = kernels::emulated::NewEmulatedDevice(7);
  const kernels::Device& device = *owned;
  auto engine =
      NewDeviceEngine(checkpoint, {.threads = 1, .block_tokens = 16, .mirror_written_kv = mirror},
                      std::move(owned));
  EXPECT_OK(engine.status());
  EXPECT_OK((*engine)->AllocateKv(rows));
  std::vector<DrivenSequence> sequences(static_cast<size_t>(rows));
  kernels::emulated::DeviceCalls before, after;
  // The first steps load kernels and capture the graph.
  for (int step = 0; step < 4; ++step) {
    std::vector<SequenceSlice> slices;
    for (int i = 0; i < rows; ++i) {
      DrivenSequence& sequence = sequences[static_cast<size_t>(i)];
      sequence.tokens.push_back(i + step);
      sequence.prompt_tokens = 1;
      sequence.sampling = options;
      sequence.blocks = {BlockId(i)};
      slices.push_back(SliceOf(sequence, 1));
    }
    before = kernels::emulated::CallsOf(device);
    EXPECT_OK((*engine)->Step(slices, [](int) {}).status());
    after = kernels::emulated::CallsOf(device);
    for (DrivenSequence& sequence : sequences) ++sequence.computed;
  }
  return {.copies = after.copies - before.copies,
          .kernels = after.kernels - before.kernels,
          .blocks = after.blocks - before.blocks,
          .graphs = after.graphs - before.graphs,
          .events = after.events - before.events,
          .synchronises = after.synchronises - before.synchronises,
          .bytes_in = after.bytes_in - before.bytes_in,
          .bytes_out = after.bytes_out - before.bytes_out};
}

TEST(DecodeStep, AsksTheDeviceForSevenThingsWhateverItsRows) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<model::Checkpoint> checkpoint,
                       model::Checkpoint::Open(testing::GoldenPath("tiny/llama")));
  request::SamplingParams greedy;
  greedy.temperature = 0;
  request::SamplingParams all;
  all.temperature = 0.8;
  all.top_k = 10;
  all.repetition_penalty = 1.1;
  all.logit_bias = {{1, 2.0f}};
  all.logprobs = 5;
  for (const request::SamplingParams& options : {greedy, all}) {
    for (int rows : {1, 8, 24}) {
      const auto calls = CallsOfDecodeStep(*checkpoint, rows, options, false);
      EXPECT_EQ(calls.copies, 3) << "batch in, parameters in, results out";
      EXPECT_EQ(calls.graphs, 1);
      EXPECT_EQ(calls.kernels, 1) << "the sampler";
      EXPECT_EQ(calls.events, 1);
      EXPECT_EQ(calls.synchronises, 1);
      const int64_t row_bytes = 8 + 8 * options.logprobs.value_or(0);
      EXPECT_EQ(calls.bytes_out, rows * row_bytes) << "tokens and log-probabilities only";
    }
  }
}

TEST(DecodeStep, CopiesTheBiasesOfEqualListsOnce) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<model::Checkpoint> checkpoint,
                       model::Checkpoint::Open(testing::GoldenPath("tiny/llama")));
  request::SamplingParams biased;
  for (TokenId token = 0; token < checkpoint->config().vocab_size; ++token) {
    biased.logit_bias.push_back({token, 0.5f});
  }
  const int64_t list_bytes = static_cast<int64_t>(biased.logit_bias.size() * 8);
  const auto without = CallsOfDecodeStep(*checkpoint, 24, {}, false);
  const auto with = CallsOfDecodeStep(*checkpoint, 24, biased, false);
  EXPECT_EQ(with.bytes_in - without.bytes_in, list_bytes);
}

TEST(DecodeStep, OnlyMirroringGrowsWithLayers) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<model::Checkpoint> checkpoint,
                       model::Checkpoint::Open(testing::GoldenPath("tiny/llama")));
  const auto without = CallsOfDecodeStep(*checkpoint, 4, {}, false);
  const auto with = CallsOfDecodeStep(*checkpoint, 4, {}, true);
  EXPECT_GT(with.bytes_out, without.bytes_out);
  EXPECT_EQ(with.graphs, without.graphs);
  EXPECT_LE(without.total(), 7);
}

}  // namespace
}  // namespace tandem::engine
