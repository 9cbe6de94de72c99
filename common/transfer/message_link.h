// One pair of processes, as a CallChannel sees it: whole messages in order, in both directions,
// until one end closes. `SharedRingLink` connects two processes of one host, `NewInProcessLinks`
// two channels of one test.
// Thread safety: none; the thread of the link's channel.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tandem::transfer {

// Pieces of one message, in order: the sender needs no copy to join them.
using MessagePieces = absl::Span<const absl::Span<const std::byte>>;

// What one link may hold. Both ends need the same limits.
struct LinkLimits {
  size_t message_bytes_max = size_t{1} << 20;
  // Bytes on the way in one direction, 16 more for each message. A power of two.
  size_t ring_bytes = size_t{1} << 24;
};

// kInvalidArgument when no message of message_bytes_max fits, or for sizes that are no power of
// two.
absl::Status CheckLimits(const LinkLimits& limits);
// Sum of the pieces' sizes.
size_t MessageBytes(MessagePieces pieces);

class MessageLink {
 public:
  virtual ~MessageLink() = default;
  // Copies the message before it returns. Errors: kResourceExhausted while the other end has not
  // read enough, kInvalidArgument for a message that is empty or too long; any other: the link has
  // failed.
  virtual absl::Status Send(MessagePieces message) = 0;
  // The next message, valid until the next call; nullopt when none has arrived. No system call.
  // Errors: the link has failed (kDataLoss: the other end broke the format).
  virtual absl::StatusOr<std::optional<absl::Span<const std::byte>>> Receive() = 0;
  // Announces that this end will wait on descriptor(). False when a message is already there.
  virtual bool PrepareSleep() = 0;
  // Ends what PrepareSleep announced.
  virtual void EndSleep() = 0;
  // Takes pending wake-ups from the descriptor. kUnavailable when the other end has closed.
  virtual absl::Status CheckPeer() = 0;
  // Readable when a message wakes this end or the other end has closed; -1 when there is none.
  virtual int descriptor() const = 0;
};

// The faults of an in-process pair, for tests and the simulator. Its owner changes them at any
// time.
struct InProcessFaults {
  bool hold = false;    // messages stay on the way
  bool broken = false;  // both ends find the link closed
};

// Two ends without system calls, for channels of one thread. What is sent arrives at the other
// end's next Receive. `faults` outlives both ends.
std::pair<std::unique_ptr<MessageLink>, std::unique_ptr<MessageLink>> NewInProcessLinks(
    const LinkLimits& limits, const InProcessFaults& faults);

}  // namespace tandem::transfer
