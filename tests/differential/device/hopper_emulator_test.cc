// Goal: the emulation of Hopper's barriers, bulk copies and warpgroup products computes what they
// compute, and catches what a GPU punishes at random: operands read too early or overwritten too
// early, accumulators read before the wait, stores that were not shown to the tensor cores, wrong
// descriptors, barriers that no thread completes.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "device_fixture.h"
#include "kernels/api/bf16.h"
#include "kernels/api/device_matrix.h"
#include "kernels/cuda/emulator/product_queue.h"
#include "kernels/cuda/simt/hopper.h"
#include "kernels/cuda/simt/launch.h"
#include "kernels/cuda/simt/swizzle.h"

namespace tandem::kernels::emulated {
namespace {

// Streams may hold a kernel back until a thread waits for them.
template <typename Kernel>
void RunNow(const LaunchShape& shape, const typename Kernel::Params& params, DeviceStream& stream) {
  Launch<Kernel>(shape, params, stream);
  EXPECT_TRUE(stream.Synchronize().ok());
}

enum class Mistake {
  kNone,
  kNoWaitForCopy,
  kReleaseBeforeProductEnds,
  kReadBeforeWait,
  kNoProxyFence,
  kNoProductFence,
  kNoBarrierFence,
  kWrongStep,
  kWrongSwizzle,
  kWrongParity,
  kTooManyBytesExpected,
  kCopyOutlivesBlock,
};

constexpr int kRows = 16, kTiles = 3;
constexpr int kRowBytes = kTiles * kPanelRowBytes;

// out[64][kRows] = a[64][·] · b[kRows][·]ᵀ by one warpgroup, bf16 or e4m3, while one thread of
// another copies b panel after panel into one stage; a is stored by ordinary stores.
template <Mistake kMistake, bool kFp8>
struct ProductKernel {
  struct Params {
    const char* a;
    PanelMap b;
    float* out;
  };
  static constexpr int kThreads = 256;
  static constexpr int kPanelsOfA = kTiles * 64 * kPanelRowBytes;
  static constexpr size_t kSharedBytes = kPanelsOfA + kRows * kPanelRowBytes + 16 + kPanelAlignment;
  static constexpr bool Has(Mistake mistake) { return kMistake == mistake; }

  static char* PanelOfB() { return PanelMemory() + kPanelsOfA; }
  static Barrier* Full() { return reinterpret_cast<Barrier*>(PanelOfB() + PanelBytes(kRows)); }
  static Barrier* Empty() { return Full() + 1; }

