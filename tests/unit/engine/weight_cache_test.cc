// Goal: packed weights kept in a file are the bytes that packing gives, for every format, and are
// used by the next start and only where they fit: a file that is damaged, truncated, foreign, of
// another version, of another checkpoint or packed in another way is noticed and replaced; where
// nothing can be written a start goes on without; any number of starts at once agree on one file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "common/engine/compute_pool.h"
#include "common/engine/cpu/model_weights.h"
#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/model/gguf_builder.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;
using ::tandem::testing::ReadFileOrEmpty;

class WeightCacheTest : public ::testing::Test {
 protected:
  WeightCacheTest() {
    std::string pattern = ::testing::TempDir() + "/tandem_weights_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/weights";
    const uint64_t seed = std::random_device()();
    std::cout << "seed " << seed << "\n";
    random_.seed(seed);
    // Two chunks, the second one odd.
    payload_.resize(kWeightFileChunkBytes + 4099);
    for (std::byte& byte : payload_) byte = static_cast<std::byte>(random_());
  }
  ~WeightCacheTest() override { fs::remove_all(folder_); }

  void Write() { ASSERT_OK(WriteWeightFile(path_, "key", payload_, {}).status()); }
  absl::StatusCode OpenCode() {
    return OpenWeightFile(path_, {"key", payload_.size()}, {}).status().code();
  }
  void Overwrite(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  void ExpectPayload(const MappedWeights& mapped) {
    ASSERT_EQ(mapped.payload().size(), payload_.size());
    EXPECT_EQ(std::memcmp(mapped.payload().data(), payload_.data(), payload_.size()), 0);
  }

  std::string folder_, path_;
  std::mt19937_64 random_;
  std::vector<std::byte> payload_;
};

TEST_F(WeightCacheTest, WhatWasWrittenIsMapped) {
  ASSERT_OK_AND_ASSIGN(const auto written, WriteWeightFile(path_, "key", payload_, {}));
  ExpectPayload(*written);
  ASSERT_OK_AND_ASSIGN(const auto opened, OpenWeightFile(path_, {"key", payload_.size()}, {}));
  ExpectPayload(*opened);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(opened->payload().data()) % 4096, 0u);
  EXPECT_EQ(Files(), std::vector<std::string>{"weights"});
}

TEST_F(WeightCacheTest, EveryDamagedByteIsNoticed) {
  Write();
  const std::string good = ReadFileOrEmpty(path_);
  for (int trial = 0; trial < 60; ++trial) {
    std::string bad = good;
    // Half of them in the header.
    const size_t at = random_() % (trial % 2 == 0 ? kWeightFileHeaderBytes : good.size());
    bad[at] = static_cast<char>(bad[at] ^ (1 << random_() % 8));
    Overwrite(bad);
    const absl::StatusCode code = OpenCode();
    EXPECT_TRUE(code == absl::StatusCode::kDataLoss ||
                (code == absl::StatusCode::kFailedPrecondition && at >= 8 && at < 12))
        << "byte " << at << ": " << absl::StatusCodeToString(code);
  }
  Overwrite(good);
  EXPECT_EQ(OpenCode(), absl::StatusCode::kOk);
}

TEST_F(WeightCacheTest, OtherLengthsAreNoticed) {
  Write();
  const std::string good = ReadFileOrEmpty(path_);
  for (int trial = 0; trial < 30; ++trial) {
    Overwrite(good.substr(0, random_() % good.size()));
    EXPECT_EQ(OpenCode(), absl::StatusCode::kDataLoss);
  }
  Overwrite(good + "x");
  EXPECT_EQ(OpenCode(), absl::StatusCode::kDataLoss);
  Overwrite("");
  EXPECT_EQ(OpenCode(), absl::StatusCode::kDataLoss);
}

TEST_F(WeightCacheTest, ForeignFilesAreNoticedAndReplaced) {
  EXPECT_EQ(OpenCode(), absl::StatusCode::kNotFound);
  Overwrite(std::string(2 * kWeightFileHeaderBytes, 'x'));
  EXPECT_EQ(OpenCode(), absl::StatusCode::kDataLoss);
  ASSERT_OK(WriteWeightFile(path_, "another key", payload_, {}).status());
  EXPECT_EQ(OpenCode(), absl::StatusCode::kFailedPrecondition);
  Write();
  EXPECT_EQ(OpenCode(), absl::StatusCode::kOk);
  std::string older = ReadFileOrEmpty(path_);
  older[8] = 0;
  Overwrite(older);
  EXPECT_EQ(OpenCode(), absl::StatusCode::kFailedPrecondition);
  Write();
  EXPECT_EQ(OpenCode(), absl::StatusCode::kOk);
  EXPECT_EQ(Files(), std::vector<std::string>{"weights"});
}

