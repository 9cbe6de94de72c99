// Goal: an engine computes with the tiles a search chose, and its tokens and log-probabilities are
// the bits of an engine that never searched, whatever was chosen. What was found is kept: the next
// start times nothing; another device or model times its own; a file that is damaged or another's
// is refused by name, searched for again and replaced; and nothing about it fails a start.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>

#include "kernels/api/device_gemm.h"
#include "tests/golden/cpu_engine/answer.h"
#include "tests/golden/device_engine/device_engines.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;
using ::tandem::testing::ReadFileOrEmpty;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kPromptTokens = 21;
constexpr int kOutputTokens = 4;

class GemmTilesEngine : public ::testing::TestWithParam<DeviceKind> {
 protected:
  GemmTilesEngine() {
    const uint64_t seed = std::random_device()();
    std::cout << "seed " << seed << "\n";
    random_.seed(seed);
    std::string pattern = ::testing::TempDir() + "/tandem_tiles_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    for (int64_t i = 0; i < kPromptTokens; ++i) {
      prompt_.push_back(static_cast<TokenId>(random_() % 144));
    }
  }
  ~GemmTilesEngine() override { fs::remove_all(folder_); }

  void SetUp() override { Open("llama"); }
  void Open(const std::string& name) {
    ASSERT_OK_AND_ASSIGN(checkpoint_, model::Checkpoint::Open(testing::GoldenPath("tiny/" + name)));
  }

  // A start with tiles chosen by `choice`; timed_ says how many calls were timed, log_ what was
  // logged. Times are drawn anew for each start.
  std::unique_ptr<Engine> Start(const std::string& choice, const std::string& weights = "auto") {
    DeviceEngineOptions options = {.threads = 1, .block_tokens = 16, .weights = weights};
    options.gemm_tiles.choice = choice;
    options.gemm_tiles.user_folder = folder_ + "/below/tiles";
    timed_ = 0;
    options.gemm_tiles.timer =
        [this](absl::Span<const kernels::DeviceGemmArgs>) -> absl::StatusOr<double> {
      ++timed_;
      if (timer_fails_) return absl::InternalError("the clock stands still");
      return static_cast<double>(random_() % 1000);
    };
    if (uses_events_) options.gemm_tiles.timer = nullptr;
    ::testing::internal::CaptureStderr();
    auto engine = NewEngineOn(GetParam(), *checkpoint_, options);
    log_ = ::testing::internal::GetCapturedStderr();
    EXPECT_OK(engine.status());
    if (!engine.ok()) return nullptr;
    EXPECT_OK((*engine)->AllocateKv(8));
    return *std::move(engine);
  }

  // A prompt in one piece and steps of one row, as graphs.
  Answer Run(Engine* engine) {
    DrivenSequence sequence;
    sequence.tokens = prompt_;
    sequence.prompt_tokens = kPromptTokens;
    sequence.sampling.temperature = 0;
    sequence.sampling.logprobs = 5;
    sequence.blocks = TakeBlocks(engine->spec(), 0, kPromptTokens + kOutputTokens);
    Answer answer;
    for (int i = 0; i < kOutputTokens; ++i) {
      const auto sampled = ComputeRest(engine, &sequence, kPromptTokens);
      EXPECT_OK(sampled.status());
      if (!sampled.ok()) return answer;
      answer.Add(*sampled);
      sequence.tokens.push_back(sampled->token);
    }
    return answer;
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder_ + "/below/tiles", none)) {
      names.push_back(entry.path());
    }
    return names;
  }

  std::mt19937_64 random_;
  std::string folder_, log_;
  std::vector<TokenId> prompt_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
  int timed_ = 0;
  bool timer_fails_ = false;
  bool uses_events_ = false;
};
INSTANTIATE_TEST_SUITE_P(All, GemmTilesEngine,
                         ::testing::Values(DeviceKind::kEmulated, DeviceKind::kEmulatedHopper),
                         [](const ::testing::TestParamInfo<DeviceKind>& param) {
                           return DeviceKindName(param.param);
                         });

TEST_P(GemmTilesEngine, NoChoiceChangesABit) {
  for (const char* weights : {"bf16", "int8", "int4"}) {
    const auto plain = Start("by-shape", weights);
    ASSERT_NE(plain, nullptr);
    EXPECT_EQ(timed_, 0);
    const Answer expected = Run(plain.get());
    for (int i = 0; i < 2; ++i) {
      const auto searched = Start("search", weights);
      ASSERT_NE(searched, nullptr);
      EXPECT_GT(timed_, 0);
      EXPECT_THAT(log_, HasSubstr("searched tiles of matrix products"));
      ExpectSame(Run(searched.get()), expected, weights);
      EXPECT_EQ(searched->spec().numerics_id, plain->spec().numerics_id);
    }
  }
}

TEST_P(GemmTilesEngine, WhatWasFoundIsKept) {
  ASSERT_NE(Start("auto"), nullptr);
  EXPECT_GT(timed_, 0);
  ASSERT_EQ(Files().size(), 1u);
  const std::string kept = ReadFileOrEmpty(Files()[0]);
  ASSERT_NE(Start("auto"), nullptr);
  EXPECT_EQ(timed_, 0) << "known from the start before";
  EXPECT_THAT(log_, HasSubstr("read the tiles of matrix products"));
  ASSERT_NE(Start("search"), nullptr);
  EXPECT_GT(timed_, 0);
  ASSERT_EQ(Files().size(), 1u);
  EXPECT_TRUE(ReadFileOrEmpty(Files()[0]) != kept) << "other times were drawn";
  // Other weights are other products, with a file of their own.
  ASSERT_NE(Start("auto", "int8"), nullptr);
  EXPECT_GT(timed_, 0);
  EXPECT_EQ(Files().size(), 2u);
  Open("gemma3");
  ASSERT_NE(Start("auto"), nullptr);
  EXPECT_GT(timed_, 0);
  EXPECT_EQ(Files().size(), 3u);
  // A folder that is named has files of its own.
  ASSERT_NE(Start(folder_ + "/mine"), nullptr);
  EXPECT_GT(timed_, 0);
  ASSERT_NE(Start(folder_ + "/mine"), nullptr);
  EXPECT_EQ(timed_, 0);
  EXPECT_EQ(Files().size(), 3u);
}