  static void StoreA(const Params& p) {
    for (int i = ThreadIndex(); i < 64 * kRowBytes / 16; i += kThreads) {
      const int row = i / (kRowBytes / 16), chunk = i % (kRowBytes / 16);
      char* panel = PanelMemory() + chunk / 8 * PanelBytes(64);
      std::memcpy(panel + SwizzledOffset<8>(row, chunk % 8), p.a + i * 16, 16);
    }
  }
  static void CopyB(const Params& p) {
    const int extra = Has(Mistake::kCopyOutlivesBlock) ? 1 : 0;
    for (int i = 0; i < kTiles + extra; ++i) {
      WaitPhase(Empty(), i % 2 ^ 1);
      ArriveExpecting(Full(), PanelBytes(kRows) + (Has(Mistake::kTooManyBytesExpected) ? 16 : 0));
      CopyPanel(PanelOfB(), p.b, 0, i * kPanelRowBytes / (kFp8 ? 1 : 2), Full());
    }
  }
  static uint64_t Descriptor(const char* panel, int step) {
    uint64_t descriptor = PanelDescriptor(panel, step);
    if (Has(Mistake::kWrongStep) && step == 1) descriptor += 1;
    if (Has(Mistake::kWrongSwizzle)) descriptor &= ~(uint64_t{3} << 62);
    return descriptor;
  }
  static void Multiply(const Params& p) {
    float acc[kRows / 2];
    for (int i = 0; i < kTiles; ++i) {
      const int parity = i % 2 ^ (Has(Mistake::kWrongParity) ? 1 : 0);
      if (!Has(Mistake::kNoWaitForCopy)) WaitPhase(Full(), parity);
      if (!Has(Mistake::kNoProductFence)) FenceProducts(acc);
      for (int step = 0; step < 4; ++step) {
        const uint64_t a = Descriptor(PanelMemory() + i * PanelBytes(64), step);
        const uint64_t b = Descriptor(PanelOfB(), step);
        if (kFp8) {
          StartFp8Product(acc, a, b, i + step > 0);
        } else {
          StartProduct(acc, a, b, i + step > 0);
        }
      }
      CommitProducts();
      if (Has(Mistake::kReleaseBeforeProductEnds)) {
        Arrive(Empty());
        // Time for others to notice: warps are held back at random.
        for (int turn = 0; turn < 20; ++turn) WarpBarrier();
      }
      if (Has(Mistake::kReadBeforeWait) && i == kTiles - 1) Write(p, acc);
      WaitProducts<0>(acc);
      if (!Has(Mistake::kReleaseBeforeProductEnds)) Arrive(Empty());
    }
    if (!Has(Mistake::kReadBeforeWait)) Write(p, acc);
  }
  static void Write(const Params& p, const float (&acc)[kRows / 2]) {
    for (int i = 0; i < kRows / 2; ++i) {
      const int row = WarpIndex() * 16 + LaneIndex() / 4 + i / 2 % 2 * 8;
      p.out[row * kRows + i / 4 * 8 + LaneIndex() % 4 * 2 + i % 2] = acc[i];
    }
  }
  static void Run(const Params& p) {
    if (ThreadIndex() == 0) {
      InitBarrier(Full(), 1);
      InitBarrier(Empty(), kWarpgroupSize);
      if (!Has(Mistake::kNoBarrierFence)) FenceBarrierInit();
    }
    StoreA(p);
    if (!Has(Mistake::kNoProxyFence)) FenceProxyAsync();
    SyncThreads();
    if (WarpgroupIndex() == 0) {
      Multiply(p);
    } else if (WarpIndex() == kWarpgroupWarps && ElectOne()) {
      CopyB(p);
    }
  }
};

class HopperEmulatorTest : public DeviceTest {
 protected:
  // Rows of a matrix as stored, and its numbers.
  struct Operand {
    std::vector<char> bytes;
    std::vector<double> values;
  };
  template <bool kFp8>
  Operand Draw(int rows) {
    Operand operand;
    operand.bytes.resize(static_cast<size_t>(rows * kRowBytes));
    if (kFp8) {
      // Integers whose sums are exact in a tensor core.
      for (char& byte : operand.bytes) {
        const auto value = static_cast<float>(Uniform(-2, 2));
        byte = static_cast<char>(FloatToE4m3(value));
        operand.values.push_back(value);
      }
      return operand;
    }
    const std::vector<Bf16Bits> bits = NormalBf16(operand.bytes.size() / 2);
    std::memcpy(operand.bytes.data(), bits.data(), operand.bytes.size());
    for (const Bf16Bits value : bits) operand.values.push_back(FromBf16(value));
    return operand;
  }

  // How many of the results are wrong, NaN among them.
  template <Mistake kMistake, bool kFp8 = false>
  int CountWrong(uint64_t seed) {
    using Kernel = ProductKernel<kMistake, kFp8>;
    constexpr int kColumns = kFp8 ? kRowBytes : kRowBytes / 2;
    const Operand a = Draw<kFp8>(64), b = Draw<kFp8>(kRows);
    const std::unique_ptr<Device> device = NewEmulatedDevice(seed, EmulatedChip::kHopper);
    const std::unique_ptr<DeviceStream> stream = *device->NewStream();
    const PanelMap map =
        DescribePanels({b.bytes.data(), kRows, kColumns, kRows, kFp8 ? 1 : 2}, *stream);
    std::vector<float> out(64 * kRows);
    RunNow<Kernel>({.threads = Kernel::kThreads, .shared_bytes = Kernel::kSharedBytes},
                   {a.bytes.data(), map, out.data()}, *stream);
    int wrong = 0;
    for (int m = 0; m < 64; ++m) {
      for (int n = 0; n < kRows; ++n) {
        double sum = 0;
        for (int k = 0; k < kColumns; ++k) {
          sum += a.values[static_cast<size_t>(m * kColumns + k)] *
                 b.values[static_cast<size_t>(n * kColumns + k)];
        }
        const float got = out[static_cast<size_t>(m * kRows + n)];
        if (!(std::abs(got - sum) < 1e-3)) ++wrong;
      }
    }
    return wrong;
  }
};
INSTANTIATE_TEST_SUITE_P(All, HopperEmulatorTest, ::testing::Values(DeviceKind::kEmulatedHopper),
                         DeviceName);

TEST_P(HopperEmulatorTest, MultipliesPanels) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(CountWrong<Mistake::kNone>(seed_ + i), 0);
    EXPECT_EQ((CountWrong<Mistake::kNone, true>(seed_ + i)), 0) << "of e4m3";
  }
}

