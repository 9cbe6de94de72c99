// The exports that one node sends, without I/O of its own (kv_transfer.h has the states). It turns
// pushed ranges into DATA frames of a good size, bounds the bytes in flight, sends again what the
// receiver asks for, and ends each export exactly once. The exports to one peer take turns, a frame
// at a time.
//
// Invariants: it sends bytes only from ranges that the core pushed; an export ends only when none
// of its sends is in flight, so its blocks may then be reused; bytes in flight to a peer never
// exceed peer_bytes_in_flight_max, nor the transport's BytesAheadMax, except for one frame that
// alone is larger; a peer whose payloads find no room in the payload store waits behind those that
// wait already, and before any other, until a send ends or the next tick. It takes a place only
// while it holds fewer than are free, so peers that receive slowly do not hold them all.
// Thread safety: none; the transfer thread. Owner: KvTransferEndpoint.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "common/transfer/block_range.h"
#include "common/transfer/kv_transfer_context.h"

namespace tandem::transfer {

class KvSender {
 public:
  explicit KvSender(KvTransferContext& context) : context_(context) {}

  void Handle(const OpenExport& command);
  void Handle(const PushRange& command);
  void Handle(const FinishExport& command);
  void Handle(const CancelExport& command);

  // Frames whose tag and receiver incarnation were checked.
  void OnNack(PeerId from, const v1::KvFrame& frame);
  void OnAck(PeerId from, const v1::KvFrame& frame);
  void OnAbort(PeerId from, const v1::KvFrame& frame);
  void OnPeerLost(PeerId peer, const absl::Status& status);

  // Frames wait until a peer has taken those before them.
  bool WaitsForRoom() const;
  // Goes on where the bytes of a turn were used up; says whether it happened again.
  bool Continue();
  // Deadlines and repeated FINs. Appends the peers whose sends have kept an ended export from
  // ending for longer than drain_after.
  void Tick(std::vector<PeerId>& stuck_peers);

 private:
  struct Export {
    Export(const OpenExport& command, PeerId peer_id, const kv::BlockLayout& layout)
        : open(command),
          peer(peer_id),
          cells(command.first_ordinal, static_cast<int32_t>(command.blocks.size()),
                layout.num_layers),
          queued(command.first_ordinal, static_cast<int32_t>(command.blocks.size()),
                 layout.num_layers) {
      cells.LeaveOut(layout.windowed_layers, command.window_first_ordinal);
    }

    const OpenExport open;
    const PeerId peer;
    CellMap cells;                    // kFilled: pushed by the core, so final
    std::vector<BlockRange> pending;  // pushed, too small to be sent yet
    struct QueuedFrame {
      BlockRange range;
      bool repeat = false;
    };
    // Bound: the cells of the export, because a cell that waits is not queued again.
    std::deque<QueuedFrame> queue;
    CellMap queued;         // kFilled: in `queue`
    bool has_turn = false;  // is in its peer's `turns`
    int64_t sends_in_flight = 0;
    int64_t bytes_sent = 0;
    uint32_t data_frames = 0;  // repeats not counted
    int nack_rounds = 0;
    std::optional<v1::GeneratedToken> first_token;  // set by FinishExport
    v1::TokensBySource tokens;                      // likewise
    absl::Time computed_at;                         // likewise
    std::vector<v1::KvLoan> loans;                  // likewise
    absl::Time first_push_at = absl::InfiniteFuture();
    // When bytes were last pushed with nothing on its way, and what was sent before.
    absl::Time stretch_began = absl::InfinitePast();
    int64_t bytes_before_stretch = 0;
    absl::Time repeat_fin_at = absl::InfiniteFuture();
    bool fin_sent = false;
    // How the export ends, once nothing is in flight: OK when acknowledged.
    std::optional<absl::Status> outcome;
    absl::Time must_end_by = absl::InfiniteFuture();
  };
  // The receiver of one or more exports.
  struct Peer {
    int64_t exports = 0;
    int64_t bytes_in_flight = 0, sends_in_flight = 0;
    bool is_blocked = false;  // is in blocked_
    // Exports with frames in their queues, in the order in which they send one. Bound: `exports`.
    std::deque<ExportId> turns;
  };
  // Which export a frame from a receiver speaks of: at most one for (peer, lease, epoch).
  using FrameKey = std::tuple<PeerId, LeaseId, Epoch>;

  int64_t FrameCellsMin() const;
  int64_t FrameCellsMax() const;
  Export* Find(ExportId id);
  Export* FindByFrame(PeerId from, const v1::KvFrame& frame);
  // Before ranges are added to the export's queue.
  void NoteStretch(Export& exported) const;
  // Adds a range to the pending ones, merged with those that it extends.
  static void AddPending(Export& exported, BlockRange range);
  static void Enqueue(Export& exported, const Export::QueuedFrame& frame);
  // Moves pending ranges to the queue: those that are large enough, or all.
  void QueueReady(Export& exported, bool all);
  // Sends from the export's queue, in turn with others to the same peer, while the bytes in flight
  // allow it; then Settle. May end and erase exports.
  void Pump(Export& exported);
  // Gives the peer's exports their turns, up to turn_bytes_max, or until there is no room in the
  // payload store. May end and erase exports.
  void TakeTurns(PeerId peer_id);
  // Sends the first frame of the export's queue. False when there is no room for its payload now.
  bool SendNext(Export& exported);
  // Sends FIN when it is time, and erases an export that has ended and has nothing in flight.
  void Settle(ExportId id);
  // Sends one DATA frame with a payload that the store gave out.
  void SendFrame(Export& exported, const Export::QueuedFrame& queued,
                 PayloadStore::Outgoing payload);
  void TakeAllTurns();
  // The peer waits for room in the payload store.
  void Block(PeerId peer);
  // Continues the peers that wait for room, as far as there is some.
  void ResumeBlocked();
  void OnSent(ExportId id, int64_t bytes, const absl::Status& status);
  // May end and erase the export.
  void SendFin(Export& exported);
  void OnFinNotSent(ExportId id, const absl::Status& status);
  // Decides how the export ends; later calls change nothing.
  void End(Export& exported, const absl::Status& outcome, bool tell_receiver);
  void Erase(Export& exported);

  KvTransferContext& context_;
  // Ordered, so that a simulated run with the same seed repeats exactly.
  // Bound: exports_max (4,096).
  absl::btree_map<ExportId, std::unique_ptr<Export>> exports_;
  // Bound: one for each export.
  absl::btree_map<FrameKey, ExportId> by_frame_;
  // Bound: one for each export.
  absl::btree_map<PeerId, Peer> peers_;
  bool interrupted_ = false;  // a peer's exports have used up turn_bytes_max
  // Peers that wait for room in the payload store, in order. Bound: `peers_`.
  std::deque<PeerId> blocked_;
};

}  // namespace tandem::transfer
