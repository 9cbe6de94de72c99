// Goal: what a device's KV cache copies to the host and back is verified: bytes arrive as they
// were, a copy that was damaged once is made again, one that stays damaged is an error that names
// the block, and what arrived from elsewhere is on the device before a step looks at it, whichever
// thread copies it. Blocks that went to host memory above a disk come back to the device from
// either.
#include "common/engine/device/device_kv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iostream>
#include <random>
#include <thread>

#include "absl/functional/function_ref.h"
#include "common/runtime/clock.h"
#include "common/runtime/thread.h"
#include "common/storage/block_file.h"
#include "common/storage/block_tiers.h"
#include "kernels/cuda/backend/emulated_device.h"
#include "tests/testing/status_matchers.h"

namespace tandem::engine {
namespace {

constexpr int kLayers = 2;
constexpr int64_t kBlockBytes = 640;
constexpr int64_t kBlocks = 12;

class DeviceKvTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const uint64_t seed = std::random_device()();
    random_.seed(seed);
    std::cout << "seed " << seed << "\n";
    device_ = kernels::emulated::NewEmulatedDevice(seed);
    kv::BlockLayout layout;
    layout.num_layers = kLayers;
    layout.block_tokens = 16;
    layout.layer_block_bytes = kBlockBytes;
    ASSERT_OK_AND_ASSIGN(kv_, DeviceKv::Create(layout, kBlocks, *device_));
    ASSERT_OK_AND_ASSIGN(ready_, device_->NewEvent());
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int64_t i = 0; i < kBlocks * kBlockBytes; ++i) {
        kv_->Region(layer)[i] = static_cast<char>(random_());
      }
    }
  }

  bool Same(int layer, int64_t block) const {
    return std::memcmp(kv_->Region(layer) + block * kBlockBytes,
                       kv_->arena().Block(layer, BlockId(static_cast<int32_t>(block))).data(),
                       kBlockBytes) == 0;
  }
  // A slice that looks at blocks 3, 4 and 9, which arrive with other bytes than the device has.
  SequenceSlice Arrive() {
    for (int32_t block : blocks_) {
      for (int layer = 0; layer < kLayers; ++layer) {
        for (std::byte& byte : kv_->arena().Block(layer, BlockId(block))) {
          byte = static_cast<std::byte>(random_());
        }
      }
      kv_->arena().MarkArrived(BlockId(block));
      ids_.push_back(BlockId(block));
    }
    SequenceSlice slice;
    slice.blocks = ids_;
    slice.num_computed = 47;
    slice.num_new = 1;
    return slice;
  }

  // Whether all that arrived is on the device.
  bool AllSame() const {
    return std::all_of(blocks_.begin(), blocks_.end(),
                       [this](int32_t block) { return Same(0, block) && Same(1, block); });
  }
  // Runs `second` on another thread after the first of the copies that `first` makes. Returns
  // whether all that arrived is on the device when `second` returns.
  bool AllSameAfter(absl::FunctionRef<absl::Status()> first,
                    absl::FunctionRef<absl::Status()> second) {
    std::atomic<bool> returned = false;
    bool same = false;
    Thread other;
    kernels::emulated::SetClock(*device_, [&] {
      if (!other.joinable()) {
        EXPECT_FALSE(AllSame());
        other = Thread("second", [&] {
          EXPECT_OK(second());
          same = AllSame();
          returned = true;
        });
        while (!returned && kv_->copies_awaited() == 0) std::this_thread::yield();
      }
      return 0.0f;
    });
    EXPECT_OK(first());
    EXPECT_TRUE(other.joinable());
    other.Join();
    kernels::emulated::SetClock(*device_, nullptr);
    EXPECT_TRUE(AllSame());
    return same;
  }

  const std::vector<int32_t> blocks_ = {9, 3, 4};
  std::vector<BlockId> ids_;
  std::mt19937_64 random_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::DeviceEvent> ready_;
  std::unique_ptr<DeviceKv> kv_;
};

