// Payloads of blocks in a device's memory. A payload that leaves is gathered into a slot, a
// contiguous range of device memory, where the device computes its checksum; one that comes lands
// in a slot, and only when the device finds the checksum of its header there it is scattered to
// the blocks. Transports that reach device memory send and receive slots as they are; others use
// the slot's twin, pinned memory of the host (StagingTransport).
//
// Each call enqueues on a stream of its own, beside the engine's, and returns when that is done;
// the transfer thread waits while earlier payloads travel. No step of the engine waits for it.
//
// Bounds: `send_slots` payloads on their way out, then Take has no room; `receive_slots` on their
// way in, then payloads land in the arena's memory and pass through a slot of their own.
// Invariants: a slot belongs to one hold at a time and is free when that ends; nothing is
// scattered that was not verified in the memory it is scattered from.
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
  kv::BlockFormat format;               // of this process' blocks
  int64_t payload_bytes_max = 1 << 20;  // or one cell, where that is more
  int send_slots = 16;
  int receive_slots = 32;
};

class DevicePayloads final : public PayloadStore {
 public:
  // `arena` has the layout of `blocks`; both outlive it. Errors: kInvalidArgument for cells that
  // the kernels cannot move or sum up; the device's, for its memory.
  static absl::StatusOr<std::shared_ptr<DevicePayloads>> Create(const DevicePayloadOptions& options,
                                                                const kernels::DeviceBlocks& blocks,
                                                                kv::BlockArena& arena);

  absl::StatusOr<std::optional<Outgoing>> Take(const PayloadCells& cells) override;
  absl::StatusOr<Place> Reserve(const PayloadCells& cells) override;
  absl::Status Install(const PayloadCells& cells, const Place& place, uint64_t checksum,
                       const std::string& order) override;

  // For transports. Whether a piece of a payload lies in a slot.
  bool Holds(const std::byte* piece) const;
  bool host_addressable() const { return device_.properties().host_addressable; }
  // The pinned memory that belongs to a slot's. REQUIRES for all below: Holds(piece.data()).
  absl::Span<std::byte> Twin(absl::Span<const std::byte> piece) const;
  absl::Status CopyToTwin(absl::Span<const std::byte> piece);
  absl::Status CopyFromTwin(absl::Span<const std::byte> piece);
  // Between other memory of the device and a payload whose pieces may lie in slots or on the host.
  absl::Status FillDevice(std::byte* device, const GatherList& from);
  absl::Status EmptyDevice(const std::byte* device, const ScatterList& to);

  // Of one block: the smallest payload there is, and the largest that fits a slot. Empty when
  // there is no second block that it could go to.
  std::vector<BlockRange> TrialRanges() const;
  // Slots that holds have.
  int slots_in_use() const;
  // Payloads that landed on the host because all slots were taken.
  int64_t spilled() const { return spilled_; }

 private:
  // Outlives the store where holds do: they are kept by completions that transports drop late.
  struct SlotPool {
    std::vector<int> free_send, free_receive;
  };
  class SlotHold;

  DevicePayloads(const DevicePayloadOptions& options, const kernels::DeviceBlocks& blocks,
                 kv::BlockArena& arena);
  absl::Status Allocate();
  absl::Span<std::byte> Slot(int index, int64_t bytes) const;
  int64_t Bytes(const PayloadCells& cells) const;
  int upload_slot() const { return options_.send_slots + options_.receive_slots; }
  // Enqueues the way between a payload and its cells.
  void Move(const PayloadCells& cells, absl::Span<std::byte> payload, bool gather);
  // By the device, when everything before is done.
  absl::StatusOr<uint64_t> Checksum(absl::Span<const std::byte> payload);
  // Verified bytes as this process' engine reads them, verified again where they lie then.
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
