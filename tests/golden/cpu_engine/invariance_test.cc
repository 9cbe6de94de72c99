// Goal: idea 1 of the architecture on the CPU engine: token ids, logprob bits and KV bytes of a
// request do not depend on the batch beside it, chunk sizes, threads, block ids, the engine
// instance its KV was computed in, or the instruction-set class; greedy and sampled, on several
// architectures.
#include <cstring>
#include <iostream>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/api/backend.h"
#include "tests/golden/cpu_engine/answer.h"
#include "tests/golden/cpu_engine/engine_driver.h"

namespace tandem::engine {
namespace {

constexpr int64_t kBlocks = 512;
constexpr int64_t kOutputTokens = 12;

// Checkpoint and instruction-set class, with "_int8" or "_int4" behind it for such weights, "kv8"
// behind that for an int8 cache too.
class InvarianceTest : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  void SetUp() override {
    seed_ = std::random_device()();
    random_.seed(seed_);
    std::cout << "seed " << seed_ << "\n";
    isa_ = std::get<1>(GetParam());
    if (const size_t at = isa_.find("_int"); at != std::string::npos) {
      weights_ = isa_.substr(at + 1, 4);
      if (absl::EndsWith(isa_, "kv8")) kv_type_ = "int8";
      isa_.resize(at);
    }
    kernels::IsaClass isa = kernels::IsaClass::kRef;
    ASSERT_TRUE(kernels::ParseIsaClass(isa_.c_str(), &isa));
    backend_ = kernels::FindBackend(isa);
    if (backend_ == nullptr) GTEST_SKIP() << kernels::WhyMissing(isa);
    ASSERT_OK_AND_ASSIGN(checkpoint_, model::Checkpoint::Open(testing::GoldenPath(
                                          std::string("tiny/") + std::get<0>(GetParam()))));
    engine_ = NewEngine({.threads = 1});
    for (int i = 0; i < 10; ++i) requests_.push_back(NewRequest());
    for (const DrivenSequence& request : requests_) {
      expected_.push_back(RunAlone(engine_.get(), request, 1000));
    }
  }

  // Of the parameter's class unless `options` name one.
  std::unique_ptr<Engine> NewEngine(CpuEngineOptions options) {
    if (options.isa == "auto") options.isa = isa_;
    options.weights = weights_;
    options.kv_type = kv_type_;
    auto engine = NewCpuEngine(*checkpoint_, options);
    EXPECT_OK(engine.status());
    EXPECT_OK((*engine)->AllocateKv(kBlocks));
    return *std::move(engine);
  }

  DrivenSequence NewRequest() {
    DrivenSequence request;
    const int64_t longest = std::min<int64_t>(300, engine_->spec().context_tokens - kOutputTokens);
    request.prompt_tokens = 1 + static_cast<int64_t>(random_() % longest);
    for (int64_t i = 0; i < request.prompt_tokens; ++i) {
      request.tokens.push_back(static_cast<TokenId>(random_() % 144));
    }
    request.sampling.temperature = random_() % 3 == 0 ? 0.0 : 0.9;
    request.sampling.top_p = random_() % 2 == 0 ? 1.0 : 0.9;
    request.sampling.top_k = random_() % 2 == 0 ? 0 : 20;
    request.sampling.frequency_penalty = random_() % 2 == 0 ? 0.0 : 0.4;
    request.sampling.seed = random_();
    request.sampling.logprobs = 3;
    request.index = static_cast<int32_t>(random_() % 4);
    return request;
  }

  int64_t TotalTokens(const DrivenSequence& request) const {
    return request.prompt_tokens + kOutputTokens;
  }

  Answer RunAlone(Engine* engine, DrivenSequence request, int64_t chunk) {
    request.blocks =
        TakeBlocks(engine->spec(), static_cast<int32_t>(random_() % 300), TotalTokens(request));
    Answer answer;
    for (int64_t i = 0; i < kOutputTokens; ++i) {
      auto sampled = ComputeRest(engine, &request, chunk);
      EXPECT_OK(sampled.status());
      answer.Add(*sampled);
      request.tokens.push_back(sampled->token);
    }
    return answer;
  }