TEST_F(DeviceKvTest, BlocksBesideAStepAreFetchedOnceAndOnlyIfTheyArrived) {
  Arrive();
  const std::vector<BlockId> asked = {BlockId(9), BlockId(3), BlockId(5)};
  kernels::emulated::DamageCopies(*device_, 1, kBlockBytes);  // the first is made again
  ASSERT_OK(kv_->FetchBlocks(asked));
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const int64_t block : {3, 9}) EXPECT_TRUE(Same(layer, block)) << block;
    for (const int64_t block : {4, 5}) EXPECT_FALSE(Same(layer, block)) << block;
  }
  // They lie on the device now. Another arrival is copied again.
  kv_->arena().Block(0, BlockId(3))[0] ^= std::byte{1};
  ASSERT_OK(kv_->FetchBlocks(asked));
  EXPECT_FALSE(Same(0, 3));
  kv_->arena().MarkArrived(BlockId(3));
  ASSERT_OK(kv_->FetchBlocks(asked));
  EXPECT_TRUE(Same(0, 3));
  kv_->arena().MarkArrived(BlockId(3));
  // Both layers' copies are under way when the first is made again.
  kernels::emulated::DamageCopies(*device_, 3, kBlockBytes);
  EXPECT_EQ(kv_->FetchBlocks(asked).code(), absl::StatusCode::kDataLoss);
  ASSERT_OK(kv_->FetchBlocks(asked));  // it still counts as arrived
  EXPECT_TRUE(Same(0, 3) && Same(1, 3));
}

TEST_F(DeviceKvTest, AStepWaitsForCopiesOfItsBlocksThatAreUnderWayBesideIt) {
  const SequenceSlice slice = Arrive();
  EXPECT_TRUE(AllSameAfter([&] { return kv_->FetchBlocks(ids_); },
                           [&] { return kv_->FetchArrived({slice}); }));
}

TEST_F(DeviceKvTest, AFetchWaitsForAStepsCopiesOfItsBlocks) {
  const SequenceSlice slice = Arrive();
  EXPECT_TRUE(AllSameAfter([&] { return kv_->FetchArrived({slice}); },
                           [&] { return kv_->FetchBlocks(ids_); }));
}

TEST_F(DeviceKvTest, TwoFetchesOfOneBlockBothReturnWhenItIsThere) {
  Arrive();
  EXPECT_TRUE(
      AllSameAfter([&] { return kv_->FetchBlocks(ids_); }, [&] { return kv_->FetchBlocks(ids_); }));
}

// The step overwrites the block, so a copy that is under way has to end before it.
TEST_F(DeviceKvTest, AStepWaitsForCopiesOfBlocksThatItWrites) {
  SequenceSlice slice = Arrive();
  slice.num_computed = 0;
  slice.num_new = 48;
  EXPECT_TRUE(AllSameAfter([&] { return kv_->FetchBlocks(ids_); },
                           [&] { return kv_->FetchArrived({slice}); }));
}

TEST_F(DeviceKvTest, AStepDoesNotWaitForCopiesOfOtherBlocks) {
  Arrive();
  const std::vector<BlockId> others = {BlockId(5), BlockId(6)};
  SequenceSlice slice;
  slice.blocks = others;
  slice.num_computed = 31;
  slice.num_new = 1;
  EXPECT_FALSE(AllSameAfter([&] { return kv_->FetchBlocks(ids_); },
                            [&] { return kv_->FetchArrived({slice}); }));
  EXPECT_EQ(kv_->copies_awaited(), 0);
}

// As the storage thread does it: what a step mirrored is saved, and what a load brought is fetched.
TEST_F(DeviceKvTest, BlocksComeBackFromHostMemoryAndFromTheDiskBelowIt) {
  const auto open = [](int64_t blocks) {
    auto file = storage::BlockFile::Open({.contents = "model a",
                                          .block_bytes = kLayers * kBlockBytes,
                                          .bytes_max = 8192 + blocks * (4096 + 64)});
    EXPECT_OK(file.status());
    return *std::move(file);
  };
  storage::BlockTiers tiers(open(1), open(4), RealClock());
  const auto name = [](uint64_t n) { return kv::BlockHash{.high = n, .low = n}; };
  std::vector<std::string> saved;
  for (const int32_t block : {2, 3}) {
    for (int layer = 0; layer < kLayers; ++layer) {
      ASSERT_OK(kv_->Mirror(layer, {BlockId(block)}, *ready_));
      saved.emplace_back(kv_->Region(layer) + block * kBlockBytes, kBlockBytes);
    }
    tiers.Save({.block = {name(static_cast<uint64_t>(block)), BlockId(block)}}, kv_->arena());
  }
  std::vector<BlockId> arrived;
  const storage::BlocksLoaded loaded =
      tiers.Load({.blocks = {{name(2), BlockId(9)}, {name(3), BlockId(6)}}}, kv_->arena(), arrived);
  EXPECT_EQ(loaded.read.disk.bytes, kLayers * kBlockBytes) << "host memory has one block";
  EXPECT_EQ(loaded.read.host.bytes, kLayers * kBlockBytes);
  ASSERT_OK(kv_->FetchBlocks(arrived));
  size_t at = 0;
  for (const int64_t block : {9, 6})
    for (int layer = 0; layer < kLayers; ++layer)
      EXPECT_EQ(std::string(kv_->Region(layer) + block * kBlockBytes, kBlockBytes), saved[at++])
          << "block " << block << " layer " << layer;
}