TEST_P(HopperEmulatorTest, ShowsOperandsOverwrittenTooEarly) {
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_GT(CountWrong<Mistake::kReleaseBeforeProductEnds>(seed_ + i), 0);
    EXPECT_GT((CountWrong<Mistake::kReleaseBeforeProductEnds, true>(seed_ + i)), 0) << "of e4m3";
  }
}

TEST_P(HopperEmulatorTest, ShowsAccumulatorsReadBeforeTheWait) {
  EXPECT_EQ(CountWrong<Mistake::kReadBeforeWait>(seed_), 64 * kRows);
  EXPECT_EQ((CountWrong<Mistake::kReadBeforeWait, true>(seed_)), 64 * kRows);
}

TEST_P(HopperEmulatorTest, ShowsStoresThatTensorCoresWereNotShown) {
  EXPECT_EQ(CountWrong<Mistake::kNoProxyFence>(seed_), 64 * kRows);
  EXPECT_EQ((CountWrong<Mistake::kNoProxyFence, true>(seed_)), 64 * kRows);
}

TEST_P(HopperEmulatorTest, ShowsWrongDescriptors) {
  EXPECT_GT(CountWrong<Mistake::kWrongStep>(seed_), 32 * kRows);
  EXPECT_GT(CountWrong<Mistake::kWrongSwizzle>(seed_), 32 * kRows);
  EXPECT_GT((CountWrong<Mistake::kWrongStep, true>(seed_)), 32 * kRows);
  EXPECT_GT((CountWrong<Mistake::kWrongSwizzle, true>(seed_)), 32 * kRows);
}

using HopperEmulatorDeathTest = HopperEmulatorTest;
INSTANTIATE_TEST_SUITE_P(All, HopperEmulatorDeathTest,
                         ::testing::Values(DeviceKind::kEmulatedHopper), DeviceName);

TEST_P(HopperEmulatorDeathTest, EndsWhereAGpuWouldHangOrBreak) {
  EXPECT_DEATH(CountWrong<Mistake::kTooManyBytesExpected>(seed_), "precondition broken: moved");
  // A thread that does not wait for the copy, or waits for the other parity, which passes at once,
  // runs ahead of the phases: depending on the order of threads a copy begins in a phase that still
  // waits for the last one, or a phase never ends.
  EXPECT_DEATH(CountWrong<Mistake::kNoWaitForCopy>(seed_), "precondition broken");
  EXPECT_DEATH(CountWrong<Mistake::kWrongParity>(seed_), "precondition broken");
  EXPECT_DEATH(CountWrong<Mistake::kNoProductFence>(seed_), "precondition broken: fenced_");
  EXPECT_DEATH((CountWrong<Mistake::kNoProductFence, true>(seed_)), "precondition broken: fenced_");
  EXPECT_DEATH(CountWrong<Mistake::kNoBarrierFence>(seed_), "unfenced_barriers");
  EXPECT_DEATH(CountWrong<Mistake::kCopyOutlivesBlock>(seed_), "landings_.empty");
}

// Copies the panel at (row, column) of a small matrix and shows shared memory as it then is.
struct CopyKernel {
  struct Params {
    PanelMap map;
    int row, column;
    Bf16Bits* out;  // [8][64], chunks put back in order
  };
  static constexpr int kThreads = 32;
  static void Run(const Params& p) {
    char* panel = PanelMemory();
    Barrier* barrier = reinterpret_cast<Barrier*>(panel + PanelBytes(8));
    if (ThreadIndex() == 0) {
      InitBarrier(barrier, 1);
      FenceBarrierInit();
      ArriveExpecting(barrier, PanelBytes(8));
      CopyPanel(panel, p.map, p.row, p.column, barrier);
    }
    SyncThreads();
    WaitPhase(barrier, 0);
    for (int i = ThreadIndex(); i < 64; i += kThreads) {
      std::memcpy(p.out + i * 8, panel + SwizzledOffset<8>(i / 8, i % 8), 16);
    }
  }
};

