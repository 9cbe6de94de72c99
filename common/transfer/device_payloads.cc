#include "common/transfer/device_payloads.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/transfer/frame_auth.h"
#include "kernels/api/device_block_copies.h"
#include "kernels/api/device_checksum.h"
#include "kernels/api/device_ops.h"

namespace tandem::transfer {
namespace {

using kernels::DeviceBuffer;

// The granularity of the gather kernel, in bytes.
constexpr int64_t kChunkBytes = 16;
// Alignment of slots, enough for every transport and kernel.
constexpr int64_t kSlotAlignment = 256;

uint64_t HostChecksum(absl::Span<const std::byte> bytes) { return PayloadChecksum({bytes}); }

}  // namespace

// A hold of one slot; returns the slot to its pool when it is destroyed.
class DevicePayloads::SlotHold final : public PayloadHold {
 public:
  SlotHold(std::shared_ptr<SlotPool> pool, std::vector<int>& from)
      : pool_(std::move(pool)), home_(from), index_(from.back()) {
    from.pop_back();
  }
  ~SlotHold() override { home_.push_back(index_); }
  int index() const { return index_; }

 private:
  const std::shared_ptr<SlotPool> pool_;  // keeps home_
  std::vector<int>& home_;
  const int index_;
};

DevicePayloads::DevicePayloads(const DevicePayloadOptions& options,
                               const kernels::DeviceBlocks& blocks, kv::BlockArena& arena)
    : options_(options),
      blocks_(blocks),
      device_(*blocks.device),
      arena_(arena),
      cell_bytes_(arena.layout().layer_block_bytes),
      slot_bytes_((std::max(options.payload_bytes_max, cell_bytes_) + kSlotAlignment - 1) /
                  kSlotAlignment * kSlotAlignment) {
  pool_->free_send.resize(static_cast<size_t>(options.send_slots));
  std::iota(pool_->free_send.begin(), pool_->free_send.end(), 0);
  pool_->free_receive.resize(static_cast<size_t>(options.receive_slots));
  std::iota(pool_->free_receive.begin(), pool_->free_receive.end(), options.send_slots);
}

absl::StatusOr<std::shared_ptr<DevicePayloads>> DevicePayloads::Create(
    const DevicePayloadOptions& options, const kernels::DeviceBlocks& blocks,
    kv::BlockArena& arena) {
  const kv::BlockLayout& layout = arena.layout();
  if (layout.layer_block_bytes % kChunkBytes != 0 ||
      layout.layer_block_bytes < kernels::kChecksumBytesMin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV blocks of ", layout.layer_block_bytes, " bytes a layer, expected a multiple of ",
        kChunkBytes, " that is at least ", kernels::kChecksumBytesMin));
  }
  TANDEM_CHECK(blocks.regions.size() == static_cast<size_t>(layout.num_layers),
               blocks.regions.size(), " regions of ", layout.num_layers, " layers");
  TANDEM_CHECK(options.send_slots > 0 && options.receive_slots > 0);
  // Shared by the transports that are stacked on each other.
  std::shared_ptr<DevicePayloads> payloads(new DevicePayloads(options, blocks, arena));
  RETURN_IF_ERROR(payloads->Allocate());
  return payloads;
}

absl::Status DevicePayloads::Allocate() {
  const size_t bytes = static_cast<size_t>(options_.slots()) * static_cast<size_t>(slot_bytes_);
  ASSIGN_OR_RETURN(stream_, device_.NewStream());
  ASSIGN_OR_RETURN(slots_, device_.Allocate(DeviceBuffer::Kind::kDevice, bytes));
  ASSIGN_OR_RETURN(twins_, device_.Allocate(DeviceBuffer::Kind::kPinnedHost, bytes));
  ASSIGN_OR_RETURN(device_checksum_,
                   device_.Allocate(DeviceBuffer::Kind::kDevice, sizeof(uint64_t)));
  ASSIGN_OR_RETURN(pinned_checksum_,
                   device_.Allocate(DeviceBuffer::Kind::kPinnedHost, sizeof(uint64_t)));
  return absl::OkStatus();
}

