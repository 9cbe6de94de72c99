#include "common/transfer/kv_sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/transfer/fin_loans.h"

namespace tandem::transfer {
namespace {

// Pushed ranges that wait to be merged with adjacent ones; beyond this they are sent unmerged.
// Chunks arrive layer by layer, so few rectangles are incomplete at a time.
constexpr size_t kPendingRangesMax = 8;
// FIN is repeated this many NACK times apart until it is answered.
constexpr int kFinRepeatFactor = 2;

}  // namespace

int64_t KvSender::FrameCellsMin() const {
  const int64_t cell = context_.layer_block_bytes();
  return std::max<int64_t>(1, (context_.options.frame_bytes_min + cell - 1) / cell);
}

int64_t KvSender::FrameCellsMax() const {
  return std::max<int64_t>(1, context_.options.frame_bytes_max / context_.layer_block_bytes());
}

KvSender::Export* KvSender::Find(ExportId id) {
  const auto it = exports_.find(id);
  return it == exports_.end() ? nullptr : it->second.get();
}

void KvSender::Handle(const OpenExport& command) {
  TANDEM_CHECK(!command.blocks.empty(), "export ", command.export_id.value(), " has no blocks");
  TANDEM_CHECK(command.first_ordinal >= 0, "export ", command.export_id.value());
  TANDEM_CHECK(!exports_.contains(command.export_id), "export ", command.export_id.value(),
               " opened twice");
  const auto refuse = [&](const absl::Status& status) {
    context_.events.push_back(ExportFailed{.export_id = command.export_id, .status = status});
  };
  if (static_cast<int64_t>(exports_.size()) >= context_.options.exports_max) {
    refuse(absl::ResourceExhaustedError(
        absl::StrCat("export ", command.export_id.value(), ": ", exports_.size(),
                     " exports are open, the limit is ", context_.options.exports_max)));
    return;
  }
  const absl::StatusOr<PeerId> peer = context_.transport.Connect(command.peer);
  if (!peer.ok()) {
    refuse(peer.status());
    return;
  }
  const FrameKey key(*peer, command.lease, command.epoch);
  if (!by_frame_.emplace(key, command.export_id).second) {
    refuse(absl::AlreadyExistsError(absl::StrCat(
        "export ", command.export_id.value(), ": export ", by_frame_[key].value(), " fills lease ",
        command.lease.value(), " epoch ", command.epoch.value(), " already")));
    return;
  }
  exports_.emplace(command.export_id,
                   std::make_unique<Export>(command, *peer, context_.arena.layout()));
  ++peers_[*peer].exports;
  context_.counters.exports_open = static_cast<int64_t>(exports_.size());
}

void KvSender::Handle(const PushRange& command) {
  Export* exported = Find(command.export_id);
  if (exported == nullptr || exported->outcome.has_value()) return;  // it is ending
  const BlockRange range{.first_ordinal = command.first_ordinal,
                         .ordinal_count = command.ordinal_count,
                         .first_layer = command.first_layer,
                         .layer_count = command.layer_count};
  const bool inside = exported->cells.Contains(range);
  const std::vector<BlockRange> parts =
      inside ? exported->cells.Present(range) : std::vector<BlockRange>();
  const auto is_new = [&](const BlockRange& part) {
    return exported->cells.AllAre(part, CellState::kEmpty);
  };
  if (!inside || exported->first_token.has_value() ||
      !std::all_of(parts.begin(), parts.end(), is_new)) {
    End(*exported,
        absl::InvalidArgumentError(absl::StrCat(
            "export ", command.export_id.value(), ": pushed ordinals ", range.first_ordinal, "+",
            range.ordinal_count, " layers ", range.first_layer, "+", range.layer_count,
            ", which lie outside of ordinals ", exported->open.first_ordinal, "+",
            exported->open.blocks.size(), ", overlap an earlier push or follow FinishExport")),
        /*tell_receiver=*/true);
    Settle(command.export_id);
    return;
  }
  exported->first_push_at = std::min(exported->first_push_at, context_.now);
  NoteStretch(*exported);
  for (const BlockRange& part : parts) {
    exported->cells.Set(part, CellState::kFilled);
    AddPending(*exported, part);
  }
  QueueReady(*exported, /*all=*/false);
  Pump(*exported);
}

void KvSender::NoteStretch(Export& exported) const {
  const bool is_idle = exported.sends_in_flight == 0 && exported.queue.empty();
  if (!is_idle || exported.stretch_began == context_.now) return;
  exported.stretch_began = context_.now;
  exported.bytes_before_stretch = exported.bytes_sent;
}

void KvSender::AddPending(Export& exported, BlockRange range) {
  std::vector<BlockRange>& pending = exported.pending;
  // The merged range may be adjacent to yet another one.
  for (size_t i = 0; i < pending.size();) {
    if (MergeRange(range, pending[i])) {
      pending.erase(pending.begin() + static_cast<ptrdiff_t>(i));
      i = 0;
    } else {
      ++i;
    }
  }
  pending.push_back(range);
}

void KvSender::QueueReady(Export& exported, bool all) {
  std::vector<BlockRange> waiting;
  const size_t surplus =
      exported.pending.size() > kPendingRangesMax ? exported.pending.size() - kPendingRangesMax : 0;
  for (size_t i = 0; i < exported.pending.size(); ++i) {
    const BlockRange& range = exported.pending[i];
    if (!all && i >= surplus && range.cells() < FrameCellsMin()) {
      waiting.push_back(range);
      continue;
    }
    for (const BlockRange& part : SplitRange(range, FrameCellsMax())) {
      Enqueue(exported, {.range = part});
    }
  }
  exported.pending = std::move(waiting);
}

void KvSender::Enqueue(Export& exported, const Export::QueuedFrame& frame) {
  exported.queue.push_back(frame);
  exported.queued.Set(frame.range, CellState::kFilled);
}

void KvSender::Handle(const FinishExport& command) {
  Export* exported = Find(command.export_id);
  if (exported == nullptr || exported->outcome.has_value()) return;
  if (!exported->cells.AllFilled()) {
    End(*exported,
        absl::InvalidArgumentError(absl::StrCat("export ", command.export_id.value(),
                                                ": finished, but not all of its blocks and layers "
                                                "were pushed")),
        /*tell_receiver=*/true);
    Settle(command.export_id);
    return;
  }
  exported->first_token = command.first_token;
  exported->tokens = command.tokens;
  exported->loans = command.loans;
  exported->computed_at =
      command.computed_at == absl::InfinitePast() ? context_.now : command.computed_at;
  if (!exported->pending.empty()) NoteStretch(*exported);
  QueueReady(*exported, /*all=*/true);
  Pump(*exported);
}

void KvSender::Handle(const CancelExport& command) {
  Export* exported = Find(command.export_id);
  if (exported == nullptr) return;
  End(*exported, absl::CancelledError(command.reason), /*tell_receiver=*/true);
  Settle(command.export_id);
}

void KvSender::Settle(ExportId id) {
  Export* exported = Find(id);
  if (exported == nullptr || exported->sends_in_flight > 0) return;
  if (exported->outcome.has_value()) return Erase(*exported);
  if (exported->first_token.has_value() && !exported->fin_sent && exported->queue.empty()) {
    SendFin(*exported);
  }
}

void KvSender::SendFrame(Export& exported, const Export::QueuedFrame& queued,
                         PayloadStore::Outgoing payload) {
  const BlockRange& range = queued.range;
  const int64_t bytes = range.cells() * context_.layer_block_bytes();
  v1::KvFrame frame =
      context_.Header(exported.open.peer.incarnation, exported.open.lease, exported.open.epoch);
  v1::KvData& data = *frame.mutable_data();
  data.set_first_ordinal(range.first_ordinal);
  data.set_ordinal_count(range.ordinal_count);
  data.set_first_layer(range.first_layer);
  data.set_layer_count(range.layer_count);
  data.set_payload_bytes(bytes);
  data.set_payload_checksum(payload.checksum);
  data.set_block_order(context_.options.format.order);
  // The export itself is among the turns.
  data.set_more_follows(!exported.queue.empty() || peers_[exported.peer].turns.size() > 1);
  if (!queued.repeat) ++exported.data_frames;
  Peer& peer = peers_[exported.peer];
  peer.bytes_in_flight += bytes;
  ++peer.sends_in_flight;
  ++exported.sends_in_flight;
  context_.SendData(exported.peer, std::move(frame), std::move(payload.bytes),
                    [this, id = exported.open.export_id, bytes,
                     hold = std::move(payload.hold)](const absl::Status& status) mutable {
                      hold.reset();
                      OnSent(id, bytes, status);
                    });
}

void KvSender::OnSent(ExportId id, int64_t bytes, const absl::Status& status) {
  Export* exported = Find(id);
  TANDEM_CHECK(exported != nullptr, "export ", id.value(), " ended with a send in flight");
  Peer& peer = peers_[exported->peer];
  peer.bytes_in_flight -= bytes;
  --peer.sends_in_flight;
  --exported->sends_in_flight;
  if (status.ok()) {
    context_.NoteProgress(exported->peer);
    exported->bytes_sent += bytes;
    context_.counters.bytes_sent += bytes;
  } else {
    End(*exported,
        absl::UnavailableError(absl::StrCat("export ", id.value(), ": a send to node ",
                                            exported->open.peer.node.value(),
                                            " failed: ", status.message())),
        /*tell_receiver=*/true);
  }
  // Peers that wait come before this export, which may end in their turn.
  ResumeBlocked();
  exported = Find(id);
  if (exported != nullptr) Pump(*exported);
}

void KvSender::SendFin(Export& exported) {
  v1::KvFrame frame =
      context_.Header(exported.open.peer.incarnation, exported.open.lease, exported.open.epoch);
  frame.mutable_fin()->set_data_frames(exported.data_frames);
  *frame.mutable_fin()->mutable_first_token() = *exported.first_token;
  *frame.mutable_fin()->mutable_tokens() = exported.tokens;
  PutLoans(exported.loans, *frame.mutable_fin());
  const absl::Duration since = std::max(absl::ZeroDuration(), context_.now - exported.computed_at);
  frame.mutable_fin()->set_computed_us_ago(static_cast<uint64_t>(absl::ToInt64Microseconds(since)));
  exported.fin_sent = true;
  exported.repeat_fin_at = context_.now + kFinRepeatFactor * context_.options.nack_after;
  // Last: the export may end in it.
  context_.SendControl(exported.peer, std::move(frame),
                       [this, id = exported.open.export_id](const absl::Status& status) {
                         if (!status.ok()) OnFinNotSent(id, status);
                       });
}

void KvSender::OnFinNotSent(ExportId id, const absl::Status& status) {
  Export* exported = Find(id);
  if (exported == nullptr) return;
  End(*exported,
      absl::UnavailableError(absl::StrCat(
          "export ", id.value(), ": its FIN of ", exported->loans.size(), " loans, to node ",
          exported->open.peer.node.value(), ", was not sent: ", status.message())),
      /*tell_receiver=*/true);
  Settle(id);
}

KvSender::Export* KvSender::FindByFrame(PeerId from, const v1::KvFrame& frame) {
  const auto it = by_frame_.find(FrameKey(from, LeaseId(frame.lease_id()), Epoch(frame.epoch())));
  if (it == by_frame_.end()) return nullptr;
  return Find(it->second);
}

void KvSender::OnNack(PeerId from, const v1::KvFrame& frame) {
  Export* exported = FindByFrame(from, frame);
  if (exported == nullptr || exported->outcome.has_value()) return;
  if (frame.sender_incarnation() != exported->open.peer.incarnation.value()) {
    context_.Reject(from, frame,
                    absl::FailedPreconditionError("a NACK names another incarnation of this node"));
    return;
  }
  std::vector<BlockRange> ranges;
  int64_t cells = 0;
  for (const v1::KvRange& wire : frame.nack().missing()) {
    const std::optional<BlockRange> range = ToBlockRange(wire.first_ordinal(), wire.ordinal_count(),
                                                         wire.first_layer(), wire.layer_count());
    // A range that was never pushed may contain bytes that are not final, or another request's.
    if (!range.has_value() || !exported->cells.Contains(*range) ||
        !exported->cells.AllAre(*range, CellState::kFilled)) {
      context_.Reject(from, frame,
                      absl::OutOfRangeError("a NACK asks for a range that was not sent"));
      return;
    }
    cells += range->cells();
    ranges.push_back(*range);
  }
  const int64_t total_cells =
      static_cast<int64_t>(exported->open.blocks.size()) * context_.arena.layout().num_layers;
  if (cells > total_cells) {
    context_.Reject(
        from, frame,
        absl::OutOfRangeError(absl::StrCat("a NACK asks for ", cells,
                                           " cells, expected at most the export's ", total_cells)));
    return;
  }
  // What waits for its turn will be sent anyway.
  std::erase_if(ranges, [&](const BlockRange& range) {
    return exported->queued.AllAre(range, CellState::kFilled);
  });
  if (ranges.empty()) return;
  if (++exported->nack_rounds > context_.options.nack_rounds_max) {
    End(*exported,
        absl::DataLossError(absl::StrCat("export ", exported->open.export_id.value(),
                                         ": the receiver asked for missing data ",
                                         exported->nack_rounds, " times")),
        /*tell_receiver=*/true);
    Settle(exported->open.export_id);
    return;
  }
  for (const BlockRange& range : ranges) {
    for (const BlockRange& lacking : exported->queued.FindIn(range, CellState::kEmpty))
      for (const BlockRange& part : SplitRange(lacking, FrameCellsMax()))
        Enqueue(*exported, {.range = part, .repeat = true});
  }
  Pump(*exported);
}

void KvSender::OnAck(PeerId from, const v1::KvFrame& frame) {
  Export* exported = FindByFrame(from, frame);
  if (exported == nullptr || exported->outcome.has_value()) return;
  if (frame.sender_incarnation() != exported->open.peer.incarnation.value() ||
      !exported->fin_sent) {
    context_.Reject(from, frame,
                    absl::FailedPreconditionError(
                        "an ACK came before FIN, or names another incarnation of this node"));
    return;
  }
  End(*exported, absl::OkStatus(), /*tell_receiver=*/false);
  Settle(exported->open.export_id);
}

void KvSender::OnAbort(PeerId from, const v1::KvFrame& frame) {
  Export* exported = FindByFrame(from, frame);
  if (exported == nullptr) return;
  End(*exported,
      absl::AbortedError(absl::StrCat("export ", exported->open.export_id.value(), ": node ",
                                      exported->open.peer.node.value(),
                                      " refused it: ", frame.abort().reason())),
      /*tell_receiver=*/false);
  Settle(exported->open.export_id);
}

void KvSender::OnPeerLost(PeerId peer, const absl::Status& status) {
  std::vector<Export*> lost;
  for (auto& [id, exported] : exports_) {
    if (exported->peer == peer) lost.push_back(exported.get());
  }
  for (Export* exported : lost) {
    End(*exported,
        absl::UnavailableError(absl::StrCat("export ", exported->open.export_id.value(), ": node ",
                                            exported->open.peer.node.value(),
                                            " was lost: ", status.message())),
        /*tell_receiver=*/false);
    Settle(exported->open.export_id);
  }
}

void KvSender::End(Export& exported, const absl::Status& outcome, bool tell_receiver) {
  if (exported.outcome.has_value()) return;
  exported.outcome = outcome;
  exported.must_end_by = context_.now + context_.options.drain_after;
  exported.queue.clear();
  exported.pending.clear();
  if (tell_receiver) {
    context_.SendAbort(
        exported.peer,
        context_.Header(exported.open.peer.incarnation, exported.open.lease, exported.open.epoch),
        outcome.message(), /*from_receiver=*/false);
  }
}

void KvSender::Erase(Export& exported) {
  const ExportId id = exported.open.export_id;
  if (exported.outcome->ok()) {
    context_.events.push_back(
        ExportDone{.export_id = id,
                   .bytes_sent = exported.bytes_sent,
                   .transfer_time = context_.now - exported.first_push_at,
                   .last_stretch = context_.now - exported.stretch_began,
                   .last_stretch_bytes = exported.bytes_sent - exported.bytes_before_stretch});
  } else {
    context_.events.push_back(ExportFailed{.export_id = id, .status = *exported.outcome});
  }
  const auto peer = peers_.find(exported.peer);
  std::deque<ExportId>& turns = peer->second.turns;
  if (exported.has_turn) turns.erase(std::find(turns.begin(), turns.end(), id));
  if (--peer->second.exports == 0) {
    if (peer->second.is_blocked) std::erase(blocked_, exported.peer);
    peers_.erase(peer);
  }
  by_frame_.erase(FrameKey(exported.peer, exported.open.lease, exported.open.epoch));
  exports_.erase(id);
  context_.counters.exports_open = static_cast<int64_t>(exports_.size());
}

void KvSender::Tick(std::vector<PeerId>& stuck_peers) {
  std::vector<Export*> late;
  std::vector<ExportId> unanswered;
  for (auto& [id, exported] : exports_) {
    if (exported->outcome.has_value()) {
      if (!context_.Hangs(exported->peer, exported->must_end_by)) continue;
      stuck_peers.push_back(exported->peer);
      exported->must_end_by = absl::InfiniteFuture();
    } else if (exported->open.deadline <= context_.now) {
      late.push_back(exported.get());
    } else if (exported->fin_sent && exported->repeat_fin_at <= context_.now) {
      unanswered.push_back(id);
    }
  }
  for (const ExportId id : unanswered) SendFin(*exports_.at(id));
  for (Export* exported : late) {
    End(*exported,
        absl::DeadlineExceededError(
            absl::StrCat("export ", exported->open.export_id.value(), ": not acknowledged by node ",
                         exported->open.peer.node.value(), " by its deadline; ",
                         exported->bytes_sent, " bytes were sent")),
        /*tell_receiver=*/true);
    Settle(exported->open.export_id);
  }
  ResumeBlocked();
}

}  // namespace tandem::transfer
