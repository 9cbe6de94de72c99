// Where payloads come from and go to: this process's blocks, in the host's arena or in a device's
// memory (device_payloads.h). A payload's bytes are the same either way: its range's cells, layer
// by layer and block by block, under XXH3; so peers need not know which kind the other one has.
// Thread safety: none; the transfer thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/kv/block_arena.h"
#include "common/kv/block_format.h"
#include "common/transfer/block_range.h"
#include "common/transfer/kv_transport.h"

namespace tandem::transfer {

// A range of a lease or an export, and where its blocks lie: blocks[i] is ordinal
// first_ordinal + i. REQUIRES: the range lies inside the blocks and the layers.
struct PayloadCells {
  BlockRange range;
  absl::Span<const BlockId> blocks;
  int32_t first_ordinal = 0;

  BlockId block(int32_t i) const {
    return blocks[static_cast<size_t>(range.first_ordinal - first_ordinal + i)];
  }
};

// Keeps a payload's bytes, or its place, in being until it ends.
class PayloadHold {
 public:
  virtual ~PayloadHold() = default;
};

class PayloadStore {
 public:
  struct Outgoing {
    GatherList bytes;
    uint64_t checksum = 0;
    std::unique_ptr<PayloadHold> hold;  // null: the bytes stay as long as the blocks do
  };
  struct Place {
    ScatterList bytes;
    std::unique_ptr<PayloadHold> hold;  // as in Outgoing
  };

  virtual ~PayloadStore() = default;

  // The payload of cells that are final. nullopt: there is no room for it until a hold ends.
  virtual absl::StatusOr<std::optional<Outgoing>> Take(const PayloadCells& cells) = 0;
  // Where a payload for the cells may land; the blocks are the lease's, their bytes its own until
  // Install. Errors: kInvalidArgument for a payload larger than any place.
  virtual absl::StatusOr<Place> Reserve(const PayloadCells& cells) = 0;
  // What landed becomes the cells' contents, in this process's order, if it has `checksum`.
  // `order`: of the elements as they came. Errors: kDataLoss when the checksum differs.
  virtual absl::Status Install(const PayloadCells& cells, const Place& place, uint64_t checksum,
                               const std::string& order) = 0;
};

// The cells' bytes in `arena`, in payload order, neighbours as one piece.
ScatterList ArenaPieces(const kv::BlockArena& arena, const PayloadCells& cells);

// Payloads that land in the arena's blocks and leave from there; installed blocks are marked
// arrived. `arena` outlives it.
std::unique_ptr<PayloadStore> NewArenaPayloads(const kv::BlockFormat& format,
                                               kv::BlockArena& arena);

}  // namespace tandem::transfer
