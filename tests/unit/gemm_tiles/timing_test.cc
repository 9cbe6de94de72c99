// Goal: a timing runs its calls from a graph, each with its own buffers, as often as it says; it
// takes the median of the timed runs, leaves out the first, and passes on what failed.
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "absl/base/casts.h"
#include "kernels/api/bf16.h"
#include "kernels/api/device_timing.h"
#include "kernels/cuda/backend/emulated_device.h"
#include "tests/testing/status_matchers.h"

namespace tandem::kernels {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Events come in pairs around the launches of a graph. Launch i takes launch_ms[i].
class LaunchClock {
 public:
  explicit LaunchClock(std::vector<float> launch_ms) : launch_ms_(std::move(launch_ms)) {}
  float Now() {
    if (++events_ % 2 == 0) now_ms_ += launch_ms_.at(events_ / 2 - 1);
    return now_ms_;
  }
  size_t launches() const { return events_ / 2; }

 private:
  const std::vector<float> launch_ms_;
  size_t events_ = 0;
  float now_ms_ = 7;
};

TEST(TimeInGraph, TakesTheMedianOfTheRunsBehindTheFirst) {
  const auto device = emulated::NewEmulatedDevice(1);
  LaunchClock clock({900, 40, 800, 60, 20, 100});
  emulated::SetClock(*device, [&clock] { return clock.Now(); });
  ASSERT_OK_AND_ASSIGN(const auto stream, device->NewStream());
  ASSERT_OK_AND_ASSIGN(const double ms, TimeInGraph(*device, *stream, {20, 5}, [](int) {}));
  EXPECT_EQ(ms, 3.0) << "60 ms for 20 calls";
  EXPECT_EQ(clock.launches(), 6u);
}

TEST(TimeOnStream, TakesTheMedianOfTheCallsBehindTheFirst) {
  const auto device = emulated::NewEmulatedDevice(1);
  LaunchClock clock({900, 40, 800, 60, 20, 100});
  emulated::SetClock(*device, [&clock] { return clock.Now(); });
  ASSERT_OK_AND_ASSIGN(const auto stream, device->NewStream());
  std::vector<int> calls;
  ASSERT_OK_AND_ASSIGN(const double ms,
                       TimeOnStream(*device, *stream, 5, [&](int call) { calls.push_back(call); }));
  EXPECT_EQ(ms, 60.0);
  EXPECT_THAT(calls, ElementsAreArray({0, 1, 2, 3, 4, 5}));
}

TEST(TimingValues, AreAsManyOfEitherSignAndNoneIsZero) {
  constexpr size_t kCount = (1 << 20) + 3;
  const auto device = emulated::NewEmulatedDevice(1);
  ASSERT_OK_AND_ASSIGN(const auto stream, device->NewStream());
  ASSERT_OK_AND_ASSIGN(const DeviceBuffer buffer, NewTimingValues(*device, *stream, kCount, 7));
  ASSERT_EQ(buffer.bytes(), kCount * sizeof(Bf16Bits));
  size_t negative = 0;
  for (size_t i = 0; i < kCount; ++i) {
    const auto value = absl::bit_cast<float>(uint32_t{buffer.as<Bf16Bits>()[i]} << 16);
    ASSERT_TRUE(std::abs(value) >= 0.25f && std::abs(value) < 2.0f) << value << " at " << i;
    if (value < 0) ++negative;
  }
  EXPECT_NEAR(static_cast<double>(negative) / kCount, 0.5, 0.01);
}

TEST(TimeInGraph, RunsEachCallFromTheGraphWithItsOwnBuffers) {
  constexpr int kCalls = 24, kBuffers = 5;
  const auto device = emulated::NewEmulatedDevice(1);
  emulated::SetClock(*device, [] { return 0.0f; });
  ASSERT_OK_AND_ASSIGN(const auto stream, device->NewStream());
  std::vector<int> from(kBuffers), to(kCalls, -1), calls;
  std::iota(from.begin(), from.end(), 100);
  const emulated::DeviceCalls before = emulated::CallsOf(*device);
  ASSERT_OK(TimeInGraph(*device, *stream, {kCalls, 3}, [&](int call) {
              calls.push_back(call);
              stream->CopyWithin(&to[static_cast<size_t>(call)],
                                 &from[static_cast<size_t>(call) % kBuffers], sizeof(int));
            }).status());
  // Call 0 runs once alone. Every call is then captured once, and only graphs run it.
  std::vector<int> captured(kCalls);
  std::iota(captured.begin(), captured.end(), 0);
  captured.insert(captured.begin(), 0);
  EXPECT_THAT(calls, ElementsAreArray(captured));
  const emulated::DeviceCalls after = emulated::CallsOf(*device);
  EXPECT_EQ(after.copies - before.copies, 1);
  EXPECT_EQ(after.graphs - before.graphs, 4);
  EXPECT_EQ(after.events - before.events, 8);
  for (int call = 0; call < kCalls; ++call) {
    EXPECT_EQ(to[static_cast<size_t>(call)], 100 + call % kBuffers) << call;
  }
}

TEST(TimeInGraph, PassesOnThatTheDeviceHasNoClock) {
  const auto device = emulated::NewEmulatedDevice(1);
  ASSERT_OK_AND_ASSIGN(const auto stream, device->NewStream());
  EXPECT_THAT(TimeInGraph(*device, *stream, {}, [](int) {}).status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("no clock")));
}

}  // namespace
}  // namespace tandem::kernels