  // All requests at once: every step takes a random chunk of a random subset.
  std::vector<Answer> RunTogether(Engine* engine) {
    std::vector<DrivenSequence> running = requests_;
    std::vector<Answer> answers(running.size());
    int32_t next_block = 0;
    for (DrivenSequence& request : running) {
      request.blocks = TakeBlocks(engine->spec(), next_block, TotalTokens(request));
      next_block += static_cast<int32_t>(request.blocks.size());
    }
    while (true) {
      std::vector<size_t> chosen;
      std::vector<SequenceSlice> slices;
      bool any_left = false;
      for (size_t i = 0; i < running.size(); ++i) {
        if (answers[i].tokens.size() == kOutputTokens) continue;
        any_left = true;
        if (random_() % 3 == 0) continue;
        const int64_t left = static_cast<int64_t>(running[i].tokens.size()) - running[i].computed;
        chosen.push_back(i);
        slices.push_back(
            SliceOf(running[i], std::min<int64_t>(left, 1 + static_cast<int64_t>(random_() % 90))));
      }
      if (!any_left) return answers;
      auto sampled = engine->Step(slices, [](int) {});
      EXPECT_OK(sampled.status());
      size_t next = 0;
      for (size_t s = 0; s < slices.size(); ++s) {
        running[chosen[s]].computed += slices[s].num_new;
        if (!slices[s].sample) continue;
        answers[chosen[s]].Add((*sampled)[next]);
        running[chosen[s]].tokens.push_back((*sampled)[next++].token);
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

  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
  std::string isa_;
  std::string weights_ = "auto", kv_type_ = "bf16";
  const kernels::Backend* backend_ = nullptr;
  std::unique_ptr<Engine> engine_;
  std::vector<DrivenSequence> requests_;
  std::vector<Answer> expected_;
};
INSTANTIATE_TEST_SUITE_P(
    Tiny, InvarianceTest,
    ::testing::Combine(::testing::Values("smollm2", "qwen3_yarn", "gemma3"),
                       ::testing::Values("avx2", "avx512", "avx512bf16", "avx512_int8",
                                         "avx512bf16_int8", "avx512_int8kv8", "avx512bf16_int8kv8",
                                         "avx512bf16_int4", "avx2_int4kv8", "amx", "amx_int8",
                                         "amx_int8kv8", "amx_emulated", "amx_emulated_int8kv8")),
    [](const auto& info) {
      return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
    });

TEST_P(InvarianceTest, ChunksAndBlocksDoNotChangeTheAnswer) {
  for (size_t i = 0; i < requests_.size(); ++i) {
    for (int64_t chunk : {1, 17, 64}) {
      ExpectSame(RunAlone(engine_.get(), requests_[i], chunk), expected_[i],
                 "request " + std::to_string(i) + " in chunks of " + std::to_string(chunk));
    }
  }
}

TEST_P(InvarianceTest, BatchAndThreadsDoNotChangeTheAnswer) {
  for (int threads : {1, 2, 3}) {
    const std::unique_ptr<Engine> engine = NewEngine({.threads = threads});
    const std::vector<Answer> answers = RunTogether(engine.get());
    for (size_t i = 0; i < requests_.size(); ++i) {
      ExpectSame(answers[i], expected_[i],
                 "request " + std::to_string(i) + " with " + std::to_string(threads) + " threads");
    }
  }
}

TEST_P(InvarianceTest, AForksAnswerIsThatOfASequenceComputedAlone) {
  for (int threads : {1, 2}) {
    const std::unique_ptr<Engine> engine = NewEngine({.threads = threads});
    for (size_t i = 0; i < requests_.size(); ++i) {
      DrivenSequence request = requests_[i];
      request.blocks = TakeBlocks(engine->spec(), 100, TotalTokens(request));
      const std::vector<BlockId> others = TakeBlocks(engine->spec(), 200, TotalTokens(request));
      const int64_t last = request.prompt_tokens - 1;
      for (const int64_t end : {last, static_cast<int64_t>(random_()) & last, last / 2}) {
        ExpectSame(RunForked(engine.get(), request, others, end), expected_[i],
                   "request " + std::to_string(i) + ", forked at " + std::to_string(end));
      }
    }
  }
}

TEST_P(InvarianceTest, ClassAndBlockSizeDoNotChangeTheAnswer) {
  // The portable classes agree to the bit; another numerics has none to agree with.
  const bool portable = absl::StartsWith(engine_->spec().numerics_id, kernels::kPortableNumerics);
  for (int block_tokens : {16, 64, 256}) {
    const std::unique_ptr<Engine> engine =
        NewEngine({.threads = 2, .isa = portable ? "avx2" : isa_, .block_tokens = block_tokens});
    for (size_t i = 0; i < requests_.size(); ++i) {
      ExpectSame(RunAlone(engine.get(), requests_[i], 100), expected_[i],
                 "request " + std::to_string(i) + ", blocks of " + std::to_string(block_tokens));
    }
  }
}

TEST_P(InvarianceTest, BlocksComputedElsewhereContinueAlike) {
  const std::unique_ptr<Engine> other = NewEngine({.threads = 2});
  for (size_t i = 0; i < requests_.size(); ++i) {
    DrivenSequence request = requests_[i];
    request.blocks = TakeBlocks(other->spec(), 7, TotalTokens(request));
    ASSERT_OK_AND_ASSIGN(const SampledToken first, ComputeRest(other.get(), &request, 50));
    // Hand the blocks over to other places of the first engine, byte by byte.
    const std::vector<BlockId> landing = TakeBlocks(engine_->spec(), 300, TotalTokens(request));
    for (int layer = 0; layer < engine_->spec().layout.num_layers; ++layer) {
      for (size_t b = 0; b < landing.size(); ++b) {
        const absl::Span<std::byte> from = other->arena().Block(layer, request.blocks[b]);
        const absl::Span<std::byte> to = engine_->arena().Block(layer, landing[b]);
        std::memcpy(to.data(), from.data(), from.size());
      }
    }
    request.blocks = landing;
    request.tokens.push_back(first.token);
    Answer answer;
    answer.Add(first);
    for (int64_t t = 1; t < kOutputTokens; ++t) {
      ASSERT_OK_AND_ASSIGN(const SampledToken sampled, ComputeRest(engine_.get(), &request, 50));
      answer.Add(sampled);
      request.tokens.push_back(sampled.token);
    }
    ExpectSame(answer, expected_[i], "request " + std::to_string(i));
  }
}

TEST_P(InvarianceTest, LayersAreReportedInOrderOnceWritten) {
  DrivenSequence request = requests_[0];
  request.blocks = TakeBlocks(engine_->spec(), 0, TotalTokens(request));
  const SequenceSlice slice = SliceOf(request, request.prompt_tokens);
  std::vector<int> layers;
  std::vector<std::vector<std::byte>> written;
  ASSERT_OK(engine_
                ->Step(absl::MakeConstSpan(&slice, 1),
                       [&](int layer) {
                         layers.push_back(layer);
                         const absl::Span<std::byte> block =
                             engine_->arena().Block(layer, request.blocks[0]);
                         written.emplace_back(block.begin(), block.end());
                       })
                .status());
  ASSERT_EQ(layers.size(), static_cast<size_t>(engine_->spec().layout.num_layers));
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    EXPECT_EQ(layers[layer], static_cast<int>(layer));
    const absl::Span<std::byte> block =
        engine_->arena().Block(static_cast<int>(layer), request.blocks[0]);
    EXPECT_TRUE(std::equal(block.begin(), block.end(), written[layer].begin()))
        << "layer " << layer << " changed after it was reported";
  }
}

TEST_P(InvarianceTest, RefusesBadOptionsAndSlicesByName) {
  const auto message = [&](const CpuEngineOptions& options) {
    return std::string(NewCpuEngine(*checkpoint_, options).status().message());
  };
  EXPECT_THAT(message({.threads = -1}), ::testing::HasSubstr("threads is -1"));
  EXPECT_THAT(message({.isa = "sse"}), ::testing::HasSubstr("isa is \"sse\""));
  EXPECT_THAT(message({.numerics = "fast"}), ::testing::HasSubstr("numerics is \"fast\""));
  EXPECT_THAT(message({.weights = "int2"}), ::testing::HasSubstr("weights is \"int2\""));
  EXPECT_THAT(message({.isa = "ref", .numerics = "portable"}),
              ::testing::HasSubstr("isa \"ref\" does not have"));
  EXPECT_THAT(message({.kv_type = "int3"}), ::testing::HasSubstr("kv_type is \"int3\""));
  EXPECT_THAT(message({.kv_type = "fp8"}), ::testing::HasSubstr("only --device cuda has"));
  EXPECT_THAT(message({.block_tokens = 48}), ::testing::HasSubstr("block_tokens is 48"));
  const int32_t context = checkpoint_->config().context_tokens;
  EXPECT_THAT(
      message({.context_tokens = context + 1}),
      ::testing::HasSubstr(absl::StrCat("context_tokens is ", context + 1,
                                        " (--context-tokens), expected at most ", context)));
  DrivenSequence request = requests_[0];
  request.blocks = TakeBlocks(engine_->spec(), 0, TotalTokens(request));
  request.tokens[0] = 144;
  const SequenceSlice slice = SliceOf(request, request.prompt_tokens);
  const absl::Status status = engine_->Step(absl::MakeConstSpan(&slice, 1), [](int) {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("token 144"));
}

}  // namespace
}  // namespace tandem::engine
