// Goal: the emulator catches what a GPU punishes at random: reading shared memory before it was
// written or copied, missing barriers, barriers that part of a block never reaches.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "device_fixture.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::emulated {
namespace {

struct Buffers {
  const float* in;
  float* out;
};

// Runs Kernel on one block; returns what it wrote.
template <typename Kernel>
std::vector<float> RunOnce(const std::vector<float>& in, size_t size, uint64_t seed) {
  std::unique_ptr<Device> device = NewEmulatedDevice(seed);
  std::unique_ptr<DeviceStream> stream = *device->NewStream();
  std::vector<float> out(size);
  Launch<Kernel>({.threads = Kernel::kThreads, .shared_bytes = 4096}, {in.data(), out.data()},
                 *stream);
  return out;
}

// Reverses 64 values through shared memory, with or without the barrier that needs.
template <bool kWithBarrier>
struct ReverseKernel {
  using Params = Buffers;
  static constexpr int kThreads = 64;
  static void Run(const Params& p) {
    float* shared = reinterpret_cast<float*>(SharedMemory());
    shared[ThreadIndex()] = p.in[ThreadIndex()];
    if (kWithBarrier) SyncThreads();
    p.out[ThreadIndex()] = shared[63 - ThreadIndex()];
  }
};

TEST(Emulator, ShowsMissingBarriers) {
  std::vector<float> in(64);
  for (size_t i = 0; i < 64; ++i) in[i] = static_cast<float>(i);
  for (uint64_t seed = 1; seed < 20; ++seed) {
    const std::vector<float> right = RunOnce<ReverseKernel<true>>(in, 64, seed);
    for (size_t i = 0; i < 64; ++i) ASSERT_EQ(right[i], in[63 - i]);
    int unwritten = 0;
    for (float value : RunOnce<ReverseKernel<false>>(in, 64, seed)) unwritten += std::isnan(value);
    // Half the threads run before the one whose value they read.
    EXPECT_GT(unwritten, 0);
  }
}

template <bool kWithWait>
struct AsyncCopyKernel {
  using Params = Buffers;
  static constexpr int kThreads = 32;
  static void Run(const Params& p) {
    float* shared = reinterpret_cast<float*>(SharedMemory()) + ThreadIndex() * 4;
    CopyAsync16(shared, p.in + ThreadIndex() * 4, ThreadIndex() != 5);
    CommitCopies();
    if (kWithWait) WaitCopies<0>();
    p.out[ThreadIndex()] = shared[3];
    WaitCopies<0>();
  }
};

TEST(Emulator, LandsAsynchronousCopiesNoSoonerThanWaitedFor) {
  const std::vector<float> in(128, 7.0f);
  const std::vector<float> waited = RunOnce<AsyncCopyKernel<true>>(in, 32, 1);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(waited[i], i == 5 ? 0.0f : 7.0f);
  for (float value : RunOnce<AsyncCopyKernel<false>>(in, 32, 1)) EXPECT_TRUE(std::isnan(value));
}

struct DivergentBarrierKernel {
  using Params = Buffers;
  static constexpr int kThreads = 64;
  static void Run(const Params&) {
    if (ThreadIndex() < 32) SyncThreads();
  }
};

TEST(EmulatorDeathTest, EndsWhenABarrierIsNotReachedByAll) {
  EXPECT_DEATH(RunOnce<DivergentBarrierKernel>({}, 1, 1), "precondition broken: moved");
}

struct OrderKernel {
  using Params = Buffers;
  static constexpr int kThreads = 32;
  static void Run(const Params& p) { p.out[0] = static_cast<float>(ThreadIndex()); }
};

TEST(Emulator, RunsThreadsInAnOrderOfTheSeed) {
  std::set<float> last;
  for (uint64_t seed = 0; seed < 20; ++seed) last.insert(RunOnce<OrderKernel>({}, 1, seed)[0]);
  EXPECT_GT(last.size(), 3u);
  EXPECT_EQ(RunOnce<OrderKernel>({}, 1, 3), RunOnce<OrderKernel>({}, 1, 3));
}

}  // namespace
}  // namespace tandem::kernels::emulated