TEST_F(WeightCacheTest, AFolderInItsPlaceIsInBackoff) {
  fs::create_directory(path_);
  EXPECT_EQ(OpenCode(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(WriteWeightFile(path_, "key", payload_, {}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(fs::is_directory(path_));
  EXPECT_EQ(Files(), std::vector<std::string>{"weights"});
}

TEST_F(WeightCacheTest, WhereNothingCanBeWrittenNothingRemains) {
  EXPECT_EQ(WriteWeightFile(folder_ + "/none/weights", "key", payload_, {}).status().code(),
            absl::StatusCode::kUnavailable);
  // A file that may not grow to its size stands for a full disk: the write stops half way.
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit small = limit;
  small.rlim_cur = payload_.size() / 2;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WriteWeightFile(path_, "key", payload_, {}).status();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(Files().empty());
}

TEST_F(WeightCacheTest, LeftoversOfKilledProcessesGo) {
  const std::string old_file = path_ + ".tmp-aaaaaa", young = path_ + ".tmp-bbbbbb";
  std::ofstream(old_file) << "x";
  std::ofstream(young) << "x";
  const timespec times[] = {{1000000000, 0}, {1000000000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, old_file.c_str(), times, 0), 0);
  Write();
  EXPECT_FALSE(fs::exists(old_file));
  EXPECT_TRUE(fs::exists(young));
}

TEST_F(WeightCacheTest, StartsAtOnceAgree) {
  for (const bool occupied : {false, true}) {
    fs::remove(path_);
    if (occupied) Overwrite("something else");
    std::vector<std::unique_ptr<MappedWeights>> mapped(6);
    std::vector<std::thread> threads;
    for (auto& mine : mapped) {
      threads.emplace_back([this, &mine] {
        auto written = WriteWeightFile(path_, "key", payload_, {});
        ASSERT_OK(written.status());
        mine = *std::move(written);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& mine : mapped) ExpectPayload(*mine);
    EXPECT_EQ(OpenCode(), absl::StatusCode::kOk);
    EXPECT_EQ(Files(), std::vector<std::string>{"weights"});
  }
}

// A committed tiny checkpoint, copied where its file may change.
class ModelCacheTest : public WeightCacheTest {
 protected:
  ModelCacheTest() : model_(folder_ + "/model.gguf"), cache_(folder_ + "/cache") {
    fs::copy(testing::GoldenPath("tiny/llama/llama.gguf"), model_);
    auto checkpoint = model::Checkpoint::Open(model_);
    EXPECT_OK(checkpoint.status());
    checkpoint_ = *std::move(checkpoint);
  }

  std::unique_ptr<ModelWeights> Load(WeightFormat format, const std::string& where,
                                     const kernels::Backend& backend = kernels::BestBackend()) {
    return std::make_unique<ModelWeights>(*checkpoint_, backend, kernels::ParallelFor(), format,
                                          WeightCacheOptions{where, ""});
  }

  int64_t CacheFiles() const {
    return std::distance(fs::directory_iterator(cache_), fs::directory_iterator());
  }

  // Every packed byte, and embeddings.
  static void ExpectSame(const ModelWeights& a, const ModelWeights& b,
                         const kernels::Backend& backend) {
    const auto same = [&](const Projection& left, const Projection& right) {
      EXPECT_EQ(std::memcmp(left.packed, right.packed, backend.packed_bytes(left.shape)), 0);
    };
    for (size_t layer = 0; layer < a.layers().size(); ++layer) {
      const LayerWeights &left = a.layers()[layer], &right = b.layers()[layer];
      same(left.qkv, right.qkv);
      same(left.o, right.o);
      same(left.gate_up, right.gate_up);
      same(left.down, right.down);
    }
    same(a.output(), b.output());
    std::vector<float> left(static_cast<size_t>(a.output().shape.k)), right(left.size());
    for (const TokenId token : {0, 3, static_cast<int>(a.output().shape.n) - 1}) {
      a.ReadEmbedding(token, absl::MakeSpan(left));
      b.ReadEmbedding(token, absl::MakeSpan(right));
      EXPECT_EQ(left, right);
    }
    EXPECT_EQ(a.TypeNames(), b.TypeNames());
  }

  static std::vector<const kernels::Backend*> Backends() {
    std::vector<const kernels::Backend*> backends;
    for (const kernels::IsaClass isa : {kernels::IsaClass::kRef, kernels::IsaClass::kAvx2,
                                        kernels::IsaClass::kAvx512, kernels::IsaClass::kAvx512Bf16,
                                        kernels::IsaClass::kAmx, kernels::IsaClass::kAmxEmulated}) {
      const kernels::Backend* backend = kernels::FindBackend(isa);
      if (backend != nullptr) backends.push_back(backend);
    }
    return backends;
  }

  // That a load writes one file, the next one maps it, and both give the bytes of packing.
  void ExpectKept(WeightFormat format, const kernels::Backend& backend) {
    const auto packed = Load(format, "off", backend);
    ASSERT_OK(packed->status());
    EXPECT_EQ(packed->mapped_bytes(), 0);
    const auto first = Load(format, cache_, backend);
    EXPECT_EQ(CacheFiles(), ++files_);
    const auto second = Load(format, cache_, backend);
    EXPECT_EQ(CacheFiles(), files_);
    EXPECT_EQ(second->mapped_bytes(), second->bytes());
    ExpectSame(*packed, *first, backend);
    ExpectSame(*packed, *second, backend);
  }

  // ggml's number of a type, and the bytes of a block of it.
  struct BlockType {
    uint32_t number;
    uint64_t weights, bytes;
  };
  static constexpr BlockType kQ40 = {2, 32, 18}, kQ4K = {12, 256, 144};
  // `weights` random ones, with small scales.
  void SetBlocks(const BlockType& type, uint64_t weights, testing::GgufBuilder::Tensor* tensor) {
    tensor->type = type.number;
    tensor->data.resize(weights / type.weights * type.bytes);
    for (char& byte : tensor->data) byte = static_cast<char>(random_());
    for (size_t block = 0; block < tensor->data.size(); block += type.bytes) {
      // The high bytes of a scale in fp16, and of Q4_K's minimum after it.
      tensor->data[block + 1] = 0x11;
      if (type.number == kQ4K.number) tensor->data[block + 3] = 0x11;
    }
  }

  const std::string model_, cache_;
  int64_t files_ = 0;
  std::unique_ptr<model::Checkpoint> checkpoint_;
};

TEST_F(ModelCacheTest, GivesTheSameBytesAsPackingForEveryFormatAndClass) {
  for (const kernels::Backend* backend : Backends()) {
    for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8,
                                      WeightFormat::kInt4, WeightFormat::kAsStored}) {
      ExpectKept(format, *backend);
    }
  }
}

// A layer whose matrices are stored as Q4_K and Q4_0, with random bits.
TEST_F(ModelCacheTest, KeepsBlocksAsTheyAreStored) {
  testing::GgufBuilder b = testing::TinyLlama();
  b.Uint32("llama.embedding_length", 256).Uint32("llama.feed_forward_length", 256);
  for (testing::GgufBuilder::Tensor& tensor : b.tensors) {
    const bool is_matrix = tensor.dimensions.size() > 1;
    tensor.dimensions = {256};
    if (is_matrix) tensor.dimensions.push_back(256);
  }
  b.Find("token_embd.weight").dimensions = {256, 6};
  b.Find("blk.0.attn_k.weight").dimensions = b.Find("blk.0.attn_v.weight").dimensions = {256, 128};
  for (testing::GgufBuilder::Tensor& tensor : b.tensors) {
    const uint64_t rows = tensor.dimensions.size() > 1 ? tensor.dimensions[1] : 1;
    tensor.data.assign(256 * rows * sizeof(float), '\0');
    if (tensor.name.find("blk.0.") != 0 || rows == 1) continue;
    const bool q4k = tensor.name.find("ffn_down") == std::string::npos;
    SetBlocks(q4k ? kQ4K : kQ40, 256 * rows, &tensor);
  }
  std::ofstream(model_, std::ios::binary) << b.Build();
  ASSERT_OK_AND_ASSIGN(checkpoint_, model::Checkpoint::Open(model_));
  for (const kernels::Backend* backend : Backends()) {
    ExpectKept(WeightFormat::kAsStored, *backend);
  }
  EXPECT_EQ(Load(WeightFormat::kAsStored, cache_)->TypeNames(), "stored-int4+int8+q4k");
}

// Each stage counts its tasks up to all of them, whichever threads run them.
TEST_F(ModelCacheTest, TellsHowFarTheLoadingIs) {
  ComputePool pool(3);
  absl::Mutex mutex;
  std::map<std::string, std::vector<int64_t>> done;  // by stage
  std::map<std::string, int64_t> all;
  const auto load = [&] {
    done.clear();
    all.clear();
    const LoadThreads threads(pool.parallel(), [&](const LoadProgress& progress) {
      const absl::MutexLock lock(&mutex);
      done[std::string(progress.stage)].push_back(progress.done);
      all[std::string(progress.stage)] = progress.all;
    });
    const ModelWeights weights(*checkpoint_, kernels::BestBackend(), threads, WeightFormat::kBf16,
                               WeightCacheOptions{cache_, ""});
    EXPECT_OK(weights.status());
  };
  load();
  EXPECT_GT(all["packing"], 10);
  for (auto& [stage, counts] : done) {
    std::sort(counts.begin(), counts.end());
    // A stage may run more than once.
    EXPECT_EQ(static_cast<int64_t>(counts.size()) % all[stage], 0) << stage;
    EXPECT_EQ(counts.front(), 1) << stage;
    EXPECT_EQ(counts.back(), all[stage]) << stage;
  }
  EXPECT_EQ(static_cast<int64_t>(done["packing"].size()), all["packing"]);
  load();
  EXPECT_EQ(done.count("packing"), 0u) << "the second start maps the file";
}

TEST_F(ModelCacheTest, ADamagedFileIsReplaced) {
  const auto packed = Load(WeightFormat::kInt8, "off");
  Load(WeightFormat::kInt8, cache_);
  const std::string path = fs::directory_iterator(cache_)->path();
  const std::string good = ReadFileOrEmpty(path);
  std::string bad = good;
  bad[good.size() / 2] = static_cast<char>(bad[good.size() / 2] + 1);
  // Under a new inode, as files of ours are written: mappings of the old one stay as they are.
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << bad;
  ExpectSame(*packed, *Load(WeightFormat::kInt8, cache_), kernels::BestBackend());
  EXPECT_EQ(ReadFileOrEmpty(path), good);
  EXPECT_EQ(CacheFiles(), 1);
}

TEST_F(ModelCacheTest, AnotherCheckpointOfTheNameReplacesTheFile) {
  Load(WeightFormat::kInt8, cache_);
  const std::string path = fs::directory_iterator(cache_)->path();
  const std::string before = ReadFileOrEmpty(path);
  const timespec times[] = {{1000000000, 0}, {1000000000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, model_.c_str(), times, 0), 0);
  ASSERT_OK_AND_ASSIGN(checkpoint_, model::Checkpoint::Open(model_));
  const auto after = Load(WeightFormat::kInt8, cache_);
  EXPECT_EQ(CacheFiles(), 1);
  EXPECT_NE(ReadFileOrEmpty(path), before);
  ExpectSame(*Load(WeightFormat::kInt8, "off"), *after, kernels::BestBackend());
}

// As a program would pack that rounds, or orders, otherwise.
void PackOtherwise(const kernels::PackRowsArgs& args) {
  kernels::BestBackend().pack_rows(args);
  if (args.first_row + args.num_rows == args.shape.n) *static_cast<char*>(args.packed) ^= 1;
}

TEST_F(ModelCacheTest, AnotherPackingReplacesTheFile) {
  Load(WeightFormat::kBf16, cache_);
  kernels::Backend other = kernels::BestBackend();
  other.pack_rows = PackOtherwise;
  const auto packed = Load(WeightFormat::kBf16, "off", other);
  ExpectSame(*packed, *Load(WeightFormat::kBf16, cache_, other), other);
  EXPECT_EQ(CacheFiles(), 1);
}

TEST_F(ModelCacheTest, WhereNothingCanBeKeptAStartGoesOn) {
  std::ofstream(cache_) << "a file where a folder should be";
  const auto weights = Load(WeightFormat::kInt8, cache_);
  EXPECT_EQ(weights->mapped_bytes(), 0);
  ExpectSame(*Load(WeightFormat::kInt8, "off"), *weights, kernels::BestBackend());
}

TEST_F(ModelCacheTest, AutomaticallyOnlyLargeOnesAreKept) {
  const auto tiny = Load(WeightFormat::kInt8, "auto");
  EXPECT_EQ(tiny->mapped_bytes(), 0);
  EXPECT_EQ(Files(), std::vector<std::string>{"model.gguf"});
}

TEST_F(ModelCacheTest, AutomaticallyBesideTheModelElseInTheUsersFolder) {
  payload_.resize(kWeightCacheAutoBytes);
  WeightCacheSubject subject;
  subject.backend = &kernels::BestBackend();
  subject.format = "int8";
  subject.bytes = payload_.size();
  subject.types = {kernels::WeightType::kInt8};
  const std::string inner = folder_ + "/models", user = folder_ + "/user/deeper";
  fs::create_directory(inner);
  fs::rename(model_, inner + "/model.gguf");
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, model::Checkpoint::Open(inner + "/model.gguf"));
  const WeightCache cache(*checkpoint, {"auto", user}, subject);
  EXPECT_EQ(cache.Find({}), nullptr);
  ASSERT_NE(cache.Keep(payload_, {}), nullptr);
  EXPECT_FALSE(fs::exists(user));
  EXPECT_NE(cache.Find({}), nullptr);
  // Nothing can be written to, or read from, a folder that is a file.
  fs::remove_all(inner);
  std::ofstream(inner) << "a file";
  EXPECT_EQ(cache.Find({}), nullptr);
  ASSERT_NE(cache.Keep(payload_, {}), nullptr);
  EXPECT_EQ(std::distance(fs::directory_iterator(user), fs::directory_iterator()), 1);
  EXPECT_NE(cache.Find({}), nullptr);
}

}  // namespace
}  // namespace tandem::engine
