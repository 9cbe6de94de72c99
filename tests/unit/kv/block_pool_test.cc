// Goal: a pool's single operations do what the header says: what is allocated, found, shared,
// cached and evicted first, and which events routers get. Misuse ends the process.
#include "common/kv/block_pool.h"

#include <set>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace tandem::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

BlockHash Hash(uint64_t n) { return {n, ~n}; }

TEST(BlockPool, AllocatesAllOrNothing) {
  BlockPool pool(4);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> three, pool.Allocate(3));
  EXPECT_EQ(std::set<BlockId>(three.begin(), three.end()).size(), 3u);
  EXPECT_THAT(pool.Allocate(2), testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                                  HasSubstr("2 blocks requested, 1 of 4")));
  EXPECT_EQ(pool.counts().free, 1);
  EXPECT_OK(pool.Allocate(1));
}

TEST(BlockPool, SealedBlocksStayFindableUntilEvictedOldestFirst) {
  BlockPool pool(3);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> blocks, pool.Allocate(3));
  for (int i = 0; i < 3; ++i) pool.Seal(blocks[i], Hash(i));
  for (const int i : {2, 1, 0}) pool.Unref(blocks[i]);
  EXPECT_EQ(pool.counts().cached, 3);
  EXPECT_THAT(pool.DrainEvents().stored, ElementsAre(Hash(0), Hash(1), Hash(2)));

  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> one, pool.Allocate(1));
  EXPECT_THAT(pool.DrainEvents().removed, ElementsAre(Hash(2)));
  EXPECT_THAT(pool.Match({Hash(0), Hash(1), Hash(2)}), ElementsAre(blocks[0], blocks[1]));
  EXPECT_EQ(pool.counts().used, 3);
}

TEST(BlockPool, TheSecondBlockOfAnEqualHashStaysUnsealed) {
  BlockPool pool(2);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> blocks, pool.Allocate(2));
  pool.Seal(blocks[0], Hash(9));
  pool.Seal(blocks[1], Hash(9));
  EXPECT_TRUE(pool.IsSealed(blocks[0]));
  EXPECT_FALSE(pool.IsSealed(blocks[1]));
  pool.Unref(blocks[1]);
  EXPECT_EQ(pool.counts().free, 1);
}

TEST(BlockPool, WhereABlockCameFromIsToldOnceAndGoesWithItsBytes) {
  BlockPool pool(2);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> blocks, pool.Allocate(2));
  pool.SetOrigin(blocks[0], BlockOrigin::kDisk);
  pool.SetOrigin(blocks[1], BlockOrigin::kPeer);
  for (int i = 0; i < 2; ++i) pool.Seal(blocks[i], Hash(i));
  for (const int i : {1, 0}) pool.Unref(blocks[i]);
  EXPECT_THAT(pool.Match({Hash(0)}), ElementsAre(blocks[0]));
  EXPECT_EQ(pool.TakeOrigin(blocks[0]), BlockOrigin::kDisk);
  EXPECT_EQ(pool.TakeOrigin(blocks[0]), BlockOrigin::kHere);
  // The other one is evicted before anyone asks.
  EXPECT_THAT(*pool.Allocate(1), ElementsAre(blocks[1]));
  EXPECT_EQ(pool.TakeOrigin(blocks[1]), BlockOrigin::kHere);
}

TEST(BlockPool, StoredAndRemovedBetweenTwoDrainsCancelOut) {
  BlockPool pool(1);
  ASSERT_OK_AND_ASSIGN(std::vector<BlockId> block, pool.Allocate(1));
  pool.Seal(block[0], Hash(1));
  pool.Unref(block[0]);
  ASSERT_OK_AND_ASSIGN(block, pool.Allocate(1));  // evicts hash 1
  EXPECT_THAT(pool.DrainEvents().stored, IsEmpty());
  pool.Seal(block[0], Hash(2));
  pool.DrainEvents();
  pool.Unref(block[0]);
  ASSERT_OK_AND_ASSIGN(block, pool.Allocate(1));  // evicts hash 2, which comes back
  pool.Seal(block[0], Hash(2));
  const BlockEvents events = pool.DrainEvents();
  EXPECT_THAT(events.stored, IsEmpty());
  EXPECT_THAT(events.removed, IsEmpty());
}

