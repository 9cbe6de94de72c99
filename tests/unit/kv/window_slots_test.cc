// Goal: a pool with window slots agrees with a naive model after any order of operations: which
// blocks have slots, which prefixes are complete, which cached slot goes first; no slot belongs to
// two blocks, and a holder who has reserved slots always gets them. A block that is computed again
// takes its name from one without a slot.
//
// TANDEM_POOL_OPERATIONS=10000000 runs as many operations as it says.
#include <cstdlib>
#include <iostream>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/kv/block_pool.h"
#include "tests/testing/status_matchers.h"

namespace tandem::kv {
namespace {

constexpr int64_t kBlocks = 40, kSlots = 16, kWindowBlocks = 3;

// The chain of `family`: block i follows block i - 1.
std::vector<BlockHash> Chain(uint64_t family, int64_t length) {
  std::vector<BlockHash> hashes;
  for (int64_t i = 0; i < length; ++i)
    hashes.push_back({family * 1000 + static_cast<uint64_t>(i), family});
  return hashes;
}

// Sequences as a scheduler would run them: each matches a prefix, computes blocks one by one, gives
// back the slots that its window has left, and ends.
class SlotFuzzer {
 public:
  explicit SlotFuzzer(uint64_t seed)
      : random_(seed),
        table_(std::make_shared<SlotTable>(kBlocks, kSlots)),
        pool_(kBlocks, table_, kWindowBlocks) {}

  void Step() {
    const size_t choice = random_() % 8;
    if (choice < 2 || sequences_.empty()) return Begin();
    Sequence& sequence = sequences_[random_() % sequences_.size()];
    if (choice == 2) return End(sequence);
    if (choice == 3) return Quarantine(sequence);
    if (choice == 4) return SealAgain(sequence);
    Grow(sequence);
  }

  // What must hold after each operation.
  void Check() {
    std::set<int32_t> slots;
    int64_t with_slot = 0;
    for (int32_t i = 0; i < kBlocks; ++i) {
      const int32_t slot = table_->slot(BlockId(i));
      if (slot == SlotTable::kNone) continue;
      ++with_slot;
      ASSERT_TRUE(slot >= 0 && slot < kSlots && slots.insert(slot).second) << "slot " << slot;
    }
    const WindowSlots::Counts counts = pool_.slot_counts();
    ASSERT_EQ(counts.free, kSlots - with_slot);
    ASSERT_EQ(counts.free + counts.cached + counts.held + counts.quarantined, kSlots);
    std::set<BlockId> held;
    int64_t reserved = 0;
    for (const Sequence& sequence : sequences_) {
      reserved += kReserved;
      for (size_t i = sequence.first_slot; i < sequence.blocks.size(); ++i) {
        held.insert(sequence.blocks[i]);
        ASSERT_TRUE(pool_.HasSlot(sequence.blocks[i]));
      }
    }
    ASSERT_EQ(counts.held, std::ssize(held));
    ASSERT_EQ(counts.reserved, reserved);
    ASSERT_LE(counts.held, counts.reserved);
    CheckMatches();
  }

  int64_t names_taken_over() const { return names_taken_over_; }
  int64_t shortened() const { return shortened_; }
  int64_t sealed_again() const { return sealed_again_; }

 private:
  static constexpr int64_t kReserved = kWindowBlocks + 2;
  struct Sequence {
    uint64_t family = 0;
    std::vector<BlockId> blocks;  // all of them full
    size_t first_slot = 0;        // it holds the slots from this one on
  };

  // The longest prefix with all blocks and the slots of the last ones, directly from the contract.
  int64_t NaiveLength(const std::vector<BlockHash>& hashes) const {
    int64_t longest = 0;
    for (int64_t n = 1; n <= std::ssize(hashes); ++n) {
      bool complete = true;
      for (int64_t i = 0; i < n; ++i) {
        const auto block = pool_.Find(hashes[i]);
        complete &= block.has_value() && (i < n - kWindowBlocks || pool_.HasSlot(*block));
      }
      if (complete) longest = n;
    }
    return longest;
  }

  void CheckMatches() {
    const auto hashes = Chain(random_() % 3, 14);
    const int64_t length = pool_.MatchLength(hashes);
    ASSERT_EQ(length, NaiveLength(hashes));
    int64_t blocks = 0;
    while (blocks < std::ssize(hashes) && pool_.Find(hashes[blocks]).has_value()) ++blocks;
    if (length < blocks) ++shortened_;
  }

  void Begin() {
    if (!pool_.ReserveSlots(kReserved)) return;
    Sequence sequence;
    sequence.family = random_() % 3;
    sequence.blocks = pool_.Match(Chain(sequence.family, random_() % 12));
    sequence.first_slot = static_cast<size_t>(pool_.FirstWindowed(std::ssize(sequence.blocks)));
    sequences_.push_back(std::move(sequence));
  }

  void Grow(Sequence& sequence) {
    if (sequence.blocks.size() >= 14) return;
    const auto block = pool_.Allocate(1);
    if (!block.ok()) return;
    // The window leaves a block; the slot for the next one is there, because it is reserved.
    while (sequence.blocks.size() - sequence.first_slot >= kReserved)
      pool_.UnrefSlots({&sequence.blocks[sequence.first_slot++], 1});
    pool_.AddSlots(*block);
    const BlockHash hash = Chain(sequence.family, 14)[sequence.blocks.size()];
    const auto before = pool_.Find(hash);
    const bool incomplete = before.has_value() && !pool_.HasSlot(*before);
    pool_.Seal(block->front(), hash);
    ASSERT_EQ(pool_.Find(hash) == block->front(), !before.has_value() || incomplete);
    names_taken_over_ += incomplete ? 1 : 0;
    sequence.blocks.push_back(block->front());
  }

