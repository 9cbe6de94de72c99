// The leases that one node receives into, without I/O of its own (kv_transfer.h has the states).
// For every DATA header it decides whether the payload may land, and where. A cell is one block of
// one layer.
//
// Invariants: a receive gets a cell only while the cell is empty, so no two receives share bytes; a
// lease is forgotten only when no receive into it is in flight; LeaseFailed comes at most once an
// epoch; each CloseLease is answered by one LeaseDrained.
// Thread safety: none; the transfer thread. Owner: KvTransferEndpoint.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/transfer/block_range.h"
#include "common/transfer/busy_time.h"
#include "common/transfer/kv_transfer_context.h"

namespace tandem::transfer {

class KvReceiver {
 public:
  explicit KvReceiver(KvTransferContext& context) : context_(context) {}

  void Handle(const OpenLease& command);
  void Handle(const RaiseEpoch& command);
  void Handle(const CloseLease& command);

  // Frames whose tag and receiver incarnation were checked.
  std::optional<ScatterList> OnData(PeerId from, const v1::KvFrame& frame, size_t payload_bytes,
                                    uint64_t receive_id);
  void OnFin(PeerId from, const v1::KvFrame& frame);
  void OnAbort(PeerId from, const v1::KvFrame& frame);
  void OnPayload(uint64_t receive_id, const absl::Status& status, const ReceiveInterval& interval);
  void OnPeerLost(PeerId peer, const absl::Status& status);

  // The sender of the last payload said that it sends more at once. Forgotten at the next Tick, so
  // that a sender that ends counts as busy for no longer.
  bool more_follows() const { return more_follows_; }
  // The core's commands of this round have been handled: looks again at the FINs that came before
  // their lease or epoch was known. What is still unknown is refused.
  void TakeEarlyFins();
  // Deadlines and NACK timers. Appends the peers whose receives have kept a lease from draining for
  // longer than drain_after.
  void Tick(std::vector<PeerId>& stuck_peers);

 private:
  struct Lease {
    Lease(const OpenLease& command, const kv::BlockLayout& layout)
        : id(command.lease),
          epoch(command.epoch),
          first_ordinal(command.first_ordinal),
          blocks(command.blocks),
          deadline(command.deadline),
          cells(command.first_ordinal, static_cast<int32_t>(command.blocks.size()),
                layout.num_layers) {
      cells.LeaveOut(layout.windowed_layers, command.window_first_ordinal);
    }

    const LeaseId id;
    Epoch epoch;
    const int32_t first_ordinal;
    const std::vector<BlockId> blocks;
    absl::Time deadline;
    CellMap cells;
    int32_t receives_in_flight = 0;
    bool draining = false;
    int64_t bytes_received = 0;  // verified
    BusyTime receiving;          // those bytes
    absl::Time first_frame_at = absl::InfiniteFuture();

    // Of the current epoch only; StartEpoch clears them.
    bool failed = false;
    std::optional<PeerId> sender;  // of the epoch's first frame; no other peer may send in it
    Incarnation sender_incarnation;
    int64_t data_frames_seen = 0;
    std::optional<v1::KvFin> fin;
    absl::Time computed_at;  // when the sender had computed everything; set with `fin`
    absl::Time nack_at = absl::InfiniteFuture();
    // Bound: the cells of the lease.
    absl::flat_hash_map<int64_t, int> checksum_failures;  // by cell: ordinal and layer
  };
  // A payload on its way into a lease's blocks.
  struct Receive {
    LeaseId lease;
    Epoch epoch;
    PeerId from;
    BlockRange range;
    uint64_t checksum = 0;
    std::string order;  // of the elements in the sender's blocks
    PayloadStore::Landing place;
    // Set when its lease drains or its epoch is over: then it should end soon.
    absl::Time must_end_by = absl::InfiniteFuture();
  };

  struct EarlyFin {
    PeerId from;
    v1::KvFrame frame;
  };

  // Whether the core's command that makes this FIN welcome may still be in the command queue.
  bool MayBeEarly(const v1::KvFrame& frame) const;
  void TakeFin(PeerId from, const v1::KvFrame& frame);
  // The lease, if it takes frames of this epoch; else null, and the frame has been counted, logged
  // and answered.
  Lease* Admit(PeerId from, const v1::KvFrame& frame);
  void RejectUnknown(PeerId from, const v1::KvFrame& frame);
  absl::Status CheckData(const Lease& lease, const v1::KvData& data,
                         const std::optional<BlockRange>& range, size_t payload_bytes) const;
  void StartEpoch(Lease& lease, Epoch epoch);
  // Gives the lease's receives drain_after to end; then Tick reports their peers.
  void HurryReceives(const Lease& lease);
  void AbortSender(const Lease& lease, absl::string_view reason);
  void Fail(Lease& lease, const absl::Status& status);
  // `status`: OK, or kDataLoss for a payload that the transport found damaged.
  void OnLanded(Lease& lease, const Receive& receive, const absl::Status& status,
                const ReceiveInterval& interval);
  void OnChecksumFailure(Lease& lease, const BlockRange& range);
  void SendNack(Lease& lease, absl::Span<const BlockRange> ranges);
  // Sends a NACK for the missing cells when all frames have been seen, or when nack_at has come.
  void NackMissing(Lease& lease);
  void InstallIfComplete(Lease& lease);
  void DrainIfIdle(Lease& lease);
  bool WasInstalled(const v1::KvFrame& frame) const;
  // Ends a lease, remembering how.
  void Forget(const Lease& lease, std::optional<Epoch> installed);

  // For figures only: the context's time may be from before the payloads of this round were copied.
  absl::Time LatestTime() const { return std::max(context_.now, last_landing_); }

  KvTransferContext& context_;
  absl::Time last_landing_ = absl::InfinitePast();
  bool more_follows_ = false;
  // Ordered, so that a simulated run with the same seed repeats exactly.
  // Bound: leases_max (4,096).
  absl::btree_map<LeaseId, std::unique_ptr<Lease>> leases_;
  // Bound: early_fins_max (64), emptied each round.
  std::vector<EarlyFin> early_fins_;
  // Bound: the cells of open leases, because a cell that is arriving is not taken again.
  absl::btree_map<uint64_t, Receive> receives_;
  // Leases that ended, oldest first. `ended_` holds the epoch that installed the lease, or none
  // when it was closed: a repeated FIN for an installed lease is answered with ACK, for a closed
  // one with ABORT. Bound: remembered_acks_max (4,096), then the oldest goes.
  std::deque<LeaseId> ended_order_;
  // Bound: remembered_acks_max (4,096).
  absl::flat_hash_map<LeaseId, std::optional<Epoch>> ended_;
};

}  // namespace tandem::transfer
