// Goal: blocks make room by age, but none before the blocks that follow it: what is left of a
// prefix is its beginning. A naive model that looks at each block says what is right.
#include "common/storage/use_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <random>

namespace tandem::storage {
namespace {

using ::testing::ElementsAre;

constexpr kv::BlockHash kNone;
kv::BlockHash Hash(uint64_t n) { return {n * 0x9e3779b97f4a7c15u + 1, n}; }

class UseOrderTest : public ::testing::Test {
 protected:
  // A prefix of names, each the parent of the next.
  void Add(const std::vector<uint64_t>& names) {
    for (size_t i = 0; i < names.size(); ++i)
      order_.Add(Hash(names[i]), i == 0 ? kNone : Hash(names[i - 1]));
  }
  // The order in which all of them make room.
  std::vector<uint64_t> Drain() {
    std::vector<uint64_t> removed;
    while (const auto hash = order_.ToRemoveFor(kNone)) {
      removed.push_back(hash->low);
      order_.Remove(*hash);
    }
    return removed;
  }

  UseOrder order_;
};

TEST_F(UseOrderTest, APrefixLosesItsLastBlocksFirst) {
  Add({1, 2, 3});
  Add({11, 12});
  EXPECT_THAT(Drain(), ElementsAre(3, 2, 1, 12, 11));
}

TEST_F(UseOrderTest, AUseOfTheLastBlockIsOneOfThePrefix) {
  Add({1, 2, 3});
  Add({11, 12});
  order_.Use(Hash(3));
  EXPECT_THAT(Drain(), ElementsAre(12, 11, 3, 2, 1));
}

TEST_F(UseOrderTest, AUseOfABeginningKeepsThatAlone) {
  Add({1, 2, 3});
  Add({11, 12});
  order_.Use(Hash(2));
  EXPECT_THAT(Drain(), ElementsAre(3, 12, 11, 2, 1));
}

TEST_F(UseOrderTest, ABranchIsNoReasonToKeepAnother) {
  Add({1, 2, 3});
  order_.Add(Hash(4), Hash(1));
  order_.Use(Hash(3));
  EXPECT_THAT(Drain(), ElementsAre(4, 3, 2, 1));
}

TEST_F(UseOrderTest, AParentMakesNoRoomForItsChild) {
  Add({1, 2});
  EXPECT_EQ(order_.ToRemoveFor(Hash(2)), std::nullopt);
  Add({11});
  EXPECT_EQ(order_.ToRemoveFor(Hash(2)), Hash(11));
}

TEST_F(UseOrderTest, AParentThatComesBackStaysForItsChildren) {
  Add({1, 2});
  order_.Remove(Hash(1));
  order_.Add(Hash(1), kNone);
  EXPECT_THAT(Drain(), ElementsAre(2, 1));
}

// As the header says it, in other words.
class Naive {
 public:
  void Add(uint64_t n, uint64_t parent) { blocks_[n] = {parent, now_++}; }
  void Use(uint64_t n) {
    if (blocks_.count(n) > 0) blocks_[n].used = now_++;
  }
  void Remove(uint64_t n) {
    const Block block = blocks_[n];
    blocks_.erase(n);
    if (const auto it = blocks_.find(block.parent); it != blocks_.end())
      it->second.used = std::max(it->second.used, block.used);
  }
  std::optional<uint64_t> ToRemoveFor(uint64_t parent) const {
    std::optional<uint64_t> oldest;
    for (const auto& [n, block] : blocks_) {
      const bool leaf = std::none_of(blocks_.begin(), blocks_.end(),
                                     [n = n](const auto& b) { return b.second.parent == n; });
      if (!leaf || n == parent) continue;
      if (!oldest.has_value() || block.used < blocks_.at(*oldest).used) oldest = n;
    }
    return oldest;
  }
  bool Has(uint64_t n) const { return blocks_.count(n) > 0; }
  size_t size() const { return blocks_.size(); }

 private:
  struct Block {
    uint64_t parent = 0, used = 0;
  };
  std::map<uint64_t, Block> blocks_;
  uint64_t now_ = 1;
};

TEST(UseOrderModel, AgreesUnderRandomOperations) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  constexpr uint64_t kNames = 24;
  constexpr size_t kSlots = 9;
  const auto name = [](uint64_t n) { return n == 0 ? kNone : Hash(n); };
  UseOrder order;
  Naive naive;
  for (int i = 0; i < 40'000; ++i) {
    const uint64_t n = 1 + random() % kNames, operation = random() % 10;
    if (operation < 6 && !naive.Has(n)) {
      const uint64_t parent = n / 2;  // a tree; 0: none
      if (naive.size() == kSlots) {
        const auto right = naive.ToRemoveFor(parent);
        const auto removed = order.ToRemoveFor(name(parent));
        ASSERT_EQ(removed.has_value(), right.has_value()) << "operation " << i;
        if (!right.has_value()) continue;
        ASSERT_EQ(*removed, Hash(*right)) << "operation " << i;
        naive.Remove(*right);
        order.Remove(*removed);
      }
      naive.Add(n, parent);
      order.Add(Hash(n), name(parent));
    } else if (operation < 9) {
      naive.Use(n);
      order.Use(Hash(n));
    } else if (naive.Has(n)) {
      naive.Remove(n);
      order.Remove(Hash(n));
    }
    ASSERT_EQ(order.Hashes().size(), naive.size());
  }
}

}  // namespace
}  // namespace tandem::storage
