// One node's side of every KV transfer: the receiving leases and the sending exports, as one state
// machine over a KvTransport. No thread, clock or socket inside: the transfer thread
// (TransferService) or the simulator drives it. Thread safety: none; one thread. Invariants: bytes
// land only in blocks of an open lease, from its current epoch, in ranges not yet filled;
// LeaseDrained only when no receive is in flight; ExportDone/Failed only when no send is in flight.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/kv/block_arena.h"
#include "common/kv/block_format.h"
#include "common/transfer/kv_transfer.h"
#include "common/transfer/kv_transport.h"

namespace tandem::transfer {

struct KvTransferOptions {
  Incarnation incarnation;  // of this process
  kv::BlockFormat
      format;  // of this process' blocks; blocks that come in another order are reordered
  std::string fleet_secret;  // keys the auth tag; equal in all nodes of a fleet; may be empty
  int64_t frame_bytes_min =
      64 << 10;  // smaller pushes are coalesced up to this where the ranges allow
  int64_t frame_bytes_max = 1 << 20;
  int64_t export_bytes_in_flight_max = 16 << 20;  // per export; more waits in the export's queue
  int checksum_retries_max = 1;                   // NACKs of one range before the epoch fails
  absl::Duration nack_after =
      absl::Milliseconds(200);  // FIN seen, data missing this long: ask again
  // A receive or send that must end (its lease is draining, its export dead) and did not within
  // this time is ended by dropping the connection: the peer hangs.
  absl::Duration drain_after = absl::Seconds(1);
  int nack_rounds_max = 64;  // NACKs one export answers before it fails
  int64_t leases_max = 4096;
  int64_t exports_max = 4096;
  // Leases that ended and whose late frames are still answered (a repeated FIN with ACK or ABORT).
  int64_t remembered_acks_max = 4096;
};

class KvTransferEndpoint : public KvTransport::Listener {
 public:
  // `arena` and `transport` outlive the endpoint. Sets itself as the transport's listener.
  static std::unique_ptr<KvTransferEndpoint> Create(const KvTransferOptions& options,
                                                    kv::BlockArena& arena, KvTransport& transport);

  virtual void Handle(const TransferCommand& command, absl::Time now) = 0;
  // Deadlines, NACK timers. Call at least every 50 ms, and after Progress() did something.
  virtual void Tick(absl::Time now) = 0;
  // Events since the last call, in order.
  virtual std::vector<TransferEvent> TakeEvents() = 0;
  virtual TransferCounters counters() const = 0;
};

}  // namespace tandem::transfer