TEST_F(DeviceKvTest, MirrorsBlocksOfALayer) {
  ASSERT_OK(kv_->Mirror(1, {BlockId(2), BlockId(3), BlockId(7)}, *ready_));
  for (int64_t block = 0; block < kBlocks; ++block) {
    EXPECT_EQ(Same(1, block), block == 2 || block == 3 || block == 7) << block;
    EXPECT_FALSE(Same(0, block)) << block;
  }
}

TEST_F(DeviceKvTest, PinsWhatCopiesTouchAndStagesTheRest) {
  ASSERT_OK(kv_->Mirror(1, {BlockId(2)}, *ready_));
  EXPECT_EQ(kernels::emulated::NumPins(*device_), 1u);
  ASSERT_OK(kv_->Mirror(1, {BlockId(7)}, *ready_));
  EXPECT_EQ(kernels::emulated::NumPins(*device_), 1u) << "the same piece";
  kernels::emulated::LimitPins(*device_, 1);
  ASSERT_OK(kv_->Mirror(0, {BlockId(3), BlockId(4)}, *ready_));
  EXPECT_TRUE(Same(0, 3) && Same(0, 4) && Same(1, 2) && Same(1, 7));
  ASSERT_OK(kv_->FetchArrived({Arrive()}));
  for (int32_t block : blocks_) EXPECT_TRUE(Same(0, block) && Same(1, block)) << block;
  kv_.reset();
  EXPECT_EQ(kernels::emulated::NumPins(*device_), 0u);
}

// Pieces of a large arena are pinned one by one; a run of blocks does not cross from one to the
// next.
TEST_F(DeviceKvTest, RunsEndWithTheirPiece) {
  kv::BlockLayout layout;
  layout.num_layers = 1;
  layout.block_tokens = 16;
  layout.layer_block_bytes = int64_t{1} << 20;
  ASSERT_OK_AND_ASSIGN(kv_, DeviceKv::Create(layout, 34, *device_));
  std::memset(kv_->Region(0), 7, size_t{34} << 20);
  ASSERT_OK(kv_->Mirror(0, {BlockId(31), BlockId(32), BlockId(33)}, *ready_));
  EXPECT_EQ(kernels::emulated::NumPins(*device_), 2u);
  for (int32_t block : {31, 32, 33}) {
    EXPECT_EQ(kv_->arena().Block(0, BlockId(block)).front(), std::byte{7}) << block;
    EXPECT_EQ(kv_->arena().Block(0, BlockId(block)).back(), std::byte{7}) << block;
  }
}

TEST_F(DeviceKvTest, ACopyToTheHostThatWasDamagedIsMadeAgain) {
  kernels::emulated::DamageCopies(*device_, 1, kBlockBytes);
  ASSERT_OK(kv_->Mirror(0, {BlockId(5), BlockId(8)}, *ready_));
  EXPECT_TRUE(Same(0, 5));
  EXPECT_TRUE(Same(0, 8));
}

TEST_F(DeviceKvTest, ACopyToTheHostThatStaysDamagedIsNamed) {
  kernels::emulated::DamageCopies(*device_, 1000, kBlockBytes);
  const absl::Status status = kv_->Mirror(1, {BlockId(5)}, *ready_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(::testing::HasSubstr("block 5 layer 1"),
                               ::testing::HasSubstr("to the host")));
}

TEST_F(DeviceKvTest, WhatArrivedIsFetchedOnceAndVerified) {
  const SequenceSlice slice = Arrive();
  kernels::emulated::DamageCopies(*device_, 1, kBlockBytes);
  ASSERT_OK(kv_->FetchArrived({slice}));
  for (int32_t block : blocks_) {
    EXPECT_TRUE(Same(0, block)) << block;
    EXPECT_TRUE(Same(1, block)) << block;
  }
  // Nothing is left to copy, so nothing can be damaged.
  kernels::emulated::DamageCopies(*device_, 1000, kBlockBytes);
  EXPECT_OK(kv_->FetchArrived({slice}));
}

TEST_F(DeviceKvTest, AFetchThatStaysDamagedIsNamed) {
  const SequenceSlice slice = Arrive();
  kernels::emulated::DamageCopies(*device_, 1000, kBlockBytes);
  const absl::Status status = kv_->FetchArrived({slice});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("to the device"));
  kernels::emulated::DamageCopies(*device_, 0, kBlockBytes);
  ASSERT_OK(kv_->FetchBlocks(ids_));  // they still count as arrived
  EXPECT_TRUE(AllSame());
}

}  // namespace
}  // namespace tandem::engine