// A pool of four blocks: block 1 was used by two prompts, so it outlives three others that were
// cached after it, and then it is no more than one of them.
TEST(BlockPool, ABlockThatMorePromptsUsedStaysForAWholePoolLonger) {
  BlockPool pool(4);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> first, pool.Allocate(1));
  pool.Seal(first[0], Hash(1));
  pool.CountUse(first);
  pool.Unref(first[0]);
  const auto cache = [&](int number) {
    const BlockId block = pool.Allocate(1)->front();
    pool.Seal(block, Hash(number));
    pool.Unref(block);
  };
  for (int number = 2; number <= 7; ++number) cache(number);
  EXPECT_TRUE(pool.Find(Hash(1)).has_value());
  EXPECT_FALSE(pool.Find(Hash(4)).has_value());
  EXPECT_THAT(pool.MostRecentlyUsed(4), ElementsAre(Hash(7), Hash(6), Hash(5), Hash(1)));
  cache(8);
  EXPECT_FALSE(pool.Find(Hash(1)).has_value());
  EXPECT_TRUE(pool.Find(Hash(5)).has_value());
}

TEST(BlockPool, QuarantinedBlocksCannotBeAllocated) {
  BlockPool pool(2);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> blocks, pool.Allocate(2));
  pool.Quarantine(blocks[0]);
  pool.Unref(blocks[1]);
  EXPECT_EQ(pool.counts().quarantined, 1);
  EXPECT_FALSE(pool.Allocate(2).ok());
  pool.EndQuarantine(blocks[0]);
  EXPECT_OK(pool.Allocate(2));
}

TEST(BlockPoolDeathTest, MisuseEndsTheProcess) {
  BlockPool pool(2);
  const BlockId block = pool.Allocate(1)->front();
  EXPECT_DEATH(pool.Ref(block), "shared while not used and sealed");
  pool.Seal(block, Hash(1));
  EXPECT_DEATH(pool.Quarantine(block), "quarantined while shared, sealed or not used");
  EXPECT_DEATH(pool.Seal(block, Hash(2)), "sealed twice");
  pool.Unref(block);
  EXPECT_DEATH(pool.Unref(block), "does not own it");
  EXPECT_DEATH(pool.Unref(BlockId(2)), "block 2 of 2");
}

TEST(BlockPool, APartIsFoundByItsTokensAndOutlivesItsOwner) {
  BlockPool pool(3);
  const BlockId owner = pool.Allocate(1)->front();
  pool.NamePart(owner, Hash(1), {5, 6, 7});
  EXPECT_EQ(pool.PartRows(Hash(1), {5, 7}), 1);
  EXPECT_EQ(pool.PartRows(Hash(2), {5, 6}), 0);
  EXPECT_EQ(pool.PartRows(Hash(1), {6, 6}), 0);
  EXPECT_EQ(pool.PartRows(Hash(1), {5, 6, 7, 8}), 3);
  EXPECT_EQ(pool.PartRows(Hash(1), {}), 0);
  pool.Unref(owner);
  EXPECT_EQ(pool.counts().cached, 1);
  EXPECT_THAT(pool.SealedHashes(), IsEmpty());
  EXPECT_THAT(pool.MostRecentlyUsed(5), IsEmpty());
  const auto pinned = pool.PinPart(Hash(1), {5, 6, 1});
  ASSERT_TRUE(pinned.has_value());
  EXPECT_EQ(pinned->block, owner);
  EXPECT_EQ(pinned->rows, 2);
  EXPECT_EQ(pool.counts().used, 1);
  pool.Unref(owner);
  pool.ForgetParts(Hash(1));
  EXPECT_EQ(pool.counts().free, 3);
  EXPECT_EQ(pool.PartRows(Hash(1), {5}), 0);
  EXPECT_THAT(pool.DrainEvents().removed, IsEmpty());
}

TEST(BlockPool, OfSeveralPartsTheLongestCommonBeginningIsFound) {
  BlockPool pool(3);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> blocks, pool.Allocate(3));
  pool.NamePart(blocks[0], Hash(1), {5, 6});
  pool.NamePart(blocks[1], Hash(1), {5, 6, 7, 8});
  pool.NamePart(blocks[2], Hash(1), {5, 9});
  const auto found = [&](std::vector<TokenId> tokens) {
    const auto part = pool.PinPart(Hash(1), tokens);
    EXPECT_TRUE(part.has_value() && pool.IsShared(part->block));
    pool.UnpinPart(part->block);
    EXPECT_FALSE(pool.IsShared(part->block));
    return std::pair(part->block, part->rows);
  };
  EXPECT_EQ(found({5, 6, 7, 1}), std::pair(blocks[1], int64_t{3}));
  EXPECT_EQ(found({5, 9, 7, 8}), std::pair(blocks[2], int64_t{2}));
  EXPECT_EQ(found({5, 6}), std::pair(blocks[0], int64_t{2})) << "the first of two";
}