TEST_P(HopperEmulatorTest, FillsWithZerosBeyondTheMatrix) {
  const int rows = Uniform(1, 20), columns = 8 * Uniform(1, 20);
  const std::vector<Bf16Bits> matrix(static_cast<size_t>(rows * columns), 0x3f80);
  const PanelMap map = DescribePanels({matrix.data(), rows, columns, 8}, stream());
  const int row = 8 * Uniform(0, 2), column = 64 * Uniform(0, 2);
  std::vector<Bf16Bits> out(8 * 64);
  RunNow<CopyKernel>({.threads = 32, .shared_bytes = 2048 + kPanelAlignment},
                     {map, row, column, out.data()}, stream());
  for (int i = 0; i < 8 * 64; ++i) {
    const bool inside = row + i / 64 < rows && column + i % 64 < columns;
    ASSERT_EQ(out[static_cast<size_t>(i)], inside ? 0x3f80 : 0) << i << " of " << rows;
  }
}

// Copies eight numbers of a matrix to `shift` bytes behind a multiple of 128.
struct RunKernel {
  struct Params {
    RunMap map;
    int row, column, shift;
    float* out;  // [8]
  };
  static constexpr int kThreads = 32;
  static void Run(const Params& p) {
    Barrier* barrier = reinterpret_cast<Barrier*>(PanelMemory() + 512);
    float* run = reinterpret_cast<float*>(PanelMemory() + p.shift);
    if (ThreadIndex() == 0) {
      InitBarrier(barrier, 1);
      FenceBarrierInit();
      ArriveExpecting(barrier, 8 * static_cast<int>(sizeof(float)));
      CopyRun(run, p.map, p.row, p.column, barrier);
    }
    SyncThreads();
    WaitPhase(barrier, 0);
    for (int i = ThreadIndex(); i < 8; i += kThreads) p.out[i] = run[i];
  }
};

TEST_P(HopperEmulatorTest, CopiesRunsAndZerosBeyondThem) {
  const int rows = Uniform(1, 9), columns = 4 * Uniform(1, 9);
  const std::vector<float> matrix = Normal(static_cast<size_t>(rows * columns));
  const RunMap map = DescribeRuns({matrix.data(), rows, columns, 8}, stream());
  const int row = Uniform(0, rows), column = 8 * Uniform(0, 4);
  std::vector<float> out(8);
  RunNow<RunKernel>({.threads = 32, .shared_bytes = 2048 + kPanelAlignment},
                    {map, row, column, 128 * Uniform(0, 3), out.data()}, stream());
  for (int i = 0; i < 8; ++i) {
    const bool inside = row < rows && column + i < columns;
    const float expected = inside ? matrix[static_cast<size_t>(row * columns + column + i)] : 0.0f;
    ASSERT_EQ(out[static_cast<size_t>(i)], expected) << i << " of row " << row;
  }
  const auto misplaced = [&] {
    RunNow<RunKernel>({.threads = 32, .shared_bytes = 2048 + kPanelAlignment},
                      {map, 0, 0, 64, out.data()}, stream());
  };
  EXPECT_DEATH(misplaced(), "kRunAlignment");
}

TEST(TensorCoreOfE4m3, KeepsThirteenBitsBehindTheLargestAddend) {
  const auto sum = [](std::vector<double> addends) {
    return AddInTensorCore(addends.data(), static_cast<int>(addends.size()));
  };
  EXPECT_EQ(sum({}), 0);
  EXPECT_EQ(sum({0, -0.0, 0}), 0);
  EXPECT_EQ(sum({3, -5, 0.25}), -1.75f);
  EXPECT_EQ(sum({1, 0x1p-13}), 1 + 0x1p-13f);
  EXPECT_EQ(sum({1, 0x1p-14, 0x1p-14, 0x1p-14}), 1) << "each is cut off, whatever their sum";
  EXPECT_EQ(sum({1, -0x1p-14}), 1) << "towards zero";
  EXPECT_EQ(sum({1, -0x1p-13}), 1 - 0x1p-13f);
  EXPECT_EQ(sum({-1.99, 0x1p-14}), sum({-1.99})) << "aligned to the largest magnitude";
  EXPECT_EQ(sum({1, 1 + 0x1p-13}), 2) << "the result has as few bits";
  EXPECT_EQ(sum({448.0 * 448.0, 1}), 200704.0f);
  EXPECT_TRUE(std::isnan(sum({1, std::nan("")})));
}

