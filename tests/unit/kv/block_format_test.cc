// Goal: a reordered block holds the same elements, where the new order puts them, for all pairs of
// orders. CheckReorder rejects unknown orders by name, and Contents() names everything that
// matters.
#include "common/kv/block_format.h"

#include <cstring>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace tandem::kv {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

constexpr int kHeads = 2, kHeadDim = 32, kTokens = 48;

// The index of an element in an order, computed from the dimensions in the order's description.
size_t PlaceOf(absl::string_view order, int slab, int token, int d) {
  const bool value = slab % 2 != 0;
  size_t place = static_cast<size_t>(slab);
  const auto dimension = [&place](int size, int index) {
    place = place * static_cast<size_t>(size) + static_cast<size_t>(index);
  };
  if (order == kRowsOrder || (order == kTilesOrder && value)) {
    dimension(kTokens, token);
    dimension(kHeadDim, d);
  } else if (order == kTilesOrder) {
    dimension(kTokens / 16, token / 16);
    dimension(kHeadDim, d);
    dimension(16, token % 16);
  } else if (!value) {
    dimension(kTokens / 16, token / 16);
    dimension(kHeadDim / 2, d / 2);
    dimension(16, token % 16);
    dimension(2, d % 2);
  } else {
    dimension(kTokens / 2, token / 2);
    dimension(kHeadDim, d);
    dimension(2, token % 2);
  }
  return place;
}

std::vector<uint16_t> BlockIn(absl::string_view order) {
  std::vector<uint16_t> block(2 * kHeads * kTokens * kHeadDim);
  uint16_t next = 0;
  for (int slab = 0; slab < 2 * kHeads; ++slab) {
    for (int token = 0; token < kTokens; ++token) {
      for (int d = 0; d < kHeadDim; ++d) block[PlaceOf(order, slab, token, d)] = next++;
    }
  }
  return block;
}

BlockFormat FormatIn(absl::string_view order) {
  return {"bf16", kHeads, kHeadDim, kTokens, 4, std::string(order)};
}

TEST(BlockFormat, ReordersBetweenAllPairsOfOrders) {
  for (absl::string_view from : {kRowsOrder, kTilesOrder, kPairsOrder}) {
    for (absl::string_view to : {kRowsOrder, kTilesOrder, kPairsOrder}) {
      const BlockFormat format = FormatIn(to);
      ASSERT_OK(CheckReorder(format, from));
      std::vector<uint16_t> block = BlockIn(from);
      Reorder(format, from,
              absl::MakeSpan(reinterpret_cast<std::byte*>(block.data()),
                             block.size() * sizeof(uint16_t)));
      EXPECT_EQ(block, BlockIn(to)) << from << " to " << to;
    }
  }
}

TEST(BlockFormat, RefusesWhatItCannotReorder) {
  EXPECT_OK(CheckReorder(FormatIn(kRowsOrder), "")) << "unnamed: the receiver's own";
  EXPECT_THAT(CheckReorder(FormatIn(kRowsOrder), "spirals"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("spirals"), HasSubstr("rows"))));
  BlockFormat int8 = FormatIn(kRowsOrder);
  int8.elements = "int8";
  EXPECT_THAT(CheckReorder(int8, kTilesOrder),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("int8")));
  EXPECT_THAT(CheckReorder(BlockFormat(), kTilesOrder),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("tiles")));
}

TEST(BlockFormat, ContentsNameAllThatMustBeEqual) {
  const std::string contents = FormatIn(kRowsOrder).Contents();
  EXPECT_EQ(contents, "bf16 2x32 4 layers 48 tokens");
  EXPECT_EQ(FormatIn(kPairsOrder).Contents(), contents);
  EXPECT_EQ(FormatIn("spirals").Contents(), "") << "nobody can reorder it";
  EXPECT_EQ(BlockFormat().Contents(), "");
}

}  // namespace
}  // namespace tandem::kv
