// A KV transfer moves one sequence's KV blocks from a sending node to a receiving node. The
// receiver opens a lease: room for the blocks. The sender opens an export: the blocks that fill the
// lease. This file holds the commands by which a node's core runs both, and the events by which the
// KV plane answers. The engine thread and the transfer thread exchange them through bounded queues;
// the simulator passes them directly.
//
//   lease     Reserved ──first data──▶ Filling ──all verified──▶ Installed
//                └────── CloseLease ──────┴─▶ Draining ──no receive in flight──▶ LeaseDrained
//   export    Planned ──pushing──▶ Pushed ──acknowledged──▶ Done, or Failed from any state
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "tandem/v1/common.pb.h"
#include "tandem/v1/kv.pb.h"

namespace tandem::transfer {

using ExportId = StrongId<struct ExportIdTag, uint64_t>;

// ---- core → KV plane, receiving side --------------------------------------------------------

// Accept frames of (lease, epoch). `blocks[i]` is where ordinal first_ordinal + i lands.
// The core must not touch or reuse the blocks until LeaseInstalled or LeaseDrained.
struct OpenLease {
  LeaseId lease;
  Epoch epoch;
  int32_t first_ordinal = 0;
  std::vector<BlockId> blocks;  // not empty
  absl::Time deadline;          // LeaseFailed(kDeadlineExceeded) when not installed by then
  // Of layers with a window, blocks before this ordinal are not part of the transfer: the receiver
  // reads nothing there. The sender's OpenExport says the same.
  int32_t window_first_ordinal = 0;
};
// A new sender takes over: older epochs are stale from now on. What was verified stays. Answered by
// EpochRaised, unless the lease was installed or closed before.
struct RaiseEpoch {
  LeaseId lease;
  Epoch epoch;
  absl::Time deadline;
};
// Ends a lease in any state before Installed. The KV plane answers with exactly one LeaseDrained,
// at once when nothing is in flight, and also for unknown and installed leases. It does not touch
// blocks that EpochRaised reported as verified.
struct CloseLease {
  LeaseId lease;
  std::string reason;
};

// ---- core → KV plane, sending side ----------------------------------------------------------

// How to reach a receiver; from its registration.
struct PeerAddress {
  NodeId node;
  Incarnation incarnation;
  std::string transport_address;  // opaque
  std::string host;
};
// Announces an export. The core keeps the blocks pinned until ExportDone or ExportFailed.
struct OpenExport {
  ExportId export_id;
  PeerAddress peer;
  LeaseId lease;
  Epoch epoch;
  int32_t first_ordinal = 0;    // of blocks[0]; the receiver already has earlier blocks
  std::vector<BlockId> blocks;  // by ordinal
  absl::Time deadline;          // ExportFailed(kDeadlineExceeded) when not acknowledged by then
  int32_t window_first_ordinal = 0;  // as OpenLease's; pushes may name what is not part
};
// The bytes of these blocks and layers are final: send them. Ranges of one export never overlap.
struct PushRange {
  ExportId export_id;
  int32_t first_ordinal = 0, ordinal_count = 0;
  int32_t first_layer = 0, layer_count = 0;
};
// All ranges were pushed; tell the receiver, with the first token sampled here.
struct FinishExport {
  ExportId export_id;
  v1::GeneratedToken first_token;
  v1::TokensBySource tokens;  // where the sender got the prompt's KV from
  // When all was computed. TransferService sets it; otherwise it is the time at which the command
  // is handled.
  absl::Time computed_at = absl::InfinitePast();
  // Of the prompt's units before the export's blocks, in order: they lie with creditors.
  std::vector<v1::KvLoan> loans;
};
// Gives an export up; ExportFailed(kCancelled) follows once no send is in flight.
struct CancelExport {
  ExportId export_id;
  std::string reason;
};

using TransferCommand = std::variant<OpenLease, RaiseEpoch, CloseLease, OpenExport, PushRange,
                                     FinishExport, CancelExport>;

// ---- KV plane → core ------------------------------------------------------------------------

// Every block of the lease was received and verified; the lease is forgotten by the KV plane (a
// repeated FIN is still acknowledged).
struct LeaseInstalled {
  LeaseId lease;
  Epoch epoch;
  v1::GeneratedToken first_token;
  v1::TokensBySource tokens;  // where the sender got the prompt's KV from
  int64_t bytes_received = 0;
  absl::Duration transfer_time;  // first frame to all verified; the sender may compute meanwhile
  // The part of transfer_time during which at least one payload was being received; the wire's rate
  // is bytes_received over this.
  absl::Duration receive_time;
  // The part of receive_time before the sender had computed everything: prefill hides it.
  absl::Duration hidden_time;
  // From the time at which the sender had computed everything, or the first frame if that came
  // later, to all verified, without receive_time's part of it: what the transfer costs beyond
  // prefill and wire.
  absl::Duration beyond_time;
  std::string transport;          // "shm", "shm+mapped", "tcp", "inproc"
  std::vector<v1::KvLoan> loans;  // as in FinishExport
};
// The current epoch's sender failed (abort, lost, deadline, repeated checksum failure). The lease
// stays reserved until RaiseEpoch or CloseLease. Sent at most once per epoch.
struct LeaseFailed {
  LeaseId lease;
  Epoch epoch;
  absl::Status status;
};
// No older epoch's frame is taken any more.
struct EpochRaised {
  LeaseId lease;
  Epoch epoch;
  // Blocks from the lease's first ordinal on that are verified in all layers: they stay as they
  // are, and a new sender need not send them (receives that still drain are not counted).
  int32_t verified_blocks = 0;
};
// No receive can touch the lease's blocks any more.
struct LeaseDrained {
  LeaseId lease;
};
struct ExportDone {
  ExportId export_id;
  int64_t bytes_sent = 0;
  absl::Duration transfer_time;  // first push to acknowledged
  // The last part of transfer_time in which pushed bytes were on their way without a pause, and the
  // bytes sent in it: they tell what the link does, where blocks are pushed part by part.
  absl::Duration last_stretch;
  int64_t last_stretch_bytes = 0;
  // Of the transfer thread, for these bytes, its waits not included (export_share.h).
  // TransferService sets it; 0 = not known.
  absl::Duration processor_time;
};
// Exactly one of ExportDone and ExportFailed ends an export; no send is in flight then.
struct ExportFailed {
  ExportId export_id;
  absl::Status status;
};

using TransferEvent =
    std::variant<LeaseInstalled, LeaseFailed, EpochRaised, LeaseDrained, ExportDone, ExportFailed>;

// For heartbeats and metrics.
struct TransferCounters {
  int64_t bytes_sent = 0, bytes_received = 0;
  int64_t frames_sent = 0, frames_received = 0;
  int64_t frames_rejected = 0;  // failed a check of authenticity, kind or size
  int64_t frames_untimely = 0;  // came before their lease was known, or after it had ended
  int64_t checksum_failures = 0;
  int64_t leases_open = 0, exports_open = 0;
  int64_t sends_in_flight = 0, receives_in_flight = 0;
  // The transport's: connections of processes without the fleet's secret; messages that no
  // connected peer could have sent.
  int64_t connections_refused = 0, messages_dropped = 0;
};

}  // namespace tandem::transfer
