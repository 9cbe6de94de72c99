// What a block of one layer holds and in which order, for the one case where nodes of different
// numerics exchange KV: a fleet whose operator allows it. Equal contents may lie in different
// orders; whoever receives blocks reorders them to its own. Thread safety: values, pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::kv {

// Orders of elements that Reorder knows. A block is [num_kv_heads][K, V][slab]; slabs are
//   rows:   K and V [block_tokens][head_dim]: GPUs and the reference
//   tiles:  K [block_tokens/16][head_dim][16], V as rows: the CPU's vector classes
//   pairs:  K [block_tokens/16][head_dim/2][16][2], V [block_tokens/2][head_dim][2]: the CPU's
//           class with bf16 dot products
inline constexpr absl::string_view kRowsOrder = "rows";
inline constexpr absl::string_view kTilesOrder = "tiles";
inline constexpr absl::string_view kPairsOrder = "pairs";

struct BlockFormat {
  // What the elements are, beyond the model's fingerprint: "bf16". Empty: these blocks mean nothing
  // to nodes of other numerics.
  std::string elements;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;
  int32_t num_layers = 0;
  std::string order;

  // All that must be equal for an exchange, as text; empty where none is possible. Keys are rotated
  // by halves of a head and layers follow in the model's order in every engine.
  std::string Contents() const;
};

// kFailedPrecondition unless blocks in `order` can be put into the format's own order (names both).
// An empty order is the format's own.
absl::Status CheckReorder(const BlockFormat& format, absl::string_view order);
// Puts one block of one layer, which lies in `order`, into the format's own order. REQUIRES:
// CheckReorder is OK and the block has the format's size.
void Reorder(const BlockFormat& format, absl::string_view order, absl::Span<std::byte> block);

}  // namespace tandem::kv
