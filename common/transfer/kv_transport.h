// The seam under the KV plane: moves frames (a header and a scattered payload) between processes.
// The receiver decides where a payload lands, after it has checked the header. Implementations: UCX
// (shared memory and TCP), in-process, the simulator's virtual network; and on top of another
// transport: sealed connections (sealed_transport.h), mapped arenas (mapped_transport.h) and NCCL.
// Thread safety: one thread, the transfer thread, calls all methods but Wake(); the transport calls
// the listener and runs completions on that thread, inside Progress().
// Owner: TransferService, or the simulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/transfer/kv_transfer.h"
#include "tandem/v1/kv.pb.h"

namespace tandem::transfer {

// A connection to or from a peer. Never reused within a transport.
using PeerId = StrongId<struct PeerIdTag, uint64_t>;

// Where a payload goes: pieces in payload order; their sizes add up to the payload's.
using ScatterList = std::vector<absl::Span<std::byte>>;
using GatherList = std::vector<absl::Span<const std::byte>>;

inline size_t Bytes(const GatherList& payload) {
  size_t bytes = 0;
  for (const absl::Span<const std::byte> piece : payload) bytes += piece.size();
  return bytes;
}

// When a payload was on its way into its place, and what landed. It begins when this process sees
// the header or, where header and payload come together, begins to take them in; so the time that
// the sender computes is not part of it.
struct ReceiveInterval {
  absl::Time began, landed;
  // PayloadChecksum of the bytes as they landed, from a transport that computed it while it copied.
  // From one that authenticates payloads: the header's, once the payload's tag was right.
  std::optional<uint64_t> checksum = std::nullopt;
};

class PayloadStore;

class KvTransport {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // A frame arrived from `from`, which can be answered with Send. For frames with a payload:
    // where it may land (its bytes are untouched until then), or nullopt to discard it. Frames
    // without one: the result is ignored. `receive_id` names this payload in OnPayload.
    virtual std::optional<ScatterList> OnFrame(PeerId from, const v1::KvFrame& frame,
                                               size_t payload_bytes, uint64_t receive_id) = 0;
    // A payload that was given a place has landed whole, or failed (its place may hold any bytes).
    // Exactly once per accepted payload; before it, the place must stay mapped.
    // `landed` does not go back from call to call.
    virtual void OnPayload(uint64_t receive_id, const absl::Status& status,
                           const ReceiveInterval& interval) = 0;
    // The connection is gone; sends in flight have completed with an error before this call.
    virtual void OnPeerLost(PeerId peer, const absl::Status& status) = 0;
  };

  virtual ~KvTransport() = default;

  virtual void SetListener(Listener* listener) = 0;
  // Opaque bytes by which other processes reach this transport.
  virtual const std::string& address() const = 0;
  // Starts connecting; errors arrive as OnPeerLost. Connecting twice to one address gives one
  // PeerId.
  virtual absl::StatusOr<PeerId> Connect(const PeerAddress& peer) = 0;
  // Closes; OnPeerLost is not called. Sends in flight complete first, with kCancelled where they
  // did not finish.
  virtual void Disconnect(PeerId peer) = 0;
  // Sends header and payload; the payload's bytes must stay unchanged until `done` runs. Frames to
  // one peer arrive in order of sending only where the transport says so: receivers must not rely
  // on it.
  virtual void Send(PeerId peer, const v1::KvFrame& frame, GatherList payload,
                    absl::AnyInvocable<void(const absl::Status&)> done) = 0;
  // As many bytes of payloads to `peer` as are worth sending before the first of them is done.
  virtual int64_t BytesAheadMax(PeerId peer) const {
    static_cast<void>(peer);
    return std::numeric_limits<int64_t>::max();
  }
  // Whether a payload that lands is the one that was sent, or ends with kDataLoss: its checksum
  // need then not be computed, and is 0.
  virtual bool authenticates_payloads() const { return false; }
  // Since its start; see TransferCounters.
  struct Refusals {
    int64_t connections = 0, messages = 0;
  };
  virtual Refusals refusals() const { return {}; }
  // "shm", "shm+mapped", "tcp", "inproc"; "unknown" before the connection is up.
  virtual std::string TransportName(PeerId peer) const = 0;

  // Where payloads of this transport lie: a device's memory, or null for the host's arena. Lives as
  // long as the transport.
  virtual PayloadStore* payloads() { return nullptr; }

  // Sends, receives and calls back as far as possible without blocking; says whether anything
  // happened.
  virtual bool Progress() = 0;
  // Blocks until something may have happened, Wake() was called or `timeout` passed.
  virtual void Wait(absl::Duration timeout) = 0;
  // Ends a Wait. Any thread.
  virtual void Wake() = 0;
};

}  // namespace tandem::transfer
