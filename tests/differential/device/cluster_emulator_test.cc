// Goal: the emulation of clusters does what the PTX manual says of barriers in other blocks and of
// copies to several blocks, and catches what a GPU punishes at random: a block that copies into
// another one before that has barriers, or while it still reads, or that ends while others use its
// memory; and a load from another block before that stored, or after it stored again or ended.
#include <gtest/gtest.h>

#include <vector>

#include "device_fixture.h"
#include "kernels/cuda/simt/hopper.h"
#include "kernels/cuda/simt/launch.h"
#include "kernels/cuda/simt/swizzle.h"

namespace tandem::kernels::emulated {
namespace {

enum class ClusterMistake {
  kNone,
  kNoSyncAtStart,
  kNoSyncAtEnd,
  kReleasesItselfAlone,
  kExpectsItsOwnBytes,
  kBothCopyOneHalf,
  kWaitsForNoRoom,
};

constexpr int kClusterBlocks = 2, kHalfRows = 8, kPanels = 5;
constexpr int kPanelElements = kClusterBlocks * kHalfRows * kPanelColumns;

// Each block of a cluster brings half of every panel of a matrix to both, through one stage; a warp
// of each reads the whole panel. out: [blocks][kPanels][16][64].
template <ClusterMistake kMistake>
struct ClusterKernel {
  struct Params {
    PanelMap halves;
    Bf16Bits* out;
  };
  static constexpr int kThreads = 64;
  static constexpr size_t kSharedBytes =
      kClusterBlocks * kHalfRows * kPanelRowBytes + 16 + kPanelAlignment;
  static constexpr bool Has(ClusterMistake mistake) { return kMistake == mistake; }

  static Barrier* Full() {
    return reinterpret_cast<Barrier*>(PanelMemory() + PanelBytes(kClusterBlocks * kHalfRows));
  }
  static Barrier* Empty() { return Full() + 1; }

  static void Copy(const Params& p) {
    const int half = Has(ClusterMistake::kBothCopyOneHalf) ? 0 : ClusterRank();
    for (int i = 0; i < kPanels; ++i) {
      if (!Has(ClusterMistake::kWaitsForNoRoom)) WaitPhase(Empty(), i % 2 ^ 1);
      const int bytes = PanelBytes(kHalfRows);
      ArriveExpecting(Full(), Has(ClusterMistake::kExpectsItsOwnBytes) ? bytes : 2 * bytes);
      CopyPanelToBlocks(3, PanelMemory() + half * bytes, p.halves,
                        {half * kHalfRows, i * kPanelColumns}, Full());
    }
  }
  static void Read(const Params& p) {
    for (int i = 0; i < kPanels; ++i) {
      WaitPhase(Full(), i % 2);
      Bf16Bits* out = p.out + (BlockX() * kPanels + i) * kPanelElements;
      for (int at = LaneIndex(); at < kPanelElements / 8; at += kWarpSize) {
        std::memcpy(out + at * 8, PanelMemory() + SwizzledOffset<8>(at / 8, at % 8), 16);
        SyncWarp();  // time for others
      }
      if (Has(ClusterMistake::kReleasesItselfAlone)) {
        if (LaneIndex() < kClusterBlocks) Arrive(Empty());
      } else if (LaneIndex() < kClusterBlocks) {
        ArriveIn(LaneIndex(), Empty());
      }
    }
  }
  static void Run(const Params& p) {
    if (ThreadIndex() == 0) {
      InitBarrier(Full(), 1);
      InitBarrier(Empty(), kClusterBlocks);
      FenceBarrierInit();
    }
    if (Has(ClusterMistake::kNoSyncAtStart)) {
      SyncThreads();
    } else {
      SyncCluster();
    }
    if (WarpIndex() == 0) {
      Read(p);
    } else if (ElectOne()) {
      Copy(p);
    }
    if (!Has(ClusterMistake::kNoSyncAtEnd)) SyncCluster();
  }
};

enum class LoadMistake { kNone, kNoSyncBefore, kNoSyncBetween, kNoSyncAtEnd };

// Blocks show each other two numbers, one after the other at the same place of shared memory.
template <LoadMistake kMistake>
struct LoadKernel {
  struct Params {
    uint64_t* out;  // [blocks][2][blocks of a cluster]
  };
  static constexpr const char* kName = "load kernel";
  static constexpr int kThreads = 64;
  static constexpr int kBlocksPerMultiprocessor = 1;

