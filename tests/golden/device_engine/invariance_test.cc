// Goal: idea 1 of the architecture on the device engine, with KV of each type: tokens and logprob
// bits of a request do not depend on the batch beside it, on chunk sizes, on block ids, on whether
// steps run as graphs, or on the engine instance that computed its KV: blocks taken from one
// engine's arena and marked arrived in another's continue the sequence to the bit.
#include <iostream>
#include <random>

#include "tests/golden/cpu_engine/answer.h"
#include "tests/golden/device_engine/device_engines.h"

namespace tandem::engine {
namespace {

constexpr int64_t kBlocks = 128;
constexpr int64_t kOutputTokens = 5;

class DeviceInvarianceTest
    : public ::testing::TestWithParam<std::tuple<const char*, DeviceKind, const char*>> {
 protected:
  void SetUp() override {
    kind_ = std::get<1>(GetParam());
    if (DeviceIsMissing(kind_)) GTEST_SKIP() << "needs a GPU: " << kernels::DescribeCuda();
    seed_ = std::random_device()();
    random_.seed(seed_);
    std::cout << "seed " << seed_ << "\n";
    const std::string path = testing::GoldenPath(std::string("tiny/") + std::get<0>(GetParam()));
    ASSERT_OK_AND_ASSIGN(checkpoint_, model::Checkpoint::Open(path));
    engine_ = NewEngine({});
    ASSERT_NE(engine_, nullptr);
    for (int i = 0; i < 3; ++i) requests_.push_back(NewRequest());
    for (const DrivenSequence& request : requests_) {
      expected_.push_back(RunAlone(engine_.get(), request, 1000));
    }
  }

  std::unique_ptr<Engine> NewEngine(DeviceEngineOptions options) {
    options.threads = 1;
    options.block_tokens = 16;
    options.kv_type = std::get<2>(GetParam());
    auto engine = NewEngineOn(kind_, *checkpoint_, options);
    EXPECT_OK(engine.status());
    if (!engine.ok()) return nullptr;
    EXPECT_OK((*engine)->AllocateKv(kBlocks));
    return *std::move(engine);
  }

  DrivenSequence NewRequest() {
    DrivenSequence request;
    const int64_t longest = std::min<int64_t>(60, engine_->spec().context_tokens - kOutputTokens);
    request.prompt_tokens = 1 + static_cast<int64_t>(random_() % longest);
    for (int64_t i = 0; i < request.prompt_tokens; ++i) {
      request.tokens.push_back(static_cast<TokenId>(random_() % 144));
    }
    request.sampling.temperature = random_() % 2 == 0 ? 0.0 : 0.9;
    request.sampling.seed = random_();
    request.sampling.logprobs = 3;
    return request;
  }

  std::vector<BlockId> RandomBlocks(const DrivenSequence& request, int32_t first) {
    std::vector<BlockId> blocks =
        TakeBlocks(engine_->spec(), first, request.prompt_tokens + kOutputTokens);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    return blocks;
  }

  Answer RunAlone(Engine* engine, DrivenSequence request, int64_t chunk) {
    request.blocks = RandomBlocks(request, static_cast<int32_t>(random_() % 100));
    return Continue(engine, &request, chunk, kOutputTokens);
  }
  Answer Continue(Engine* engine, DrivenSequence* request, int64_t chunk, int64_t outputs) {
    Answer answer;
    for (int64_t i = 0; i < outputs; ++i) {
      auto sampled = ComputeRest(engine, request, chunk);
      EXPECT_OK(sampled.status());
      if (!sampled.ok()) return answer;
      answer.Add(*sampled);
      request->tokens.push_back(sampled->token);
    }
    return answer;
  }

  // All requests at once, each step a random chunk of each.
  std::vector<Answer> RunTogether(Engine* engine) {
    std::vector<DrivenSequence> running = requests_;
    std::vector<Answer> answers(running.size());
    int32_t next_block = 0;
    for (DrivenSequence& request : running) {
      request.blocks = RandomBlocks(request, next_block);
      next_block += static_cast<int32_t>(request.blocks.size());
    }
    while (true) {
      std::vector<size_t> chosen;
      std::vector<SequenceSlice> slices;
      for (size_t i = 0; i < running.size(); ++i) {
        if (answers[i].tokens.size() == kOutputTokens) continue;
        const int64_t left = static_cast<int64_t>(running[i].tokens.size()) - running[i].computed;
        chosen.push_back(i);
        slices.push_back(SliceOf(running[i], 1 + static_cast<int64_t>(random_() % left)));
      }
      if (slices.empty()) return answers;
      auto sampled = engine->Step(slices, [](int) {});
      EXPECT_OK(sampled.status());
      if (!sampled.ok()) return answers;
      size_t next = 0;
      for (size_t i = 0; i < chosen.size(); ++i) {
        DrivenSequence& request = running[chosen[i]];
        request.computed += slices[i].num_new;
        if (!slices[i].sample) continue;
        answers[chosen[i]].Add((*sampled)[next]);
        request.tokens.push_back((*sampled)[next++].token);
      }
    }
  }

  // The answer of a fork: a sequence that shares the request's blocks before the one in which
  // `copied_end` lies, and copies the rows of that one before it, while the request generates on in
  // the same steps. It computes the rest in chunks.
  Answer RunForked(Engine* engine, DrivenSequence request, const std::vector<BlockId>& others,
                   int64_t copied_end) {
    EXPECT_OK(ComputeRest(engine, &request, 1000).status());
    DrivenSequence fork = request;
    fork.computed = copied_end;
    const int64_t block_tokens = engine->spec().layout.block_tokens;
    const int64_t full = copied_end / block_tokens;
    std::copy(others.begin() + full, others.end(), fork.blocks.begin() + full);
    bool forks = copied_end % block_tokens != 0;
    Answer answer;
    while (answer.tokens.size() < kOutputTokens) {
      std::vector<SequenceSlice> slices;
      const bool goes_on = std::ssize(request.tokens) < request.prompt_tokens + kOutputTokens;
      if (goes_on) {
        // The request writes other tokens into the block from which the fork may be copied.
        request.tokens.push_back(static_cast<TokenId>(1 + random_() % 100));
        slices.push_back(SliceOf(request, 1));
        ++request.computed;
      }
      const int64_t left = std::ssize(fork.tokens) - fork.computed;
      const int64_t rows = 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(left));
      slices.push_back(SliceOf(fork, rows));
      if (std::exchange(forks, false))
        slices.back().forked_from = request.blocks[static_cast<size_t>(full)];
      fork.computed += rows;
      const bool samples = slices.back().sample;
      const auto sampled = engine->Step(slices, [](int) {});
      EXPECT_OK(sampled.status());
      if (!sampled.ok()) return answer;
      if (!samples) continue;
      answer.Add(sampled->back());
      fork.tokens.push_back(sampled->back().token);
    }
    return answer;
  }

