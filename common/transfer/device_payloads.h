// The PayloadStore for KV blocks that lie in a device's memory. A slot is a contiguous range of
// device memory that holds one payload. To send, the device gathers the blocks into a slot and
// computes the checksum there. A received payload lands in a slot; only when the device computes
// the same checksum as in the header does it scatter the slot to the blocks. Transports that reach
// device memory send and receive slots directly; others use the slot's twin, pinned host memory
// (StagingTransport).
//
// Each call enqueues on this store's stream, beside the engine's, and waits for it: the transfer
// thread blocks meanwhile, an engine step never does.
//
// Bounds: `send_slots` payloads on their way out, then Take has no room; `receive_slots` on their
// way in, then payloads land in the arena's memory and pass through a slot reserved for that.
// Invariants: a slot belongs to one hold at a time and is free when the hold ends; nothing is
// scattered that was not verified in the memory from which it is scattered.
// Thread safety: none; the transfer thread. Owner: the transport whose payloads lie here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/transfer/payload_store.h"
#include "kernels/api/device.h"
#include "kernels/api/device_blocks.h"

namespace tandem::transfer {

struct DevicePayloadOptions {
  kv::BlockFormat format;               // of this process's blocks
  int64_t payload_bytes_max = 1 << 20;  // or one cell, where that is more
  int send_slots = 32;
  int receive_slots = 32;

  // One more is for payloads that landed in the arena's memory.
  int slots() const { return send_slots + receive_slots + 1; }
};

class DevicePayloads final : public PayloadStore {
 public:
  // `arena` has the layout of `blocks`; both outlive the store. Errors: kInvalidArgument for cells
  // that the kernels cannot copy or checksum; the device's errors, for its memory.
  static absl::StatusOr<std::shared_ptr<DevicePayloads>> Create(const DevicePayloadOptions& options,
                                                                const kernels::DeviceBlocks& blocks,
                                                                kv::BlockArena& arena);

  absl::StatusOr<std::optional<Outgoing>> Take(const PayloadCells& cells) override;
  int64_t room() const override { return static_cast<int64_t>(pool_->free_send.size()); }
  absl::StatusOr<Landing> Reserve(const PayloadCells& cells) override;
  absl::Status Install(const PayloadCells& cells, const Landing& place, uint64_t checksum,
                       const std::string& order,
                       const std::optional<uint64_t>& landed_checksum) override;

  // ---- for transports
  // Whether a piece of a payload lies in a slot.
  bool Holds(const std::byte* piece) const;
  bool host_addressable() const { return device_.properties().host_addressable; }
  // The pinned host memory that belongs to the piece's slot. REQUIRES, for these three:
  // Holds(piece.data()).
  absl::Span<std::byte> Twin(absl::Span<const std::byte> piece) const;
  absl::Status CopyToTwin(absl::Span<const std::byte> piece);
  absl::Status CopyFromTwin(absl::Span<const std::byte> piece);
  // Copies a payload, whose pieces may lie in slots or in host memory, to other memory of the
  // device, and back.
  absl::Status FillDevice(std::byte* device, const GatherList& from);
  absl::Status EmptyDevice(const std::byte* device, const ScatterList& to);

  // Ranges of one block for a trial: the smallest payload there is, and the largest that fits a
  // slot. Empty when the arena has no second block to copy to.
  std::vector<BlockRange> TrialRanges() const;
  // Slots that belong to a hold.
  int slots_in_use() const;
  // For tests: payloads that landed in host memory because all slots were taken.
  int64_t spilled() const { return spilled_; }

 private:
  // Shared with the holds: a transport may destroy a completion, and so a hold, after the store.
  struct SlotPool {
    std::vector<int> free_send, free_receive;
  };
  class SlotHold;

  DevicePayloads(const DevicePayloadOptions& options, const kernels::DeviceBlocks& blocks,
                 kv::BlockArena& arena);
  absl::Status Allocate();
  absl::Span<std::byte> Slot(int index, int64_t bytes) const;
  int64_t Bytes(const PayloadCells& cells) const;
  int upload_slot() const { return options_.slots() - 1; }
  // Enqueues the copy between a payload and its cells, in either direction.
  void Move(const PayloadCells& cells, absl::Span<std::byte> payload, bool gather);
  // Computed by the device, after everything that was enqueued before.
  absl::StatusOr<uint64_t> Checksum(absl::Span<const std::byte> payload);
  // Reorders verified bytes to the order that this process's engine reads, and verifies the result.
  absl::Status PutInOwnOrder(const std::string& order, absl::Span<std::byte> payload,
                             uint64_t checksum);

  const DevicePayloadOptions options_;
  const kernels::DeviceBlocks blocks_;
  kernels::Device& device_;
  kv::BlockArena& arena_;
  const int64_t cell_bytes_, slot_bytes_;
  int64_t spilled_ = 0;
  std::shared_ptr<SlotPool> pool_ = std::make_shared<SlotPool>();
  std::unique_ptr<kernels::DeviceStream> stream_;
  kernels::DeviceBuffer slots_, twins_;                      // [slots][slot_bytes_]
  kernels::DeviceBuffer device_checksum_, pinned_checksum_;  // of one payload
};

}  // namespace tandem::transfer
