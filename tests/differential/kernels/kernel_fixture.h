// The fixture of the kernel tests: seeded data, poisoned buffers, a thread pool, and a parameter
// for the instruction-set class. Thread safety: one thread.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/api/backend.h"

namespace tandem::kernels {

// Half an ulp of 1: the largest relative error of one fp32 rounding.
inline constexpr double kUnit = 0x1p-24;
// The same for bf16, of eight significant bits.
inline constexpr double kBf16Unit = 0x1p-8;

// `size` floats on a 64-byte boundary, all bits set until written: NaN as fp32 and as two bf16.
class Floats {
 public:
  explicit Floats(size_t size)
      : size_(size),
        data_(static_cast<float*>(std::aligned_alloc(64, (size * 4 + 63) / 64 * 64 + 64))) {
    std::memset(data_.get(), 0xff, size * sizeof(float));
  }
  float* data() { return data_.get(); }
  const float* data() const { return data_.get(); }
  size_t size() const { return size_; }
  float& operator[](size_t i) { return data_.get()[i]; }
  float operator[](size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  size_t size_;
  std::unique_ptr<float, Free> data_;
};

// Random data with a printed seed: a new one each run unless TANDEM_TEST_SEED repeats one.
class KernelTest : public ::testing::Test {
 protected:
  KernelTest() {
    const char* repeat = std::getenv("TANDEM_TEST_SEED");
    seed_ = repeat != nullptr ? std::strtoull(repeat, nullptr, 10) : std::random_device{}();
    generator_.seed(seed_);
    std::printf("seed %llu (repeat with TANDEM_TEST_SEED)\n",
                static_cast<unsigned long long>(seed_));
  }

  Floats Normal(size_t size, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    Floats out(size);
    for (size_t i = 0; i < size; ++i) out[i] = normal(generator_);
    return out;
  }
  int64_t Uniform(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(generator_);
  }

  uint64_t seed_ = 0;
  std::mt19937_64 generator_;
};

// A test run once for each instruction-set class of the cpu backend; skips where it is missing.
class ClassTest : public KernelTest, public ::testing::WithParamInterface<IsaClass> {
 protected:
  void SetUp() override {
    backend_ = FindBackend(GetParam());
    if (backend_ == nullptr) GTEST_SKIP() << WhyMissing(GetParam());
  }

  const Backend& ref_ = *FindBackend(IsaClass::kRef);
  const Backend* backend_ = nullptr;
};

inline std::string ClassName(const ::testing::TestParamInfo<IsaClass>& info) {
  if (info.param == IsaClass::kRef) return "Ref";
  if (info.param == IsaClass::kAmx) return "Amx";
  if (info.param == IsaClass::kAmxEmulated) return "AmxEmulated";
  if (info.param == IsaClass::kAvx512Bf16) return "Avx512Bf16";
  return info.param == IsaClass::kAvx512 ? "Avx512" : "Avx2";
}
inline const auto kCpuClasses =
    ::testing::Values(IsaClass::kAvx2, IsaClass::kAvx512, IsaClass::kAvx512Bf16, IsaClass::kAmx,
                      IsaClass::kAmxEmulated);

// A value rounded to bf16, to nearest even, and widened again.
inline float RoundedToBf16(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
  std::memcpy(&x, &bits, sizeof(bits));
  return x;
}

// Threads of its own for one call; tasks are given out in an order that differs from run to run.
class Threads {
 public:
  explicit Threads(int count) : count_(count) {}

  ParallelFor parallel() { return {&Threads::Run, this, count_}; }

 private:
  static void Run(void* self, int64_t num_tasks, ParallelFor::Body body, const void* context) {
    const int count = static_cast<Threads*>(self)->count_;
    std::atomic<int64_t> next{0};
    auto work = [&](int worker) {
      for (int64_t task = next++; task < num_tasks; task = next++) body(context, task, worker);
    };
    std::vector<std::thread> threads;
    for (int worker = 1; worker < count; ++worker) threads.emplace_back(work, worker);
    work(0);
    for (std::thread& thread : threads) thread.join();
  }

  int count_;
};

// Fails unless both hold the same bits.
inline void ExpectSameBits(const float* actual, const float* expected, size_t size,
                           const std::string& what) {
  if (std::memcmp(actual, expected, size * sizeof(float)) == 0) return;
  for (size_t i = 0; i < size; ++i) {
    if (std::memcmp(actual + i, expected + i, sizeof(float)) == 0) continue;
    ADD_FAILURE() << what << ": element " << i << " is " << actual[i] << ", expected "
                  << expected[i] << " to the bit";
    return;
  }
}
inline void ExpectSameBits(const Floats& actual, const Floats& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  ExpectSameBits(actual.data(), expected.data(), actual.size(), what);
}

}  // namespace tandem::kernels