TEST(BlockPool, OfBlocksCachedForTheirPartsTheOldestGoFirst) {
  const auto bound = static_cast<int>(BlockPool::kCachedPartsMax);
  BlockPool pool(bound + 3);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> blocks, pool.Allocate(bound + 3));
  for (int i = 0; i < bound + 2; ++i) {
    pool.NamePart(blocks[i], Hash(1), {TokenId{i}});
    pool.Unref(blocks[i]);
  }
  EXPECT_EQ(pool.counts().cached, bound);
  EXPECT_EQ(pool.counts().free, 2);
  EXPECT_EQ(pool.PartRows(Hash(1), {1}), 0);
  EXPECT_EQ(pool.PartRows(Hash(1), {2}), 1);
}

TEST(BlockPool, AParentHasABoundedNumberOfParts) {
  const int bound = static_cast<int>(PartIndex::kPartsOfParentMax);
  BlockPool pool(bound + 1);
  ASSERT_OK_AND_ASSIGN(const std::vector<BlockId> blocks, pool.Allocate(bound + 1));
  for (int i = 0; i <= bound; ++i) pool.NamePart(blocks[i], Hash(1), {TokenId{i}});
  EXPECT_EQ(pool.PartRows(Hash(1), {TokenId{bound - 1}}), 1);
  EXPECT_EQ(pool.PartRows(Hash(1), {TokenId{bound}}), 0);
}

TEST(BlockPool, ABlockThatFoundItsHashTakenIsSealedAgainOnceTheOtherIsGone) {
  BlockPool pool(4);
  const BlockHash hash = {0x0102, 0x0304};
  const std::vector<BlockId> blocks = *pool.Allocate(2);
  pool.Seal(blocks[0], hash);
  pool.Seal(blocks[1], hash);
  pool.SealAgain(blocks[1], hash);
  EXPECT_FALSE(pool.IsSealed(blocks[1])) << "the other one still has it";
  pool.Unref(blocks[0]);
  ASSERT_OK(pool.Allocate(3).status());  // the other one is evicted
  pool.DrainEvents();
  pool.SealAgain(blocks[1], hash);
  EXPECT_TRUE(pool.IsSealed(blocks[1]));
  EXPECT_EQ(pool.Find(hash), blocks[1]);
  EXPECT_EQ(pool.DrainEvents().stored, std::vector<BlockHash>{hash});
  pool.SealAgain(blocks[1], hash);
  EXPECT_THAT(pool.DrainEvents().stored, IsEmpty()) << "no effect on a sealed one";
  pool.Forget(blocks[1]);
  pool.SealAgain(blocks[1], hash);
  EXPECT_FALSE(pool.Find(hash).has_value()) << "it is damaged";
}

TEST(BlockPool, AForgottenBlockIsFoundByNobodyAndFreedAtItsEnd) {
  BlockPool pool(4);
  const BlockHash hash = {0x0102, 0x0304};
  const BlockId wrong = (*pool.Allocate(1))[0];
  pool.Seal(wrong, hash);
  ASSERT_EQ(pool.Match({hash}).size(), 1u);  // a second owner
  pool.DrainEvents();
  pool.Forget(wrong);
  EXPECT_EQ(pool.DrainEvents().removed, std::vector<BlockHash>{hash});
  EXPECT_EQ(pool.MatchLength({hash}), 0);
  EXPECT_TRUE(pool.SealedHashes().empty());
  const BlockId right = (*pool.Allocate(1))[0];
  pool.Seal(right, hash);
  EXPECT_EQ(pool.MatchLength({hash}), 1);
  pool.Unref(wrong);
  pool.Unref(wrong);
  EXPECT_EQ(pool.counts().free, 3);
  EXPECT_EQ(pool.MatchLength({hash}), 1) << "the right one stays";
}

TEST(BlockPool, AForgottenBlockKeepsItsBytesWhileItIsSaved) {
  BlockPool pool(2);
  const BlockHash hash = {1, 2};
  const BlockId wrong = (*pool.Allocate(1))[0];
  pool.Seal(wrong, hash);
  pool.BeginSave(wrong);
  pool.Forget(wrong);
  EXPECT_EQ(pool.DrainEvents().wrong, std::vector<BlockHash>{hash});
  pool.Unref(wrong);
  EXPECT_EQ(pool.counts().quarantined, 1) << "its bytes are still being read";
  EXPECT_FALSE(pool.Allocate(2).ok());
  pool.EndSave(wrong);
  EXPECT_EQ(pool.counts().free, 2);
}

}  // namespace
}  // namespace tandem::kv
