// One node's side of every KV transfer: the leases it receives into (KvReceiver) and the exports it
// sends from (KvSender), as one state machine over a KvTransport. It has no thread, clock or
// socket: the transfer thread (TransferService) or the simulator drives it.
//
// Invariants: bytes land only in blocks of an open lease, in ranges not yet filled, from the epoch
// that was current when their header came. Those that an older epoch has in flight count as empty
// again when they end, and nothing else lands there before. LeaseDrained comes only when no receive
// of the lease is in flight; ExportDone and ExportFailed come only when no send of the export is in
// flight.
// Thread safety: none; one thread at a time. Owner: TransferService, or the simulator.
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
  // Of this process's blocks; received blocks in another order are reordered.
  kv::BlockFormat format;
  std::string fleet_secret;  // keys the auth tag; equal in all nodes of a fleet; may be empty
  // Smaller pushes are combined into frames of this size where the ranges allow it.
  int64_t frame_bytes_min = 64 << 10;
  int64_t frame_bytes_max = 1 << 20;
  int64_t peer_bytes_in_flight_max = 16 << 20;  // the rest waits in the exports' queues
  // Sent to a peer before commands and what arrived have their turn: preparing payloads takes time.
  int64_t turn_bytes_max = 1 << 20;
  int checksum_retries_max = 1;  // NACKs of one range before the epoch fails
  // FIN has arrived and data is missing for this long: ask for it again.
  absl::Duration nack_after = absl::Milliseconds(200);
  // When a receive or send of an ended lease or export is still in flight after this time, and no
  // payload to or from the peer has ended for as long, the peer hangs: the endpoint drops the
  // connection. A slow link is not one that hangs.
  absl::Duration drain_after = absl::Seconds(1);
  // The same when it is still in flight after this time, whatever else moves.
  absl::Duration drain_max = absl::Seconds(30);
  int nack_rounds_max = 64;  // NACKs one export answers before it fails
  int64_t leases_max = 4096;
  int64_t exports_max = 4096;
  // Ended leases whose late frames are still answered (a repeated FIN with ACK or ABORT).
  int64_t remembered_acks_max = 4096;
  // FINs that wait for the next Tick because the core's command that announces their lease or epoch
  // may still be in the command queue. Further ones are judged at once.
  int64_t early_fins_max = 64;
};

class KvTransferEndpoint : public KvTransport::Listener {
 public:
  // `arena` and `transport` outlive the endpoint. Sets itself as the transport's listener.
  static std::unique_ptr<KvTransferEndpoint> Create(const KvTransferOptions& options,
                                                    kv::BlockArena& arena, KvTransport& transport);

  virtual void Handle(const TransferCommand& command, absl::Time now) = 0;
  // Deadlines, NACK timers, FINs that overtook a command, and sends that wait for their turn. Call
  // at least every 50 ms, and after Progress() did something, once all waiting commands have been
  // handled. True: call it again soon, there is more to send.
  virtual bool Tick(absl::Time now) = 0;
  // A transfer is under way, and the peer is about to send its next frame or to take one of this
  // end's. It answers sooner than a thread wakes up, so the caller had better not sleep.
  virtual bool ExpectsMore() const = 0;
  // Events since the last call, in order.
  virtual std::vector<TransferEvent> TakeEvents() = 0;
  virtual TransferCounters counters() const = 0;
};

}  // namespace tandem::transfer