// One warpgroup's products with an operand in registers, which changes before the wait or not.
template <bool kChangesOperand>
struct RegisterProductKernel {
  struct Params {
    float* out;  // [128]
  };
  static constexpr int kThreads = 128;
  static void Run(const Params& p) {
    char* panel = PanelMemory();
    for (int i = ThreadIndex(); i < PanelBytes(64) / 2; i += kThreads) {
      reinterpret_cast<Bf16Bits*>(panel)[i] = 0x3f80;
    }
    FenceProxyAsync();
    SyncWarpgroup<1>();
    uint32_t a[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    float d[32] = {};
    FenceProducts(d);
    AddRegisterProduct(d, a, TransposedDescriptor(panel, 0, 64));
    CommitProducts();
    if (kChangesOperand) a[ThreadIndex() % 4] = 0;
    WaitProducts<0>(d);
    p.out[ThreadIndex()] = d[ThreadIndex() % 32];
  }
};

TEST_P(HopperEmulatorTest, MultipliesOperandsInRegisters) {
  std::vector<float> out(128);
  RunNow<RegisterProductKernel<false>>(
      {.threads = 128, .shared_bytes = PanelBytes(64) + kPanelAlignment}, {out.data()}, stream());
  for (const float value : out) ASSERT_EQ(value, 16.0f);
}

TEST_P(HopperEmulatorDeathTest, EndsWhereAnOperandInRegistersChangesTooEarly) {
  std::vector<float> out(128);
  EXPECT_DEATH(RunNow<RegisterProductKernel<true>>(
                   {.threads = 128, .shared_bytes = PanelBytes(64) + kPanelAlignment}, {out.data()},
                   stream()),
               "precondition broken: operand_stayed");
}

// Three warpgroups of 168 registers each: two take, one gives.
template <int kGiven, int kTaken>
struct ExchangeKernel {
  struct Params {
    int* taken;
  };
  static constexpr int kThreads = 384;
  static void Run(const Params& p) {
    if (WarpgroupIndex() == 2) {
      GiveRegisters<kGiven>();
      return;
    }
    TakeRegisters<kTaken>();
    // No warp of the other warpgroup is waited for.
    SyncWarpgroup<2>();
    if (ThreadIndex() % kWarpgroupSize == 0) ++*p.taken;
  }
};

TEST_P(HopperEmulatorTest, RegistersGoFromOneWarpgroupToTheOthers) {
  int taken = 0;
  RunNow<ExchangeKernel<24, 240>>({.threads = 384}, {&taken}, stream());
  RunNow<ExchangeKernel<40, 232>>({.threads = 384}, {&taken}, stream());
  EXPECT_EQ(taken, 4);
}

TEST_P(HopperEmulatorDeathTest, EndsWhereNoThreadGivesTheRegistersTaken) {
  int taken = 0;
  const auto take_more = [&] {
    RunNow<ExchangeKernel<40, 240>>({.threads = 384}, {&taken}, stream());
  };
  const auto give_more = [&] {
    RunNow<ExchangeKernel<176, 232>>({.threads = 384}, {&taken}, stream());
  };
  EXPECT_DEATH(take_more(), "precondition broken: moved");
  EXPECT_DEATH(give_more(), "precondition broken: right_way");
}

// All of two warpgroups at a barrier that the first kWarpgroups have.
template <int kWarpgroups>
struct WarpgroupBarrierKernel {
  struct Params {};
  static constexpr int kThreads = 256;
  static void Run(const Params&) { SyncWarpgroup<kWarpgroups>(); }
};

TEST_P(HopperEmulatorDeathTest, EndsWhereAWarpgroupHasNoBarrier) {
  RunNow<WarpgroupBarrierKernel<2>>({.threads = 256}, {}, stream());
  EXPECT_DEATH(RunNow<WarpgroupBarrierKernel<1>>({.threads = 256}, {}, stream()),
               "precondition broken: WarpgroupIndex");
}

}  // namespace
}  // namespace tandem::kernels::emulated
