// A one-way channel for payloads between two processes, through their accelerators: NCCL between
// GPUs. The sender writes bytes into a slot (host memory that the accelerator reaches, or the
// accelerator's own memory) and starts to send; they arrive in a slot at the other end. Operations
// match by order: the n-th of the receiver takes the n-th of the sender, and their sizes must be
// equal.
//
// Nothing here blocks: the owner calls Progress often. A channel that has failed stays failed;
// destroying it aborts what is in flight.
// Thread safety: one thread at a time. Owner: the KV plane's transport.
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
  // Why it failed.
  virtual const absl::Status& status() const = 0;

  virtual absl::Span<std::byte> slot(int index) = 0;
  // Sends or receives `bytes` of a slot, by the channel's side. REQUIRES: kOpen, the slot is idle,
  // 0 < bytes <= slot_bytes.
  virtual void Start(int slot, size_t bytes) = 0;
  // Nothing is under way in the slot: what was started there is sent, or has landed.
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
  // Where this end's slots are; the other end's may be elsewhere.
  virtual SlotMemory slot_memory() const { return SlotMemory::kHost; }
  // What both ends of a new channel are given; drawn by the sender.
  virtual absl::StatusOr<std::string> NewId() = 0;
  // Begins to open; the channel is open once both ends did this. kInvalidArgument for an id that is
  // none.
  virtual absl::StatusOr<std::unique_ptr<PairChannel>> Open(const std::string& id, Side side) = 0;
};

// Channels through NCCL and a CUDA device. Errors: kUnimplemented in a build without CUDA or NCCL's
// header, kUnavailable without a device, or without a libnccl.so.2 to load (says which).
absl::StatusOr<std::unique_ptr<PairChannels>> OpenNcclChannels(int device_ordinal, int slots,
                                                               size_t slot_bytes,
                                                               SlotMemory memory);

}  // namespace tandem::kernels
