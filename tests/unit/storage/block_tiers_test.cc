// Goal: two tiers give back what was saved, bit for bit, from the fastest one that has it whole, or
// nothing; what their events say of each block's place is true, whatever is evicted, damaged, full,
// forgotten or restarted. What is left of a prefix is its beginning.
#include "common/storage/block_tiers.h"

#include <sys/resource.h>

#include <csignal>

#include "tests/unit/storage/block_tiers_fixture.h"

namespace tandem::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(BlockTiersTest, ASaveFillsBothAndWhatLeavesTheHostStaysOnDisk) {
  const BlockSaved first = Save(1);
  EXPECT_EQ(first.tiers, In(true, true));
  EXPECT_EQ(first.written.host.bytes, kBlockBytes);
  EXPECT_EQ(first.written.disk.bytes, kBlockBytes);
  EXPECT_GT(first.written.host.time, absl::ZeroDuration());
  EXPECT_GT(first.written.disk.time, absl::ZeroDuration());
  Save(2);
  EXPECT_EQ(PlacesOf(Save(3).changed), (Places{{1, In(false, true)}}));
  EXPECT_EQ(tiers_->slots(), 7);
}

TEST_F(BlockTiersTest, ALoadTakesTheFastestTierAndRaisesWhatCameFromDisk) {
  for (uint64_t n = 1; n <= 4; ++n) Save(n);  // 3 and 4 are in host memory
  const BlocksLoaded from_host = Load({3, 4});
  EXPECT_EQ(from_host.read.host.bytes, 2 * kBlockBytes);
  EXPECT_EQ(from_host.read.disk.bytes, 0);
  EXPECT_THAT(from_host.from, ElementsAre(StoreTier::kHost, StoreTier::kHost));
  EXPECT_THAT(from_host.changed, IsEmpty());
  const BlocksLoaded mixed = Load({1, 4});
  EXPECT_EQ(mixed.loaded, 2);
  EXPECT_EQ(mixed.read.host.bytes, kBlockBytes);
  EXPECT_EQ(mixed.read.disk.bytes, kBlockBytes);
  EXPECT_THAT(mixed.from, ElementsAre(StoreTier::kDisk, StoreTier::kHost));
  EXPECT_EQ(PlacesOf(mixed.changed), (Places{{1, In(true, true)}, {3, In(false, true)}}));
  EXPECT_EQ(Load({1}).read.host.bytes, kBlockBytes);
}

TEST_F(BlockTiersTest, RaisingABlockTakesNoneOfItsOwnLoadAway) {
  Open(2, 1);
  for (uint64_t n = 1; n <= 2; ++n) Save(n, In(true, false));
  Save(3, In(false, true));
  // 3 is raised in the place of 1, which is in host memory alone and is read after it.
  const BlocksLoaded loaded = Load({3, 2, 1});
  EXPECT_EQ(loaded.loaded, 3);
  EXPECT_EQ(PlacesOf(loaded.changed), (Places{{3, In(true, true)}, {2, In(false, false)}}));
}

TEST_F(BlockTiersTest, AUseInHostMemoryCountsOnDisk) {
  for (uint64_t n = 1; n <= 5; ++n) Save(n);
  Open(1, 5);
  Load({1});  // in host memory from now on
  for (int times = 0; times < 2; ++times) {
    for (uint64_t n = 2; n <= 5; ++n) disk_->Touch(Hash(n));
    EXPECT_EQ(Load({1}).read.host.bytes, kBlockBytes);
  }
  EXPECT_EQ(PlacesOf(Save(6).changed), (Places{{1, In(false, true)}, {2, In(false, false)}}));
}

TEST_F(BlockTiersTest, ADamagedCopyInHostMemoryIsReadFromDisk) {
  Save(1);
  host_->damaged.insert(Hash(1));
  const BlocksLoaded loaded = Load({1});
  EXPECT_EQ(loaded.loaded, 1);
  EXPECT_EQ(loaded.damaged, 1);
  EXPECT_THAT(std::string(loaded.fault.message()), HasSubstr("damaged"));
  EXPECT_EQ(loaded.read.disk.bytes, kBlockBytes);
  EXPECT_THAT(loaded.from, ElementsAre(StoreTier::kDisk));
  EXPECT_EQ(PlacesOf(loaded.changed), (Places{{1, In(true, true)}})) << "it is copied again";
  EXPECT_EQ(Load({1}).read.host.bytes, kBlockBytes);
}

TEST_F(BlockTiersTest, ADamagedCopyOnDiskIsNoticedWhenItIsNeeded) {
  for (uint64_t n = 1; n <= 3; ++n) Save(n);
  disk_->damaged = {Hash(1), Hash(2)};
  EXPECT_EQ(Load({2}).damaged, 0) << "it is read from host memory";
  const BlocksLoaded loaded = Load({3, 1, 2});
  EXPECT_EQ(loaded.loaded, 1);
  EXPECT_EQ(loaded.damaged, 1);
  EXPECT_EQ(PlacesOf(loaded.changed), (Places{{1, In(false, false)}}));
}

