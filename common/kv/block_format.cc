#include "common/kv/block_format.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace tandem::kv {
namespace {

constexpr int32_t kTileTokens = 16;

bool IsKnown(absl::string_view order) {
  return order == kRowsOrder || order == kTilesOrder || order == kPairsOrder;
}

// The index, in its slab, of element `d` of a token's K or V.
size_t OffsetOf(absl::string_view order, const BlockFormat& format, bool value, int32_t token,
                int32_t d) {
  const int32_t head_dim = format.head_dim;
  if (order == kPairsOrder && value) return (token & ~1) * head_dim + d * 2 + token % 2;
  if (order == kRowsOrder || value) return token * head_dim + d;
  const int32_t tile = token / kTileTokens * kTileTokens * head_dim;
  const int32_t lane = token % kTileTokens;
  if (order == kTilesOrder) return tile + d * kTileTokens + lane;
  return tile + (d / 2 * kTileTokens + lane) * 2 + d % 2;
}

}  // namespace

std::string BlockFormat::Contents() const {
  if (elements.empty() || !IsKnown(order)) return "";
  return absl::StrCat(elements, " ", num_kv_heads, "x", head_dim, " ", num_layers, " layers ",
                      block_tokens, " tokens",
                      window_tokens > 0 ? absl::StrCat(" window ", window_tokens) : "");
}

absl::Status CheckReorder(const BlockFormat& format, absl::string_view order) {
  if (order.empty() || order == format.order) return absl::OkStatus();
  if (format.elements == "bf16" && IsKnown(format.order) && IsKnown(order)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("KV in order \"", order.substr(0, 32),
                                                    "\" cannot be put into order \"", format.order,
                                                    "\" of \"", format.elements, "\" elements"));
}

void Reorder(const BlockFormat& format, absl::string_view order, absl::Span<std::byte> block) {
  if (order.empty() || order == format.order) return;
  const size_t slab = static_cast<size_t>(format.block_tokens) * format.head_dim;
  const size_t slabs = static_cast<size_t>(format.num_kv_heads) * 2;
  TANDEM_CHECK(block.size() == slabs * slab * sizeof(uint16_t), "a block of ", block.size(),
               " bytes, expected ", slabs * slab * sizeof(uint16_t));
  std::vector<uint16_t> from(slabs * slab);
  std::memcpy(from.data(), block.data(), block.size());
  for (size_t s = 0; s < slabs; ++s) {
    const bool value = s % 2 != 0;
    const uint16_t* source = from.data() + s * slab;
    std::byte* to = block.data() + s * slab * sizeof(uint16_t);
    for (int32_t token = 0; token < format.block_tokens; ++token) {
      for (int32_t d = 0; d < format.head_dim; ++d) {
        std::memcpy(to + OffsetOf(format.order, format, value, token, d) * sizeof(uint16_t),
                    source + OffsetOf(order, format, value, token, d), sizeof(uint16_t));
      }
    }
  }
}

}  // namespace tandem::kv
