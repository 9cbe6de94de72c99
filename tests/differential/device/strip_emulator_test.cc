// Goal: the emulation of bulk copies back to device memory stores what they store, and catches what
// a GPU punishes at random: strips that the copy engine was not shown, strips overwritten before
// they were read, and copies that outlive their block.
#include <gtest/gtest.h>

#include <vector>

#include "device_fixture.h"
#include "kernels/cuda/simt/hopper.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::emulated {
namespace {

enum class Mistake {
  kNone,
  kNoProxyFence,
  kNoBarrier,
  kNoWaitForTheLast,
  kNoWaitAtTheEnd,
  kMisplaced,
};

constexpr int kStripRows = 8, kStrips = 3;

// One warpgroup stores three strips of a matrix, one below the other, from one place in shared
// memory. Element (row, column) is 64 · row + column.
template <Mistake kMistake>
struct StripKernel {
  struct Params {
    StripMap map;
    int column;
  };
  static constexpr int kThreads = kWarpgroupSize;
  static constexpr bool Has(Mistake mistake) { return kMistake == mistake; }

  static void Run(const Params& p) {
    char* strip = PanelMemory() + (Has(Mistake::kMisplaced) ? 64 : 0);
    const bool stores = ThreadIndex() == 0;
    for (int i = 0; i < kStrips; ++i) {
      if (stores && !Has(Mistake::kNoWaitForTheLast)) WaitForStores();
      SyncWarpgroup<1>();
      for (int at = ThreadIndex(); at < kStripRows * kStripColumns; at += kThreads) {
        const int row = i * kStripRows + at / kStripColumns;
        const int column = p.column + at % kStripColumns;
        reinterpret_cast<Bf16Bits*>(strip)[at] = static_cast<Bf16Bits>(row * 64 + column);
      }
      if (!Has(Mistake::kNoProxyFence)) FenceProxyAsync();
      if (!Has(Mistake::kNoBarrier)) SyncWarpgroup<1>();
      if (!stores) continue;
      StoreStrip(p.map, strip, i * kStripRows, p.column);
      CommitStores();
    }
    if (!Has(Mistake::kNoWaitAtTheEnd)) WaitForStores();
  }
};

constexpr int kRows = 21, kColumns = 40;
constexpr Bf16Bits kUntouched = 0xffff;

// How many elements of a matrix of 21 by 40 are wrong. Its last rows and columns have no whole
// strip.
template <Mistake kMistake>
int CountWrong(uint64_t seed, int column) {
  const std::unique_ptr<Device> device = NewEmulatedDevice(seed, EmulatedChip::kHopper);
  const std::unique_ptr<DeviceStream> stream = *device->NewStream();
  // A row more, which no store may touch.
  std::vector<Bf16Bits> matrix((kRows + 1) * kColumns, kUntouched);
  const StripMap map = DescribeStrips({matrix.data(), kRows, kColumns, kStripRows}, *stream);
  Launch<StripKernel<kMistake>>({.threads = kWarpgroupSize, .shared_bytes = 2048 + kPanelAlignment},
                                {map, column}, *stream);
  EXPECT_TRUE(stream->Synchronize().ok());
  int wrong = 0;
  for (int at = 0; at < (kRows + 1) * kColumns; ++at) {
    const int row = at / kColumns, c = at % kColumns;
    const bool stored = row < kRows && c >= column && c < column + kStripColumns;
    const Bf16Bits expected = stored ? static_cast<Bf16Bits>(row * 64 + c) : kUntouched;
    wrong += matrix[static_cast<size_t>(at)] == expected ? 0 : 1;
  }
  return wrong;
}

TEST(StripEmulator, StoresStripsAndDropsWhatLiesBeyondTheMatrix) {
  for (uint64_t seed = 1; seed < 6; ++seed) {
    EXPECT_EQ(CountWrong<Mistake::kNone>(seed, 0), 0);
    EXPECT_EQ(CountWrong<Mistake::kNone>(seed, 32), 0);
  }
}

TEST(StripEmulator, ShowsStripsThatTheCopyEngineWasNotShown) {
  for (uint64_t seed = 1; seed < 6; ++seed) {
    EXPECT_GT(CountWrong<Mistake::kNoProxyFence>(seed, 0), 0);
    EXPECT_GT(CountWrong<Mistake::kNoBarrier>(seed, 0), 0);
  }
}

TEST(StripEmulator, ShowsStripsOverwrittenTooEarly) {
  int wrong = 0;
  for (uint64_t seed = 1; seed < 10; ++seed) {
    wrong += CountWrong<Mistake::kNoWaitForTheLast>(seed, 0);
  }
  EXPECT_GT(wrong, 0) << "some stores read late";
}

TEST(StripEmulatorDeathTest, EndsWhereAStoreOutlivesItsBlockOrIsMisplaced) {
  EXPECT_DEATH(CountWrong<Mistake::kNoWaitAtTheEnd>(1, 0), "stores.empty");
  EXPECT_DEATH(CountWrong<Mistake::kMisplaced>(1, 0), "kRunAlignment");
}

}  // namespace
}  // namespace tandem::kernels::emulated