  DeviceKind kind_ = DeviceKind::kEmulated;
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
  std::unique_ptr<Engine> engine_;
  std::vector<DrivenSequence> requests_;
  std::vector<Answer> expected_;
};

TEST_P(DeviceInvarianceTest, BatchChunksAndGraphsDoNotMatter) {
  for (bool use_graphs : {true, false}) {
    const std::unique_ptr<Engine> engine =
        NewEngine({.mirror_written_kv = false, .use_graphs = use_graphs});
    const std::vector<Answer> together = RunTogether(engine.get());
    for (size_t i = 0; i < requests_.size(); ++i) {
      ExpectSame(together[i], expected_[i], use_graphs ? "together, graphs" : "together");
    }
    ExpectSame(RunAlone(engine.get(), requests_[0], 7), expected_[0], "chunks of 7");
  }
}

TEST_P(DeviceInvarianceTest, BlocksContinueOnAnotherEngine) {
  const std::unique_ptr<Engine> receiver = NewEngine({.mirror_written_kv = false});
  for (size_t i = 0; i < requests_.size(); ++i) {
    DrivenSequence request = requests_[i];
    request.blocks = RandomBlocks(request, 0);
    std::vector<int> layers;
    const SequenceSlice prompt = SliceOf(request, request.prompt_tokens);
    auto first =
        engine_->Step(absl::MakeConstSpan(&prompt, 1), [&](int layer) { layers.push_back(layer); });
    ASSERT_OK(first.status());
    Answer answer;
    answer.Add(first->at(0));
    ASSERT_EQ(static_cast<int>(layers.size()), engine_->spec().layout.num_layers);
    request.tokens.push_back(first->at(0).token);
    request.computed = request.prompt_tokens;
    // What a transport does: bytes from arena to arena, to other places.
    DrivenSequence moved = request;
    moved.blocks = RandomBlocks(request, 40);
    for (int64_t b = 0; b < engine_->spec().layout.BlocksFor(request.prompt_tokens); ++b) {
      for (int layer = 0; layer < engine_->spec().layout.num_layers; ++layer) {
        const auto from = engine_->arena().Block(layer, request.blocks[static_cast<size_t>(b)]);
        std::copy(from.begin(), from.end(),
                  receiver->arena().Block(layer, moved.blocks[static_cast<size_t>(b)]).begin());
      }
      receiver->arena().MarkArrived(moved.blocks[static_cast<size_t>(b)]);
    }
    const Answer rest = Continue(receiver.get(), &moved, 1, kOutputTokens - 1);
    answer.tokens.insert(answer.tokens.end(), rest.tokens.begin(), rest.tokens.end());
    answer.logprobs.insert(answer.logprobs.end(), rest.logprobs.begin(), rest.logprobs.end());
    ExpectSame(answer, expected_[i], "moved");
  }
}

TEST_P(DeviceInvarianceTest, AForksAnswerIsThatOfASequenceComputedAlone) {
  for (bool use_graphs : {true, false}) {
    const std::unique_ptr<Engine> engine =
        NewEngine({.mirror_written_kv = true, .use_graphs = use_graphs});
    for (size_t i = 0; i < requests_.size(); ++i) {
      DrivenSequence request = requests_[i];
      request.blocks = RandomBlocks(request, 0);
      const int64_t last = request.prompt_tokens - 1;
      for (const int64_t end : {last, static_cast<int64_t>(random_()) & last, last / 2}) {
        ExpectSame(RunForked(engine.get(), request, RandomBlocks(request, 64), end), expected_[i],
                   (use_graphs ? "forked, graphs, at " : "forked at ") + std::to_string(end));
      }
    }
  }
}

TEST_P(DeviceInvarianceTest, AForkCopiesABlockThatHasJustArrived) {
  const std::unique_ptr<Engine> receiver = NewEngine({.mirror_written_kv = false});
  DrivenSequence request = requests_[0];
  request.blocks = RandomBlocks(request, 0);
  ASSERT_OK(ComputeRest(engine_.get(), &request, 1000).status());
  DrivenSequence fork = request;
  fork.computed = request.prompt_tokens - 1;
  const auto last = static_cast<size_t>(fork.computed / receiver->spec().layout.block_tokens);
  if (fork.computed % receiver->spec().layout.block_tokens == 0) return;  // nothing to copy
  for (size_t b = 0; b <= last; ++b) {
    for (int layer = 0; layer < receiver->spec().layout.num_layers; ++layer) {
      const auto from = engine_->arena().Block(layer, request.blocks[b]);
      std::copy(from.begin(), from.end(),
                receiver->arena().Block(layer, request.blocks[b]).begin());
    }
    receiver->arena().MarkArrived(request.blocks[b]);
  }
  const BlockId source = fork.blocks[last];
  fork.blocks[last] = BlockId(100);
  receiver->arena().MarkArrived(fork.blocks[last]);  // of a lease that ended unused
  SequenceSlice slice = SliceOf(fork, 1);
  slice.forked_from = source;
  const auto sampled = receiver->Step(absl::MakeConstSpan(&slice, 1), [](int) {});
  ASSERT_OK(sampled.status());
  EXPECT_EQ(sampled->at(0).token, expected_[0].tokens[0]);
  EXPECT_EQ(sampled->at(0).logprob, expected_[0].logprobs[0]);
}

TEST_P(DeviceInvarianceTest, PromptScoresDoNotDependOnChunks) {
  DrivenSequence request = NewRequest();
  while (request.prompt_tokens < 40) request = NewRequest();
  std::vector<float> expected;
  for (int64_t chunk : {1000, 9}) {
    DrivenSequence run = request;
    run.blocks = RandomBlocks(request, 3);
    std::vector<SampledToken> scores;
    while (run.computed < run.prompt_tokens) {
      SequenceSlice slice = SliceOf(run, std::min(chunk, run.prompt_tokens - run.computed));
      slice.prompt_scores = &scores;
      slice.prompt_logprobs = 2;
      ASSERT_OK(engine_->Step(absl::MakeConstSpan(&slice, 1), [](int) {}).status());
      run.computed += slice.num_new;
    }
    ASSERT_EQ(static_cast<int64_t>(scores.size()), request.prompt_tokens - 1);
    std::vector<float> logprobs;
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_EQ(scores[i].token, request.tokens[i + 1]);
      EXPECT_LE(scores[i].logprob, 0.0f);
      logprobs.push_back(scores[i].logprob);
      for (const TopLogprob& top : scores[i].top_logprobs) logprobs.push_back(top.logprob);
    }
    if (expected.empty()) expected = logprobs;
    ASSERT_EQ(logprobs.size(), expected.size());
    EXPECT_EQ(std::memcmp(logprobs.data(), expected.data(), expected.size() * sizeof(float)), 0)
        << "chunks of " << chunk;
  }
}

