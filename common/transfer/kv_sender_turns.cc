// The part of KvSender (common/transfer/kv_sender.h) about turns: which export sends a frame next,
// and which peers wait for room in the payload store.
#include <algorithm>
#include <utility>

#include "common/transfer/kv_sender.h"

namespace tandem::transfer {

void KvSender::Pump(Export& exported) {
  const ExportId id = exported.open.export_id;
  const PeerId peer = exported.peer;
  if (!exported.queue.empty() && !exported.has_turn) {
    exported.has_turn = true;
    peers_[peer].turns.push_back(id);
  }
  TakeTurns(peer);
  Settle(id);
}

void KvSender::TakeTurns(PeerId peer_id) {
  const int64_t bytes_max = std::min(context_.options.peer_bytes_in_flight_max,
                                     context_.transport.BytesAheadMax(peer_id));
  for (int64_t sent = 0;;) {
    // Looked up in each round: an export that ends may be the peer's last one.
    const auto it = peers_.find(peer_id);
    if (it == peers_.end() || it->second.turns.empty()) return;
    Peer& peer = it->second;
    Export& exported = *exports_.at(peer.turns.front());
    if (exported.queue.empty()) {
      exported.has_turn = false;
      peer.turns.pop_front();
      continue;
    }
    const int64_t bytes = exported.queue.front().range.cells() * context_.layer_block_bytes();
    if (peer.bytes_in_flight > 0 && peer.bytes_in_flight + bytes > bytes_max) return;
    if (sent >= context_.options.turn_bytes_max) {
      interrupted_ = true;
      return;
    }
    sent += bytes;
    if (peer.sends_in_flight >= context_.payloads.room() || !SendNext(exported))
      return Block(peer_id);
    peer.turns.push_back(peer.turns.front());
    peer.turns.pop_front();
    if (exported.outcome.has_value()) Settle(exported.open.export_id);
  }
}

bool KvSender::SendNext(Export& exported) {
  const Export::QueuedFrame queued = exported.queue.front();
  absl::StatusOr<std::optional<PayloadStore::Outgoing>> payload =
      context_.payloads.Take({queued.range, exported.open.blocks, exported.open.first_ordinal});
  if (!payload.ok()) {
    End(exported, payload.status(), /*tell_receiver=*/true);
    return true;
  }
  if (!payload->has_value()) return false;
  exported.queue.pop_front();
  exported.queued.Set(queued.range, CellState::kEmpty);
  SendFrame(exported, queued, **std::move(payload));
  return true;
}

bool KvSender::WaitsForRoom() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& entry) {
    return entry.second.bytes_in_flight > 0 && !entry.second.turns.empty();
  });
}

bool KvSender::Continue() {
  if (std::exchange(interrupted_, false)) TakeAllTurns();
  return interrupted_;
}

void KvSender::Block(PeerId peer) {
  if (!std::exchange(peers_.at(peer).is_blocked, true)) blocked_.push_back(peer);
}

void KvSender::ResumeBlocked() {
  // Each one once: those that still find no room wait again, in the same order.
  for (size_t left = blocked_.size(); left > 0 && !blocked_.empty(); --left) {
    if (context_.payloads.room() == 0) return;
    const PeerId peer = blocked_.front();
    blocked_.pop_front();
    peers_.at(peer).is_blocked = false;
    TakeTurns(peer);
  }
}

void KvSender::TakeAllTurns() {
  ResumeBlocked();
  // By key, because exports may end, and with them their peers.
  for (auto it = peers_.begin(); it != peers_.end();) {
    const PeerId peer = it->first;
    TakeTurns(peer);
    it = peers_.upper_bound(peer);
  }
}

}  // namespace tandem::transfer