  static uint64_t NumberOf(int rank, int turn) {
    return static_cast<uint64_t>(rank + 1) << 33 | static_cast<uint64_t>(turn);
  }
  static void Run(const Params& p) {
    uint64_t* shown = reinterpret_cast<uint64_t*>(SharedMemory()) + 3;
    for (int turn = 0; turn < 2; ++turn) {
      if (ThreadIndex() == 0) *shown = NumberOf(ClusterRank(), turn);
      if (kMistake == LoadMistake::kNoSyncBefore) {
        SyncThreads();
      } else {
        SyncCluster();
      }
      for (int rank = 0; rank < ClusterBlocks(); ++rank) {
        const uint64_t number = LoadFromBlock(rank, shown);
        if (ThreadIndex() == 40) {
          p.out[(BlockX() * 2 + turn) * ClusterBlocks() + rank] = number;
        }
      }
      const bool last = turn == 1;
      if (kMistake == (last ? LoadMistake::kNoSyncAtEnd : LoadMistake::kNoSyncBetween)) continue;
      SyncCluster();
    }
  }
};

class ClusterEmulatorTest : public DeviceTest {
 protected:
  // How many elements of three clusters' outputs are wrong, over several seeds.
  template <ClusterMistake kMistake>
  int CountWrong() {
    using Kernel = ClusterKernel<kMistake>;
    constexpr int kColumns = kPanels * kPanelColumns, kRows = kClusterBlocks * kHalfRows;
    int wrong = 0;
    for (uint64_t i = 0; i < 20; ++i) {
      const std::vector<Bf16Bits> matrix = NormalBf16(kRows * kColumns);
      const std::unique_ptr<Device> device = NewEmulatedDevice(seed_ + i, EmulatedChip::kHopper);
      const std::unique_ptr<DeviceStream> stream = *device->NewStream();
      const PanelMap halves =
          DescribePanels({matrix.data(), kRows, kColumns, kHalfRows, 2}, *stream);
      constexpr int kBlocks = 3 * kClusterBlocks;
      std::vector<Bf16Bits> out(kBlocks * kPanels * kPanelElements, 0xffff);
      Launch<Kernel>({.x = kBlocks,
                      .threads = Kernel::kThreads,
                      .shared_bytes = Kernel::kSharedBytes,
                      .cluster = kClusterBlocks},
                     {halves, out.data()}, *stream);
      EXPECT_TRUE(stream->Synchronize().ok());
      for (size_t at = 0; at < out.size(); ++at) {
        const size_t panel = at / kPanelElements % kPanels, row = at % kPanelElements / 64;
        if (out[at] != matrix[row * kColumns + panel * 64 + at % 64]) ++wrong;
      }
    }
    return wrong;
  }

  // How many numbers blocks of `cluster` saw wrongly, over several seeds.
  template <LoadMistake kMistake>
  int CountWrongLoads(int cluster) {
    using Kernel = LoadKernel<kMistake>;
    int wrong = 0;
    for (uint64_t i = 0; i < 20; ++i) {
      const std::unique_ptr<Device> device = NewEmulatedDevice(seed_ + i, EmulatedChip::kHopper);
      const std::unique_ptr<DeviceStream> stream = *device->NewStream();
      const int blocks = 2 * cluster;
      std::vector<uint64_t> out(static_cast<size_t>(blocks * 2 * cluster));
      Launch<Kernel>(
          {.x = blocks, .threads = Kernel::kThreads, .shared_bytes = 64, .cluster = cluster},
          {out.data()}, *stream);
      EXPECT_TRUE(stream->Synchronize().ok());
      for (size_t at = 0; at < out.size(); ++at) {
        const int rank = static_cast<int>(at) % cluster, turn = static_cast<int>(at) / cluster % 2;
        if (out[at] != Kernel::NumberOf(rank, turn)) ++wrong;
      }
    }
    return wrong;
  }
};
using ClusterEmulatorDeathTest = ClusterEmulatorTest;
const auto kHopperAlone = ::testing::Values(DeviceKind::kEmulatedHopper);
INSTANTIATE_TEST_SUITE_P(All, ClusterEmulatorTest, kHopperAlone, DeviceName);
INSTANTIATE_TEST_SUITE_P(All, ClusterEmulatorDeathTest, kHopperAlone, DeviceName);

TEST_P(ClusterEmulatorTest, CopiesReachAllBlocks) {
  EXPECT_EQ(CountWrong<ClusterMistake::kNone>(), 0);
}

TEST_P(ClusterEmulatorTest, BlocksLoadFromEachOther) {
  for (const int cluster : {2, 4, 8}) EXPECT_EQ(CountWrongLoads<LoadMistake::kNone>(cluster), 0);
  EXPECT_GT(CountWrongLoads<LoadMistake::kNoSyncBefore>(4), 0) << "a number that is not there yet";
  EXPECT_GT(CountWrongLoads<LoadMistake::kNoSyncBetween>(4), 0) << "the next number";
}

TEST_P(ClusterEmulatorDeathTest, NoLoadFromABlockThatHasEnded) {
  EXPECT_DEATH(CountWrongLoads<LoadMistake::kNoSyncAtEnd>(4), "has_ended");
}

TEST_P(ClusterEmulatorDeathTest, EndsOrShowsWhereAGpuWouldBreak) {
  // Some of these are wrong numbers in one order of threads, and a broken rule in another.
  const auto found = [](int wrong) {
    if (wrong > 0) KERNEL_REQUIRE(!"wrong numbers");
  };
  EXPECT_DEATH(found(CountWrong<ClusterMistake::kNoSyncAtStart>()), "precondition broken");
  EXPECT_DEATH(found(CountWrong<ClusterMistake::kNoSyncAtEnd>()), "has_ended");
  EXPECT_DEATH(found(CountWrong<ClusterMistake::kReleasesItselfAlone>()), "precondition broken");
  EXPECT_DEATH(found(CountWrong<ClusterMistake::kExpectsItsOwnBytes>()), "precondition broken");
  EXPECT_DEATH(found(CountWrong<ClusterMistake::kBothCopyOneHalf>()), "wrong numbers");
  EXPECT_DEATH(found(CountWrong<ClusterMistake::kWaitsForNoRoom>()), "precondition broken");
}

}  // namespace
}  // namespace tandem::kernels::emulated
