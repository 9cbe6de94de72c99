// Goal: the price of a read and of what the storage thread does before it follow from the copies
// that ran, by tier, and from the commands that have no event.
#include "common/node/storage_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::node {
namespace {

using storage::BlockSaved;
using storage::BlocksLoaded;
using storage::LoadId;
using ::testing::DoubleNear;

constexpr int64_t kBlockBytes = 1 << 20;

class StorageTimesTest : public ::testing::Test {
 protected:
  // Reading takes 100 us a block from host memory, 1 ms from the disk; writing twice as long.
  explicit StorageTimesTest(storage::TierSet tiers = storage::TierSet::All())
      : times_(tiers, kBlockBytes) {
    times_.OnLoad(LoadId(1), {.host = 1, .disk = 1}, now_);
    times_.Handle(BlocksLoaded{.load = LoadId(1),
                               .loaded = 2,
                               .read = {.host = {kBlockBytes, absl::Microseconds(100)},
                                        .disk = {kBlockBytes, absl::Milliseconds(1)}}},
                  now_);
    times_.OnSave();
    times_.Handle(BlockSaved{.written = {.host = {kBlockBytes, absl::Microseconds(200)},
                                         .disk = {kBlockBytes, absl::Milliseconds(2)}}},
                  now_);
  }
  auto Near(double us) { return DoubleNear(us, 1e-3 * us + 1e-6); }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  StorageTimes times_;
};

TEST_F(StorageTimesTest, AnIdleStorageHasNothingToDo) { EXPECT_EQ(times_.AheadUs(now_), 0); }

TEST_F(StorageTimesTest, AReadCostsItsBlocksByTier) {
  EXPECT_THAT(times_.ReadUs({.host = 3, .disk = 2}, now_), Near(2300));
}

TEST_F(StorageTimesTest, LoadsAheadCountWithTheirCopiesToHostMemory) {
  times_.OnLoad(LoadId(2), {.disk = 2}, now_);
  EXPECT_THAT(times_.AheadUs(now_), Near(2 * (1000 + 200)));
  times_.OnLoad(LoadId(3), {.host = 5}, now_);
  EXPECT_THAT(times_.AheadUs(now_), Near(2400 + 500));
  // The first of them has run for 1 ms; it cannot have done more than itself.
  EXPECT_THAT(times_.AheadUs(now_ + absl::Milliseconds(1)), Near(1900));
  EXPECT_THAT(times_.AheadUs(now_ + absl::Seconds(1)), Near(500));
  now_ += absl::Milliseconds(3);
  times_.Handle(BlocksLoaded{.load = LoadId(2)}, now_);
  EXPECT_THAT(times_.AheadUs(now_), Near(500));
}

TEST_F(StorageTimesTest, OfTheSavesOnlyTheRunningOneIsAhead) {
  for (int i = 0; i < 3; ++i) times_.OnSave();
  EXPECT_THAT(times_.AheadUs(now_), Near(2200));
  times_.OnLoad(LoadId(2), {.host = 5}, now_);
  EXPECT_THAT(times_.AheadUs(now_), Near(2200 + 500));
  times_.Handle(BlockSaved{}, now_);
  EXPECT_THAT(times_.AheadUs(now_), Near(500)) << "the load runs before the next save";
  times_.Handle(BlocksLoaded{.load = LoadId(2)}, now_);
  EXPECT_THAT(times_.AheadUs(now_ + absl::Microseconds(200)), Near(2000));
}

TEST_F(StorageTimesTest, ACancelledLoadIsNotAhead) {
  times_.OnLoad(LoadId(2), {.host = 5}, now_);
  times_.OnLoad(LoadId(3), {.host = 7}, now_);
  times_.Handle(storage::Cancelled(LoadId(3)), now_ + absl::Microseconds(100));
  EXPECT_THAT(times_.AheadUs(now_ + absl::Microseconds(100)), Near(400));
  EXPECT_EQ(times_.profile(storage::StoreTier::kHost).read.samples, 1);
}

}  // namespace
}  // namespace tandem::node