TEST_P(GemmTilesEngine, DamagedAndForeignFilesAreRefusedByNameAndReplaced) {
  const auto plain = Start("by-shape");
  const Answer expected = Run(plain.get());
  ASSERT_NE(Start("auto", "int8"), nullptr);
  ASSERT_EQ(Files().size(), 1u);
  const std::string foreign = ReadFileOrEmpty(Files()[0]);
  fs::remove(Files()[0]);
  ASSERT_NE(Start("auto"), nullptr);
  ASSERT_EQ(Files().size(), 1u);
  const std::string path = Files()[0], good = ReadFileOrEmpty(path);
  const auto expect_refused = [&](const std::string& bytes, const std::string& why) {
    { std::ofstream(path, std::ios::binary) << bytes; }
    const auto engine = Start("auto");
    ASSERT_NE(engine, nullptr);
    EXPECT_GT(timed_, 0) << why;
    EXPECT_THAT(log_, AllOf(HasSubstr("searching again"), HasSubstr(path), HasSubstr(why)));
    ExpectSame(Run(engine.get()), expected, why);
    ASSERT_NE(Start("auto"), nullptr);
    EXPECT_EQ(timed_, 0) << "replaced: " << why;
  };
  std::string bytes = good;
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  expect_refused(bytes, "the payload is damaged");
  bytes = good;
  bytes[40 + random_() % 40] ^= 4;
  expect_refused(bytes, "the header is damaged");
  expect_refused(good.substr(0, good.size() - 1 - random_() % 10), "bytes, expected");
  expect_refused("", "has 0 bytes");
  expect_refused(std::string(good.size(), 'x'), "not a weight file");
  expect_refused(foreign, "was written for {gemm tiles; device emulated");
  bytes = good;
  bytes[8] = 9;
  expect_refused(bytes, "has version 9");
}

// With the device's events instead of an injected timer, where there is a GPU.
class GemmTilesOnGpu : public GemmTilesEngine {};
INSTANTIATE_TEST_SUITE_P(All, GemmTilesOnGpu, ::testing::Values(DeviceKind::kCuda),
                         [](const ::testing::TestParamInfo<DeviceKind>& param) {
                           return DeviceKindName(param.param);
                         });

TEST_P(GemmTilesOnGpu, SearchesWithItsOwnClock) {
  if (DeviceIsMissing(GetParam())) GTEST_SKIP() << "needs a GPU: " << kernels::DescribeCuda();
  uses_events_ = true;
  const auto plain = Start("by-shape");
  ASSERT_NE(plain, nullptr);
  const auto searched = Start("auto");
  ASSERT_NE(searched, nullptr);
  EXPECT_THAT(log_, HasSubstr("searched tiles of matrix products"));
  std::cout << log_;
  ExpectSame(Run(searched.get()), Run(plain.get()), "timed by events");
  ASSERT_NE(Start("auto"), nullptr);
  EXPECT_THAT(log_, HasSubstr("read the tiles of matrix products"));
}

// A whole file that names a tile there is none of, as other software might have left.
TEST_P(GemmTilesEngine, TilesThatAreNotThereAreRefused) {
  ASSERT_NE(Start("auto"), nullptr);
  ASSERT_EQ(Files().size(), 1u);
  const std::string path = Files()[0], good = ReadFileOrEmpty(path);
  uint32_t key_bytes = 0;
  std::memcpy(&key_bytes, good.data() + 12, sizeof(key_bytes));
  const std::string key = good.substr(32, key_bytes);
  ASSERT_THAT(key, HasSubstr("gemm tiles"));
  std::vector<std::byte> payload(good.size() - kWeightFileHeaderBytes, std::byte{0});
  payload[random_() % payload.size()] = std::byte{9};
  fs::remove(path);
  const kernels::ParallelFor parallel;
  ASSERT_OK(WriteWeightFile(path, key, payload, parallel).status());
  ASSERT_NE(Start("auto"), nullptr);
  EXPECT_GT(timed_, 0);
  EXPECT_THAT(log_, AllOf(HasSubstr("tile 9"), HasSubstr(path)));
}

TEST_P(GemmTilesEngine, NothingFailsAStart) {
  const auto plain = Start("by-shape");
  const Answer expected = Run(plain.get());
  timer_fails_ = true;
  auto engine = Start("auto");
  ASSERT_NE(engine, nullptr);
  EXPECT_THAT(log_,
              AllOf(HasSubstr("kernels choose by shape"), HasSubstr("the clock stands still")));
  EXPECT_TRUE(Files().empty()) << "what was not found is not kept";
  ExpectSame(Run(engine.get()), expected, "a search that failed");
  timer_fails_ = false;
  // A folder that cannot be made: a file is in its way.
  { std::ofstream(folder_ + "/below") << "here"; }
  engine = Start("auto");
  ASSERT_NE(engine, nullptr);
  EXPECT_GT(timed_, 0);
  EXPECT_THAT(log_, HasSubstr("cannot write the tiles"));
  ExpectSame(Run(engine.get()), expected, "nowhere to keep it");
}

}  // namespace
}  // namespace tandem::engine
