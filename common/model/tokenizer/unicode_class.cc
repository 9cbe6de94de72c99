#include "common/model/tokenizer/unicode_class.h"

#include <array>
#include <map>
#include <memory>
#include <vector>

namespace tandem::model::tokenizer_internal {
namespace {

struct ClassRange {
  uint32_t first;
  uint32_t last;
  UnicodeClass code_class;
};
constexpr ClassRange kRanges[] = {
#include "common/model/tokenizer/unicode_ranges.inc"
};

constexpr uint32_t kNumCodePoints = 0x110000;
constexpr uint32_t kBlockSize = 256;

// Two stages: code point / 256 to a block, equal blocks shared (about 50 KiB in all).
struct ClassTable {
  using Block = std::array<uint8_t, kBlockSize>;
  std::array<uint16_t, kNumCodePoints / kBlockSize> block_of;
  std::vector<Block> blocks;

  ClassTable() {
    std::vector<uint8_t> flat(kNumCodePoints, kOther);
    for (const ClassRange& range : kRanges) {
      for (uint32_t c = range.first; c <= range.last; ++c) flat[c] = range.code_class;
    }
    std::map<Block, uint16_t> seen;
    for (uint32_t b = 0; b < block_of.size(); ++b) {
      Block block;
      for (uint32_t i = 0; i < kBlockSize; ++i) block[i] = flat[b * kBlockSize + i];
      const auto [it, is_new] = seen.emplace(block, static_cast<uint16_t>(blocks.size()));
      if (is_new) blocks.push_back(block);
      block_of[b] = it->second;
    }
  }
};

const ClassTable& Table() {
  static const ClassTable table;
  return table;
}

}  // namespace

UnicodeClass ClassOf(char32_t code_point) {
  if (code_point >= kNumCodePoints) return kOther;
  const ClassTable& table = Table();
  return static_cast<UnicodeClass>(
      table.blocks[table.block_of[code_point / kBlockSize]][code_point % kBlockSize]);
}

}  // namespace tandem::model::tokenizer_internal