absl::Span<std::byte> DevicePayloads::Slot(int index, int64_t bytes) const {
  return absl::MakeSpan(slots_.as<std::byte>() + index * slot_bytes_, static_cast<size_t>(bytes));
}

int64_t DevicePayloads::Bytes(const PayloadCells& cells) const {
  return cells.range.cells() * cell_bytes_;
}

int DevicePayloads::slots_in_use() const {
  return upload_slot() - static_cast<int>(pool_->free_send.size() + pool_->free_receive.size());
}

std::vector<BlockRange> DevicePayloads::TrialRanges() const {
  if (arena_.num_blocks() < 2) return {};
  const int64_t layers = std::min<int64_t>(arena_.layout().num_layers, slot_bytes_ / cell_bytes_);
  return {{.ordinal_count = 1, .layer_count = 1},
          {.ordinal_count = 1, .layer_count = static_cast<int32_t>(layers)}};
}

absl::StatusOr<std::optional<PayloadStore::Outgoing>> DevicePayloads::Take(
    const PayloadCells& cells) {
  const int64_t bytes = Bytes(cells);
  TANDEM_CHECK(bytes <= slot_bytes_, "a payload of ", bytes, " bytes, slots have ", slot_bytes_);
  if (pool_->free_send.empty()) return std::optional<Outgoing>();
  auto hold = std::make_unique<SlotHold>(pool_, pool_->free_send);
  const absl::Span<std::byte> slot = Slot(hold->index(), bytes);
  Move(cells, slot, /*gather=*/true);
  Outgoing outgoing;
  ASSIGN_OR_RETURN(outgoing.checksum, Checksum(slot));
  outgoing.bytes = {slot};
  outgoing.hold = std::move(hold);
  return std::optional<Outgoing>(std::move(outgoing));
}

absl::StatusOr<PayloadStore::Landing> DevicePayloads::Reserve(const PayloadCells& cells) {
  const int64_t bytes = Bytes(cells);
  if (bytes > slot_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a payload of ", bytes, " bytes, device slots ", "have ", slot_bytes_));
  }
  if (pool_->free_receive.empty()) {
    ++spilled_;
    return Landing{.bytes = ArenaPieces(arena_, cells), .hold = nullptr};
  }
  // Selects the device now: the transport may write to the slot before this thread's next device
  // call.
  device_.UseOnThisThread();
  auto hold = std::make_unique<SlotHold>(pool_, pool_->free_receive);
  Landing place;
  place.bytes = {Slot(hold->index(), bytes)};
  place.hold = std::move(hold);
  return place;
}

absl::Status DevicePayloads::Install(const PayloadCells& cells, const Landing& place,
                                     uint64_t checksum, const std::string& order,
                                     const std::optional<uint64_t>&) {
  absl::Span<std::byte> payload = place.bytes.front();
  if (place.hold == nullptr) {
    payload = Slot(upload_slot(), Bytes(cells));
    std::byte* twin = Twin(payload).data();
    for (const absl::Span<std::byte> piece : place.bytes) {
      std::memcpy(twin, piece.data(), piece.size());
      twin += piece.size();
    }
    RETURN_IF_ERROR(CopyFromTwin(payload));
  }
  ASSIGN_OR_RETURN(const uint64_t landed, Checksum(payload));
  if (landed != checksum) return absl::DataLossError("the payload's checksum differs");
  RETURN_IF_ERROR(PutInOwnOrder(order, payload, checksum));
  Move(cells, payload, /*gather=*/false);
  return stream_->Synchronize();
}

void DevicePayloads::Move(const PayloadCells& cells, absl::Span<std::byte> payload, bool gather) {
  kernels::DeviceMoveCellsArgs args;
  args.payload = reinterpret_cast<char*>(payload.data());
  args.cell_bytes = cell_bytes_;
  args.gather = gather;
  const auto flush = [&] {
    device_.ops().move_cells(args, *stream_);
    args.payload += args.count * cell_bytes_;
    args.count = 0;
  };
  const int32_t end = cells.range.first_layer + cells.range.layer_count;
  for (int32_t layer = cells.range.first_layer; layer < end; ++layer) {
    for (int32_t i = 0; i < cells.range.ordinal_count; ++i) {
      args.cells[args.count++] =
          blocks_.regions[static_cast<size_t>(layer)] + cells.block(i).value() * cell_bytes_;
      if (args.count == kernels::kMoveCellsMax) flush();
    }
  }
  if (args.count > 0) flush();
}

