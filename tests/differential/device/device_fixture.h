// The fixture of the device tests: the device under test (emulated on the host, or CUDA where there
// is one), seeded data, buffers that start as NaN, and bf16 conversions. Thread safety: one thread.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/api/bf16.h"
#include "kernels/api/device.h"
#include "kernels/api/device_ops.h"
#include "kernels/cuda/backend/emulated_device.h"

namespace tandem::kernels {

enum class DeviceKind { kEmulated, kEmulatedHopper, kCuda, kCudaPortable };

// Half an ulp of 1 in fp32 and in bf16: the largest relative error of one rounding.
inline constexpr double kUnit = 0x1p-24;
inline constexpr double kBf16Unit = 0x1p-8;

inline Bf16Bits RoundToBf16(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<Bf16Bits>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float FromBf16(Bf16Bits x) {
  const uint32_t bits = uint32_t{x} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

class DeviceTest : public ::testing::TestWithParam<DeviceKind> {
 protected:
  DeviceTest() {
    const char* repeat = std::getenv("TANDEM_TEST_SEED");
    seed_ = repeat != nullptr ? std::strtoull(repeat, nullptr, 10) : std::random_device{}();
    generator_.seed(seed_);
    std::printf("seed %llu (repeat with TANDEM_TEST_SEED)\n",
                static_cast<unsigned long long>(seed_));
  }

  void SetUp() override {
    if (!emulated()) {
      if (CountCudaDevices() == 0) GTEST_SKIP() << "needs a GPU: " << DescribeCuda();
      auto opened =
          OpenCudaDevice(0, GetParam() == DeviceKind::kCudaPortable ? DeviceKernels::kPortable
                                                                    : DeviceKernels::kOwn);
      ASSERT_TRUE(opened.ok()) << opened.status();
      device_ = *std::move(opened);
    } else {
      device_ = emulated::NewEmulatedDevice(seed_, GetParam() == DeviceKind::kEmulatedHopper
                                                       ? emulated::EmulatedChip::kHopper
                                                       : emulated::EmulatedChip::kAmpere);
    }
    auto stream = device_->NewStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }

  const DeviceOps& ops() const { return device_->ops(); }
  DeviceStream& stream() { return *stream_; }
  // Sizes that take about as long on a GPU as small ones do on the emulator.
  bool emulated() const {
    return GetParam() == DeviceKind::kEmulated || GetParam() == DeviceKind::kEmulatedHopper;
  }

  // Memory of the device that holds NaN.
  DeviceBuffer Poisoned(size_t bytes) {
    auto buffer = device_->Allocate(DeviceBuffer::Kind::kDevice, bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    stream_->Fill(buffer->data(), 0xff, bytes);
    return *std::move(buffer);
  }
  template <typename T>
  DeviceBuffer Upload(const std::vector<T>& values) {
    DeviceBuffer buffer = Poisoned(std::max<size_t>(values.size(), 1) * sizeof(T));
    stream_->CopyIn(buffer.data(), values.data(), values.size() * sizeof(T));
    EXPECT_TRUE(stream_->Synchronize().ok());
    return buffer;
  }
  template <typename T>
  std::vector<T> Download(const DeviceBuffer& buffer, size_t count) {
    std::vector<T> values(count);
    stream_->CopyOut(values.data(), buffer.data(), count * sizeof(T));
    const absl::Status status = stream_->Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }

  std::vector<float> Normal(size_t size, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> out(size);
    for (float& value : out) value = normal(generator_);
    return out;
  }
  std::vector<Bf16Bits> NormalBf16(size_t size, float scale = 1.0f) {
    std::vector<Bf16Bits> out;
    for (float value : Normal(size, scale)) out.push_back(RoundToBf16(value));
    return out;
  }
  int32_t Uniform(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(generator_);
  }

  uint64_t seed_ = 0;
  std::mt19937_64 generator_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
};

inline std::string DeviceName(const ::testing::TestParamInfo<DeviceKind>& info) {
  constexpr const char* kNames[] = {"Emulated", "EmulatedHopper", "Cuda", "CudaPortable"};
  return kNames[static_cast<int>(info.param)];
}
inline const auto kDeviceKinds = ::testing::Values(DeviceKind::kEmulated, DeviceKind::kCuda);
// Of suites whose operators Hopper has kernels of its own for.
inline const auto kDeviceKindsWithHopper =
    ::testing::Values(DeviceKind::kEmulated, DeviceKind::kEmulatedHopper, DeviceKind::kCuda,
                      DeviceKind::kCudaPortable);

// What y, [rows][n], holds before sums are added to it: another number at each place of a tile, so
// that one of another row or column shows.
inline float ResidualAt(int32_t row, int32_t column) {
  return 0.03125f * static_cast<float>((row * 37 + column * 11) % 251 - 125);
}
inline std::vector<float> Residuals(int32_t rows, int32_t n) {
  std::vector<float> y;
  for (int32_t row = 0; row < rows; ++row)
    for (int32_t column = 0; column < n; ++column) y.push_back(ResidualAt(row, column));
  return y;
}

// x / sqrt(mean(x²) + eps) · weight in double.
inline std::vector<double> Norm(const float* x, const float* weight, size_t size, double eps) {
  double squares = 0;
  for (size_t i = 0; i < size; ++i) squares += double{x[i]} * x[i];
  const double factor = 1 / std::sqrt(squares / static_cast<double>(size) + eps);
  std::vector<double> out;
  for (size_t i = 0; i < size; ++i) out.push_back(x[i] * factor * weight[i]);
  return out;
}

// Fails unless both hold the same bits.
template <typename T>
void ExpectSameBits(const T* actual, const T* expected, size_t size, const std::string& what) {
  for (size_t i = 0; i < size; ++i) {
    if (std::memcmp(actual + i, expected + i, sizeof(T)) == 0) continue;
    ADD_FAILURE() << what << ": element " << i << " is " << actual[i] << ", expected "
                  << expected[i] << " to the bit";
    return;
  }
}

}  // namespace tandem::kernels