TEST_F(BlockTiersTest, FailingReadsOfBothLoseTheBlockOnly) {
  Save(1);
  Save(2);
  host_->fails = disk_->fails = true;
  const BlocksLoaded loaded = Load({1, 2});
  EXPECT_EQ(loaded.loaded, 0);
  EXPECT_EQ(loaded.damaged, 2);
  EXPECT_EQ(PlacesOf(loaded.changed), (Places{{1, In(false, false)}}));
  host_->fails = disk_->fails = false;
  EXPECT_EQ(Load({2}).loaded, 1);
}

TEST_F(BlockTiersTest, AFullDiskDoesNotKeepHostMemoryFromItsWork) {
  disk_->full = true;
  const BlockSaved saved = Save(1);
  EXPECT_OK(saved.status.host);
  EXPECT_EQ(saved.status.disk.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(saved.tiers, In(true, false));
  EXPECT_EQ(saved.written.disk.bytes, 0);
  EXPECT_EQ(Load({1}).read.host.bytes, kBlockBytes);
  Save(2);
  EXPECT_EQ(PlacesOf(Save(3).changed), (Places{{1, In(false, false)}})) << "no tier has it";
  host_->full = true;
  disk_->full = false;
  EXPECT_EQ(Save(4).tiers, In(false, true));
  const BlocksLoaded loaded = Load({4});
  EXPECT_EQ(loaded.loaded, 1) << "though host memory does not take it";
  EXPECT_EQ(PlacesOf(loaded.changed), (Places{{4, In(false, true)}}));
}

// A bound on the process's files stands for a full disk.
TEST_F(BlockTiersTest, InAFileThatCannotGrowBlocksMakeRoomForEachOther) {
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  const struct rlimit full = {8192 + 2 * 4096 + 100, before.rlim_max};
  Save(1, In(false, true));
  Save(2, In(false, true));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  const BlockSaved saved = Save(3);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(saved.tiers, In(true, true)) << saved.status.disk;
  EXPECT_EQ(PlacesOf(saved.changed), (Places{{1, In(false, false)}}));
}

TEST_F(BlockTiersTest, TheDiskSurvivesARestartAndHostMemoryDoesNot) {
  for (uint64_t n = 1; n <= 3; ++n) Save(n);
  Save(4, In(true, false));
  Open(2, 5);
  EXPECT_EQ(tiers_->Contents().tiers, TierSet::All());
  EXPECT_EQ(tiers_->Contents().on_disk, (std::vector{Hash(1), Hash(2), Hash(3)}));
  EXPECT_EQ(Load({4}).loaded, 0);
  const BlocksLoaded loaded = Load({3, 2, 1});
  EXPECT_EQ(loaded.read.disk.bytes, 3 * kBlockBytes);
}

TEST_F(BlockTiersTest, OneTierAloneIsAsBefore) {
  Open(0, 2);
  EXPECT_EQ(tiers_->Contents().tiers, In(false, true));
  for (uint64_t n = 1; n <= 2; ++n) EXPECT_EQ(Save(n).tiers, In(false, true));
  EXPECT_EQ(PlacesOf(Save(3).changed), (Places{{1, In(false, false)}}));
  EXPECT_THAT(Load({2, 3}).changed, IsEmpty());
  Open(2, 0);
  EXPECT_THAT(tiers_->Contents().on_disk, IsEmpty());
  EXPECT_EQ(Save(1).tiers, In(true, false));
  tiers_->Forget({.hash = Hash(1)});
  EXPECT_EQ(Load({1}).loaded, 0);
}

TEST_F(BlockTiersTest, WhatIsLeftOfAPrefixIsItsBeginning) {
  for (const bool host : {true, false}) {
    Open(host ? 4 : 0, host ? 0 : 4);
    SavePrefix({1, 2, 3});
    SavePrefix({11, 12});
    EXPECT_EQ(Load({1, 2, 3}).loaded, 2) << "the last block made room";
    SavePrefix({21, 22});
    EXPECT_EQ(Load({1, 2}).loaded, 2) << "it was used later than the other one";
    EXPECT_EQ(Load({11}).loaded, 0);
  }
}

TEST_F(BlockTiersTest, AUseInMemoryCountsInEachTier) {
  Open(4, 4);
  SavePrefix({1, 2});
  SavePrefix({11, 12});
  SavePrefix({21}, {Hash(2)});
  SavePrefix({31}, {Hash(2)});
  EXPECT_EQ(Load({1, 2}).read.host.bytes, 2 * kBlockBytes);
  Open(0, 4);
  EXPECT_EQ(Load({1, 2}).loaded, 2);
}

TEST_F(BlockTiersTest, NothingMakesRoomForABlockThatNobodyFinds) {
  Open(0, 3);
  SavePrefix({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Load({1, 2, 3, 4}).loaded, 3);
  Open(2, 3);
  SavePrefix({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Load({1, 2, 3, 4, 5, 6}).loaded, 5) << "host memory has two more";
}

}  // namespace
}  // namespace tandem::storage
