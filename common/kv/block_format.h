// The order of elements inside one block of one layer. Engines of different numerics store equal
// contents in different orders. Where the operator allows such nodes to exchange KV, the receiving
// node reorders blocks into its own order.
// Thread safety: plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::kv {

// The orders that Reorder knows. A block is [num_kv_heads][K, V][slab]; slabs are
//   rows:   K and V [block_tokens][head_dim]: GPUs and the reference
//   tiles:  K [block_tokens/16][head_dim][16], V as rows: the CPU's vector classes
//   pairs:  K [block_tokens/16][head_dim/2][16][2], V [block_tokens/2][head_dim][2]: the CPU
//           classes with bf16 dot products and with AMX
inline constexpr absl::string_view kRowsOrder = "rows";
inline constexpr absl::string_view kTilesOrder = "tiles";
inline constexpr absl::string_view kPairsOrder = "pairs";

struct BlockFormat {
  // The elements' type, such as "bf16". Empty: nodes of other numerics cannot read these blocks.
  std::string elements;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;
  int32_t num_layers = 0;
  std::string order;
  int32_t window_tokens = 0;  // the layout's: nodes send windowed layers' last blocks only

  // Everything that must be equal on both nodes of an exchange, as text; empty when no exchange is
  // possible. All engines agree on the rest: they rotate keys by halves of a head, and store layers
  // in the model's order.
  std::string Contents() const;
};

// OK when Reorder can put blocks of `order` into the format's own order; otherwise
// kFailedPrecondition, which names both orders. An empty `order` stands for the format's own.
absl::Status CheckReorder(const BlockFormat& format, absl::string_view order);
// Reorders one block of one layer in place, from `order` to the format's own order. REQUIRES:
// CheckReorder is OK, and `block` has the format's size in bytes.
void Reorder(const BlockFormat& format, absl::string_view order, absl::Span<std::byte> block);

}  // namespace tandem::kv
