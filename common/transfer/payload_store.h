// Where payloads come from and go to: this process's KV blocks, in the host's arena or in a
// device's memory (device_payloads.h). A payload has the same bytes and the same XXH3 checksum
// either way: the cells of its range, layer by layer and block by block. So a peer need not know
// where the other one's blocks lie. Thread safety: none; the transfer thread. Owner: the
// KvTransferContext, or the transport whose payloads lie in a device's memory.
#pragma once

#include <cstdint>
#include <limits>
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

// Keeps a payload's bytes, or its place, valid until it is destroyed.
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
  struct Landing {
    ScatterList bytes;
    std::unique_ptr<PayloadHold> hold;  // as in Outgoing
  };

  virtual ~PayloadStore() = default;

  // The payload of cells whose contents are final. nullopt: no room for it until a hold ends.
  virtual absl::StatusOr<std::optional<Outgoing>> Take(const PayloadCells& cells) = 0;
  // How many payloads Take has room for, until holds end.
  virtual int64_t room() const { return std::numeric_limits<int64_t>::max(); }
  // Where a payload for the cells may land. The blocks belong to a lease; nothing reads them before
  // Install. Errors: kInvalidArgument for a payload larger than any place.
  virtual absl::StatusOr<Landing> Reserve(const PayloadCells& cells) = 0;
  // Makes what landed in `place` the cells' contents, in this process's element order, if it has
  // `checksum`. `order`: of the elements as they arrived. `landed_checksum`: of the
  // bytes in `place`, if this process has computed it already. Errors: kDataLoss when the checksum
  // differs.
  virtual absl::Status Install(const PayloadCells& cells, const Landing& place, uint64_t checksum,
                               const std::string& order,
                               const std::optional<uint64_t>& landed_checksum) = 0;
};

// The cells' bytes in `arena`, in payload order, neighbours as one piece.
ScatterList ArenaPieces(const kv::BlockArena& arena, const PayloadCells& cells);

// Who notices a damaged payload: the receiver by the checksum in its header, or the transport.
enum class PayloadChecks { kByChecksum, kByTransport };

// Payloads that land in the arena's blocks and leave from there; installed blocks are marked
// arrived. With kByTransport, all checksums are 0. `arena` outlives it.
std::unique_ptr<PayloadStore> NewArenaPayloads(const kv::BlockFormat& format, kv::BlockArena& arena,
                                               PayloadChecks checks = PayloadChecks::kByChecksum);

}  // namespace tandem::transfer