absl::StatusOr<uint64_t> DevicePayloads::Checksum(absl::Span<const std::byte> payload) {
  kernels::DeviceChecksumArgs args;
  args.base = reinterpret_cast<const char*>(payload.data());
  args.stride_bytes = args.bytes = static_cast<int64_t>(payload.size());
  args.count = 1;
  args.checksums = device_checksum_.as<uint64_t>();
  device_.ops().checksum(args, *stream_);
  stream_->CopyOut(pinned_checksum_.data(), device_checksum_.data(), sizeof(uint64_t));
  RETURN_IF_ERROR(stream_->Synchronize());
  return *pinned_checksum_.as<uint64_t>();
}

absl::Status DevicePayloads::PutInOwnOrder(const std::string& order, absl::Span<std::byte> payload,
                                           uint64_t checksum) {
  if (order.empty() || order == options_.format.order) return absl::OkStatus();
  const absl::Span<std::byte> twin = Twin(payload);
  RETURN_IF_ERROR(CopyToTwin(payload));
  if (HostChecksum(twin) != checksum) {
    return absl::DataLossError("the payload was damaged on its way to the host");
  }
  const size_t cell = static_cast<size_t>(cell_bytes_);
  for (size_t begin = 0; begin < twin.size(); begin += cell) {
    kv::Reorder(options_.format, order, twin.subspan(begin, cell));
  }
  RETURN_IF_ERROR(CopyFromTwin(payload));
  ASSIGN_OR_RETURN(const uint64_t reordered, Checksum(payload));
  if (reordered != HostChecksum(twin)) {
    return absl::DataLossError("the reordered payload was damaged on its way to the device");
  }
  return absl::OkStatus();
}

bool DevicePayloads::Holds(const std::byte* piece) const {
  const std::byte* begin = slots_.as<std::byte>();
  return piece >= begin && piece < begin + slots_.bytes();
}

absl::Span<std::byte> DevicePayloads::Twin(absl::Span<const std::byte> piece) const {
  TANDEM_CHECK(Holds(piece.data()), "memory of no slot has no twin");
  return absl::MakeSpan(twins_.as<std::byte>() + (piece.data() - slots_.as<std::byte>()),
                        piece.size());
}

absl::Status DevicePayloads::CopyToTwin(absl::Span<const std::byte> piece) {
  stream_->CopyOut(Twin(piece).data(), piece.data(), piece.size());
  return stream_->Synchronize();
}

absl::Status DevicePayloads::CopyFromTwin(absl::Span<const std::byte> piece) {
  const absl::Span<std::byte> twin = Twin(piece);
  stream_->CopyIn(slots_.data() + (twin.data() - twins_.as<std::byte>()), twin.data(), twin.size());
  return stream_->Synchronize();
}

absl::Status DevicePayloads::FillDevice(std::byte* device, const GatherList& from) {
  for (const absl::Span<const std::byte> piece : from) {
    if (Holds(piece.data())) {
      stream_->CopyWithin(device, piece.data(), piece.size());
    } else {
      stream_->CopyIn(device, piece.data(), piece.size());
    }
    device += piece.size();
  }
  return stream_->Synchronize();
}

absl::Status DevicePayloads::EmptyDevice(const std::byte* device, const ScatterList& to) {
  for (const absl::Span<std::byte> piece : to) {
    if (Holds(piece.data())) {
      stream_->CopyWithin(piece.data(), device, piece.size());
    } else {
      stream_->CopyOut(piece.data(), device, piece.size());
    }
    device += piece.size();
  }
  return stream_->Synchronize();
}

}  // namespace tandem::transfer