  // As a sequence does before it lends its blocks.
  void SealAgain(Sequence& sequence) {
    const std::vector<BlockHash> chain = Chain(sequence.family, 14);
    for (size_t i = 0; i < sequence.blocks.size(); ++i) {
      const bool has_name = pool_.IsSealed(sequence.blocks[i]);
      pool_.SealAgain(sequence.blocks[i], chain[i]);
      ASSERT_TRUE(pool_.Find(chain[i]).has_value());
      sealed_again_ += !has_name && pool_.IsSealed(sequence.blocks[i]);
    }
  }

  void End(Sequence& sequence) {
    pool_.UnrefSlots(absl::MakeConstSpan(sequence.blocks).subspan(sequence.first_slot));
    pool_.ReleaseSlots(kReserved);
    for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block)
      pool_.Unref(*block);
    sequence = std::move(sequences_.back());
    sequences_.pop_back();
  }

  // A block whose bytes may still land leaves, and comes back: nothing else got its slot meanwhile.
  void Quarantine(Sequence&) {
    if (!pool_.ReserveSlots(1)) return;
    const auto block = pool_.Allocate(1);
    if (block.ok()) {
      pool_.AddSlots(*block);
      const int32_t slot = table_->slot(block->front());
      pool_.Quarantine(block->front());
      ASSERT_EQ(table_->slot(block->front()), slot);
      ASSERT_EQ(pool_.slot_counts().quarantined, 1);
      pool_.EndQuarantine(block->front());
      ASSERT_FALSE(pool_.HasSlot(block->front()));
    }
    pool_.ReleaseSlots(1);
  }

  std::mt19937_64 random_;
  const std::shared_ptr<SlotTable> table_;
  BlockPool pool_;
  std::vector<Sequence> sequences_;
  int64_t names_taken_over_ = 0, shortened_ = 0, sealed_again_ = 0;
};

TEST(WindowSlotsModel, AgreesWithTheNaiveModel) {
  int64_t operations = 60'000;
  if (const char* text = std::getenv("TANDEM_POOL_OPERATIONS"); text != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &operations));
  }
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  SlotFuzzer fuzzer(seed);
  for (int64_t i = 0; i < operations; ++i) {
    fuzzer.Step();
    if (HasFatalFailure()) FAIL() << "seed " << seed << ", operation " << i;
    fuzzer.Check();
    if (HasFatalFailure()) FAIL() << "seed " << seed << ", operation " << i;
  }
  EXPECT_GT(fuzzer.names_taken_over(), 0);
  EXPECT_GT(fuzzer.shortened(), 0);
  EXPECT_GT(fuzzer.sealed_again(), 0);
}

// Two sequences share the block that loses its hash.
TEST(WindowSlots, ABlockWhoseHashWasTakenIsSealedAgain) {
  const auto table = std::make_shared<SlotTable>(4, 2);
  BlockPool pool(4, table, 1);
  ASSERT_TRUE(pool.ReserveSlots(2));
  const BlockHash hash{1, 1};
  const BlockId first = pool.Allocate(1)->front();
  pool.AddSlots({&first, 1});
  pool.Seal(first, hash);
  ASSERT_EQ(pool.MatchBlocks({&hash, 1}), std::vector<BlockId>{first});
  pool.UnrefSlots({&first, 1});
  // Its slot goes to others, and an equal block with a slot takes its hash.
  const std::vector<BlockId> others = *pool.Allocate(2);
  pool.AddSlots(others);
  ASSERT_FALSE(pool.HasSlot(first));
  pool.Seal(others[0], hash);
  EXPECT_EQ(pool.Find(hash), others[0]);
  EXPECT_FALSE(pool.IsSealed(first));
  pool.UnrefSlots(others);
  for (const BlockId block : others) pool.Unref(block);
  ASSERT_TRUE(pool.Allocate(3).ok()) << "the equal one is evicted";
  pool.SealAgain(first, hash);
  EXPECT_EQ(pool.Find(hash), first);
  pool.Unref(first);
  EXPECT_EQ(pool.counts().cached, 0) << "one of two references";
  pool.Unref(first);
  EXPECT_EQ(pool.counts().cached, 1);
}

// A block that is being saved keeps its slot, and its name, until the save ends.
TEST(WindowSlots, ASaveKeepsTheSlot) {
  const auto table = std::make_shared<SlotTable>(4, 2);
  BlockPool pool(4, table, 1);
  ASSERT_TRUE(pool.ReserveSlots(2));
  const BlockId first = pool.Allocate(1)->front();
  pool.AddSlots({&first, 1});
  pool.Seal(first, {1, 1});
  pool.BeginSave(first);
  pool.UnrefSlots({&first, 1});
  pool.Unref(first);
  EXPECT_TRUE(pool.HasSlot(first));
  EXPECT_EQ(pool.slot_counts().held, 1);
  EXPECT_FALSE(pool.ReserveSlots(1));
  pool.EndSave(first);
  pool.ReleaseSlots(1);
  EXPECT_EQ(pool.slot_counts().cached, 1);
  // Two others need both slots: the block keeps its name, and ends no prefix.
  const std::vector<BlockId> others = *pool.Allocate(2);
  ASSERT_TRUE(pool.ReserveSlots(1));
  pool.AddSlots(others);
  EXPECT_FALSE(pool.HasSlot(first));
  const BlockHash hash{1, 1};
  EXPECT_EQ(pool.Find(hash), first);
  EXPECT_EQ(pool.MatchLength({&hash, 1}), 0);
  EXPECT_EQ(pool.MatchBlocks({&hash, 1}), std::vector<BlockId>{first});
  EXPECT_FALSE(pool.PinWhole(hash).has_value());
}

}  // namespace
}  // namespace tandem::kv
