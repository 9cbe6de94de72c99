// A one-way channel for payloads between two processes, through their accelerators: NCCL between
// GPUs. The sender puts bytes into a slot (host memory that the accelerator reaches, or its own
// memory) and sends them; they arrive in a slot of the receiver. Operations match by order: the
// receiver's n-th operation takes the sender's n-th, and their sizes must be equal.
//
// No call blocks: the owner calls Progress often, which advances all operations. A failed channel
// stays failed; its owner destroys it, which aborts operations in flight.
// Thread safety: one thread at a time. Owner: the KV transfer's NCCL transport.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tandem::kernels {

enum class SlotMemory { kHost, kDevice };

class PairChannel {
 public:
  enum class State { kOpening, kOpen, kFailed };

  virtual ~PairChannel() = default;
  virtual State Progress() = 0;
  // Why the channel failed; OK before.
  virtual const absl::Status& status() const = 0;

  virtual absl::Span<std::byte> slot(int index) = 0;
  // Sends or receives `bytes` of a slot, by this end's side. REQUIRES: kOpen, the slot is idle,
  // 0 < bytes <= slot_bytes.
  virtual void Start(int slot, size_t bytes) = 0;
  // Whether the slot's last operation is done: its bytes are sent, or have arrived.
  virtual bool idle(int slot) const = 0;
};

// Opens channels from or to this process.
class PairChannels {
 public:
  enum class Side { kSender, kReceiver };

  virtual ~PairChannels() = default;
  virtual const std::string& name() const = 0;  // "nccl"
  virtual int slots() const = 0;                // of each channel
  virtual size_t slot_bytes() const = 0;
  // Where this end's slots lie; the other end may choose differently.
  virtual SlotMemory slot_memory() const { return SlotMemory::kHost; }
  // An id for a new channel. The sender draws it and tells the receiver, and both pass it to Open.
  virtual absl::StatusOr<std::string> NewId() = 0;
  // Begins to open a channel; it is open once both ends have done this. Errors: kInvalidArgument
  // for an id that NewId cannot have made.
  virtual absl::StatusOr<std::unique_ptr<PairChannel>> Open(const std::string& id, Side side) = 0;
};

// Opens channels through NCCL and a CUDA device. Errors: kUnimplemented in a build without CUDA or
// NCCL's header, kUnavailable without a device, or without a libnccl.so.2 to load (says which).
absl::StatusOr<std::unique_ptr<PairChannels>> OpenNcclChannels(int device_ordinal, int slots,
                                                               size_t slot_bytes,
                                                               SlotMemory memory);

}  // namespace tandem::kernels