TEST_P(DeviceInvarianceTest, ProfilingAndBadOptionsAreAnswered) {
  DeviceEngineOptions options = {.threads = 1, .block_tokens = 16};
  options.kv_type = std::get<2>(GetParam());
  auto engine = NewEngineOn(kind_, *checkpoint_, options);
  ASSERT_OK(engine.status());
  EXPECT_THAT((*engine)->spec().numerics_id,
              ::testing::HasSubstr("-kv" + options.kv_type + "-b16"));
  ASSERT_OK_AND_ASSIGN(const int64_t bytes, (*engine)->ProfileStepBytes(40));
  EXPECT_GT(bytes, 0);
  ASSERT_OK_AND_ASSIGN(const auto kv_bytes, (*engine)->DeviceKvBytes());
  EXPECT_TRUE(kv_bytes.has_value());
  ASSERT_OK((*engine)->AllocateKv(kBlocks));
  ExpectSame(RunAlone(engine->get(), requests_[1], 30), expected_[1], "after profiling");
  for (const DeviceEngineOptions& bad :
       {DeviceEngineOptions{.block_tokens = 8}, DeviceEngineOptions{.memory_fraction = 0},
        DeviceEngineOptions{.context_tokens = -1},
        DeviceEngineOptions{.context_tokens = checkpoint_->config().context_tokens + 1},
        DeviceEngineOptions{.kv_type = "f32"}}) {
    EXPECT_EQ(NewEngineOn(kind_, *checkpoint_, bad).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// Two nodes share a GPU and start together: what one loads is no part of the other's share.
TEST(DeviceKvBytes, CountOwnMemoryAndNotThatOfOthers) {
  ASSERT_OK_AND_ASSIGN(const auto checkpoint,
                       model::Checkpoint::Open(testing::GoldenPath("tiny/llama")));
  auto device = kernels::emulated::NewEmulatedDevice(1);
  kernels::Device& same = *device;
  DeviceEngineOptions options;
  options.memory_fraction = 0.25;
  const int64_t share = same.properties().memory_bytes / 4;
  ASSERT_OK_AND_ASSIGN(const auto engine, NewDeviceEngine(*checkpoint, options, std::move(device)));
  EXPECT_GT(same.allocated_bytes(), 0);
  const int64_t left = share - same.allocated_bytes();
  ASSERT_OK_AND_ASSIGN(const auto alone, engine->DeviceKvBytes());
  EXPECT_EQ(alone, left);
  kernels::emulated::SetBytesOfOthers(same, 2 * share);
  ASSERT_OK_AND_ASSIGN(const auto beside, engine->DeviceKvBytes());
  EXPECT_EQ(beside, left);
  // What is free is less than the share, and some of it is for what comes after the KV.
  const int64_t free_bytes = share / 2;
  kernels::emulated::SetBytesOfOthers(same, 4 * share - same.allocated_bytes() - free_bytes);
  ASSERT_OK_AND_ASSIGN(const auto tight, engine->DeviceKvBytes());
  EXPECT_GT(*tight, free_bytes / 2);
  EXPECT_LT(*tight, free_bytes - (int64_t{16} << 20));
  kernels::emulated::SetBytesOfOthers(same, 4 * share - same.allocated_bytes() - 1000);
  ASSERT_OK_AND_ASSIGN(const auto full, engine->DeviceKvBytes());
  EXPECT_EQ(full, 0);
}

std::string InvarianceName(const ::testing::TestParamInfo<DeviceInvarianceTest::ParamType>& param) {
  return std::string(std::get<0>(param.param)) + "_" + DeviceKindName(std::get<1>(param.param)) +
         "_" + std::get<2>(param.param);
}
INSTANTIATE_TEST_SUITE_P(All, DeviceInvarianceTest,
                         ::testing::Combine(::testing::Values("llama", "mistral"),
                                            ::testing::Values(DeviceKind::kEmulated,
                                                              DeviceKind::kCuda),
                                            ::testing::Values("bf16")),
                         InvarianceName);
INSTANTIATE_TEST_SUITE_P(Codes, DeviceInvarianceTest,
                         ::testing::Values(std::tuple("llama", DeviceKind::kEmulated, "int8"),
                                           std::tuple("mistral", DeviceKind::kEmulated, "fp8"),
                                           std::tuple("llama", DeviceKind::kCuda, "int8"),
                                           std::tuple("mistral", DeviceKind::kCuda, "fp8")),
                         InvarianceName);
INSTANTIATE_TEST_SUITE_P(HopperKernels, DeviceInvarianceTest,
                         ::testing::Values(std::tuple("llama", DeviceKind::kEmulatedHopper,
                                                      "bf16")),
                         InvarianceName);

TEST(CudaEngine, SaysWhyThereIsNone) {
  if (kernels::CountCudaDevices() > 0) GTEST_SKIP() << "this host has a GPU";
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<model::Checkpoint> checkpoint,
                       model::Checkpoint::Open(testing::GoldenPath("tiny/llama")));
  const absl::Status status = NewCudaEngine(*checkpoint, {}).status();
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("CUDA"));
}

}  // namespace
}  // namespace tandem::engine
