// Payloads in the host's arena: implements NewArenaPayloads (common/transfer/payload_store.h).
#include <utility>

#include "common/base/mutation.h"
#include "common/transfer/frame_auth.h"
#include "common/transfer/payload_store.h"

namespace tandem::transfer {
namespace {

class ArenaPayloads final : public PayloadStore {
 public:
  ArenaPayloads(const kv::BlockFormat& format, kv::BlockArena& arena, PayloadChecks checks)
      : format_(format), arena_(arena), checks_(checks) {}

  absl::StatusOr<std::optional<Outgoing>> Take(const PayloadCells& cells) override {
    const ScatterList pieces = ArenaPieces(arena_, cells);
    Outgoing outgoing;
    outgoing.bytes.assign(pieces.begin(), pieces.end());
    if (checks_ == PayloadChecks::kByChecksum) outgoing.checksum = PayloadChecksum(outgoing.bytes);
    return std::optional<Outgoing>(std::move(outgoing));
  }

  absl::StatusOr<Landing> Reserve(const PayloadCells& cells) override {
    return Landing{.bytes = ArenaPieces(arena_, cells), .hold = nullptr};
  }

  absl::Status Install(const PayloadCells& cells, const Landing& place, uint64_t checksum,
                       const std::string& order,
                       const std::optional<uint64_t>& landed_checksum) override {
    const uint64_t landed =
        landed_checksum.has_value()
            ? *landed_checksum
            : PayloadChecksum(GatherList(place.bytes.begin(), place.bytes.end()));
    if (!TANDEM_MUTATED(kChecksumIgnored) && landed != checksum) {
      return absl::DataLossError("the payload's checksum differs");
    }
    PutInOwnOrder(order, place.bytes);
    for (int32_t i = 0; i < cells.range.ordinal_count; ++i) arena_.MarkArrived(cells.block(i));
    return absl::OkStatus();
  }

 private:
  // Reorders verified bytes to the order that this process's engine reads.
  void PutInOwnOrder(const std::string& order, const ScatterList& pieces) const {
    if (order.empty() || order == format_.order) return;
    const size_t cell = static_cast<size_t>(arena_.layout().layer_block_bytes);
    for (const absl::Span<std::byte> piece : pieces) {
      for (size_t begin = 0; begin < piece.size(); begin += cell) {
        kv::Reorder(format_, order, piece.subspan(begin, cell));
      }
    }
  }

  const kv::BlockFormat format_;
  kv::BlockArena& arena_;
  const PayloadChecks checks_;
};

}  // namespace

ScatterList ArenaPieces(const kv::BlockArena& arena, const PayloadCells& cells) {
  ScatterList pieces;
  pieces.reserve(static_cast<size_t>(cells.range.cells()));
  const int32_t end = cells.range.first_layer + cells.range.layer_count;
  for (int32_t layer = cells.range.first_layer; layer < end; ++layer) {
    for (int32_t i = 0; i < cells.range.ordinal_count; ++i) {
      const absl::Span<std::byte> cell = arena.Block(layer, cells.block(i));
      // Adjacent blocks become one piece instead of many.
      if (!pieces.empty() && pieces.back().data() + pieces.back().size() == cell.data()) {
        pieces.back() = absl::MakeSpan(pieces.back().data(), pieces.back().size() + cell.size());
      } else {
        pieces.push_back(cell);
      }
    }
  }
  return pieces;
}

std::unique_ptr<PayloadStore> NewArenaPayloads(const kv::BlockFormat& format, kv::BlockArena& arena,
                                               PayloadChecks checks) {
  return std::make_unique<ArenaPayloads>(format, arena, checks);
}

}  // namespace tandem::transfer
