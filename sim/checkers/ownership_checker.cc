#include "sim/checkers/ownership_checker.h"

#include <variant>

namespace tandem::sim {

bool OwnershipChecker::Receive::Overlaps(const Receive& other) const {
  return lease == other.lease && first_ordinal < other.first_ordinal + other.ordinal_count &&
         other.first_ordinal < first_ordinal + ordinal_count &&
         first_layer < other.first_layer + other.layer_count &&
         other.first_layer < first_layer + layer_count;
}

// ---- the core's commands

void OwnershipChecker::OnIssued(const transfer::TransferCommand& command) {
  std::visit([this](const auto& typed) { Issued(typed); }, command);
}

void OwnershipChecker::Issued(const transfer::OpenLease& command) {
  Lease& lease = leases_[command.lease];
  lease.first_ordinal = command.first_ordinal;
  lease.window_first_ordinal = command.window_first_ordinal;
  lease.blocks = command.blocks;
  for (const BlockId block : command.blocks) {
    const auto [it, added] = leased_.emplace(block, command.lease);
    if (!added)
      Violate(absl::StrCat("block ", block.value(), " is leased to ", it->second.value(), " and ",
                           command.lease.value()));
  }
}

void OwnershipChecker::Issued(const transfer::OpenExport& command) {
  Export& exported = exports_[command.export_id];
  exported.first_ordinal = command.first_ordinal;
  exported.blocks = command.blocks;
}

void OwnershipChecker::Issued(const transfer::PushRange& command) {
  const auto found = exports_.find(command.export_id);
  if (found == exports_.end()) return;
  Export& exported = found->second;
  for (int32_t i = 0; i < command.ordinal_count; ++i) {
    const int32_t at = command.first_ordinal + i - exported.first_ordinal;
    if (at < 0 || at >= static_cast<int32_t>(exported.blocks.size()))
      return Violate(absl::StrCat("export ", command.export_id.value(), ": pushed ordinal ",
                                  command.first_ordinal + i, " is not its own"));
    exported.pushed.insert(exported.blocks[at]);
  }
}

void OwnershipChecker::Issued(const transfer::FinishExport& command) {
  if (const auto found = exports_.find(command.export_id); found != exports_.end())
    found->second.finished = true;
}

void OwnershipChecker::Issued(const transfer::CancelExport& command) {
  if (const auto found = exports_.find(command.export_id); found != exports_.end())
    found->second.cancelled = true;
}

void OwnershipChecker::Issued(const transfer::CloseLease& command) {
  if (const auto found = leases_.find(command.lease); found != leases_.end())
    found->second.closing = true;
}

void OwnershipChecker::OnHandled(const transfer::TransferCommand& command) {
  if (const auto* open = std::get_if<transfer::OpenLease>(&command)) {
    leases_[open->lease].open = true;
    leases_[open->lease].epoch = open->epoch;
  } else if (const auto* raise = std::get_if<transfer::RaiseEpoch>(&command)) {
    const auto found = leases_.find(raise->lease);
    if (found != leases_.end() && found->second.epoch < raise->epoch)
      found->second.epoch = raise->epoch;
  } else if (const auto* close = std::get_if<transfer::CloseLease>(&command)) {
    if (const auto found = leases_.find(close->lease); found != leases_.end())
      found->second.closed = true;
  }
}

// ---- the KV plane's events

void OwnershipChecker::OnEmitted(const transfer::TransferEvent& event) {
  if (const auto* raised = std::get_if<transfer::EpochRaised>(&event)) return OnRaised(*raised);
  LeaseId ended;
  if (const auto* installed = std::get_if<transfer::LeaseInstalled>(&event))
    ended = installed->lease;
  else if (const auto* drained = std::get_if<transfer::LeaseDrained>(&event))
    ended = drained->lease;
  else
    return;
  const auto found = leases_.find(ended);
  if (found == leases_.end()) return;
  found->second.ended = true;
  if (std::holds_alternative<transfer::LeaseInstalled>(event) && !found->second.damaged.empty())
    Violate(absl::StrCat("lease ", ended.value(), " was installed with ",
                         found->second.damaged.size(), " damaged block layers"));
  for (const auto& [id, receive] : receives_)
    if (receive.lease == ended)
      Violate(absl::StrCat("lease ", ended.value(), " ended with receive ", id, " in flight"));
}

// Blocks reported as verified contain what was sent, in all layers, and no receive targets them.
void OwnershipChecker::OnRaised(const transfer::EpochRaised& event) {
  const auto found = leases_.find(event.lease);
  if (found == leases_.end()) return;
  Lease& lease = found->second;
  lease.verified = event.verified_blocks;
  const int32_t end = lease.first_ordinal + event.verified_blocks;
  for (int32_t ordinal = lease.first_ordinal; ordinal < end; ++ordinal)
    for (int32_t layer = 0; layer < layout_.num_layers; ++layer)
      if ((ordinal >= lease.window_first_ordinal || !layout_.IsWindowed(layer)) &&
          lease.intact.count({ordinal, layer}) == 0)
        Violate(absl::StrCat("lease ", event.lease.value(), ": ordinal ", ordinal, " layer ", layer,
                             " is reported as verified and is not"));
  for (const auto& [id, receive] : receives_)
    if (receive.lease == event.lease && receive.first_ordinal < end)
      Violate(absl::StrCat("lease ", event.lease.value(), ": receive ", id,
                           " is in flight to blocks reported as verified"));
}

void OwnershipChecker::OnDelivered(const transfer::TransferEvent& event) {
  LeaseId ended;
  if (const auto* done = std::get_if<transfer::ExportDone>(&event)) {
    exports_.erase(done->export_id);
    return;
  }
  if (const auto* failed = std::get_if<transfer::ExportFailed>(&event)) {
    exports_.erase(failed->export_id);
    return;
  }
  if (const auto* installed = std::get_if<transfer::LeaseInstalled>(&event)) {
    ended = installed->lease;
    // The core is already closing the lease: the blocks stay its own until LeaseDrained.
    if (const auto found = leases_.find(ended); found != leases_.end() && found->second.closing)
      return;
  } else if (const auto* drained = std::get_if<transfer::LeaseDrained>(&event)) {
    ended = drained->lease;
  } else {
    return;
  }
  const auto found = leases_.find(ended);
  if (found == leases_.end()) return;
  for (const BlockId block : found->second.blocks) leased_.erase(block);
  leases_.erase(found);
}

// ---- payloads

void OwnershipChecker::OnAdmitted(const v1::KvFrame& frame, uint64_t receive_id) {
  const LeaseId id(frame.lease_id());
  const v1::KvData& data = frame.data();
  const Receive receive{.lease = id,
                        .first_ordinal = static_cast<int32_t>(data.first_ordinal()),
                        .ordinal_count = static_cast<int32_t>(data.ordinal_count()),
                        .first_layer = static_cast<int32_t>(data.first_layer()),
                        .layer_count = static_cast<int32_t>(data.layer_count())};
  const auto found = leases_.find(id);
  if (found == leases_.end() || !found->second.open || found->second.closed ||
      found->second.ended) {
    Violate(absl::StrCat("a payload was accepted for lease ", id.value(), ", which is not open"));
  } else {
    const Lease& lease = found->second;
    if (lease.epoch.value() != frame.epoch())
      Violate(absl::StrCat("stale write: lease ", id.value(), " has epoch ", lease.epoch.value(),
                           ", but a payload of epoch ", frame.epoch(), " was accepted"));
    const int32_t last = lease.first_ordinal + static_cast<int32_t>(lease.blocks.size());
    if (receive.first_ordinal < lease.first_ordinal ||
        receive.first_ordinal + receive.ordinal_count > last)
      Violate(absl::StrCat("lease ", id.value(), ": a payload outside its blocks was accepted"));
    if (receive.first_ordinal < lease.first_ordinal + lease.verified)
      Violate(absl::StrCat("lease ", id.value(), ": a payload for verified blocks was accepted"));
  }
  for (const auto& [other_id, other] : receives_)
    if (receive.Overlaps(other))
      Violate(absl::StrCat("lease ", id.value(), ": two receives share bytes"));
  receives_[receive_id] = receive;
}

void OwnershipChecker::OnLanding(uint64_t receive_id, bool intact) {
  const auto receive = receives_.find(receive_id);
  if (receive == receives_.end()) return Violate("bytes landed for a receive that has ended");
  const auto found = leases_.find(receive->second.lease);
  if (found == leases_.end() || found->second.ended)
    return Violate(absl::StrCat("bytes landed in blocks of lease ", receive->second.lease.value(),
                                ", which has ended"));
  found->second.landed = true;
  const Receive& r = receive->second;
  for (int32_t ordinal = r.first_ordinal; ordinal < r.first_ordinal + r.ordinal_count; ++ordinal)
    for (int32_t layer = r.first_layer; layer < r.first_layer + r.layer_count; ++layer)
      if (intact) {
        found->second.damaged.erase({ordinal, layer});
        found->second.intact.insert({ordinal, layer});
      } else {
        found->second.intact.erase({ordinal, layer});
        found->second.damaged.insert({ordinal, layer});
      }
}

void OwnershipChecker::OnReceiveEnded(uint64_t receive_id) { receives_.erase(receive_id); }

// ---- the engine

void OwnershipChecker::CheckWritten(BlockId block, std::set<BlockId>& written) {
  if (!written.insert(block).second)
    Violate(absl::StrCat("block ", block.value(), " is written by two sequences of a step"));
  for (const auto& [id, exported] : exports_)
    if (exported.pushed.count(block) > 0)
      Violate(absl::StrCat("block ", block.value(), " is written while export ", id.value(),
                           " sends it"));
}

void OwnershipChecker::OnStep(absl::Span<const engine::SequenceSlice> slices) {
  std::set<BlockId> written;
  for (const engine::SequenceSlice& slice : slices) {
    const int64_t first_written = slice.num_computed / layout_.block_tokens;
    if (slice.forked_from.has_value() && leased_.contains(*slice.forked_from))
      Violate(absl::StrCat("block ", slice.forked_from->value(), " is copied while lease ",
                           leased_.at(*slice.forked_from).value(), " owns it"));
    const int64_t end =
        (slice.num_computed + slice.num_new + layout_.block_tokens - 1) / layout_.block_tokens;
    for (int64_t i = 0; i < end; ++i) {
      const BlockId block = slice.blocks[i];
      if (const auto lease = leased_.find(block); lease != leased_.end())
        Violate(absl::StrCat("block ", block.value(), " is in a step while lease ",
                             lease->second.value(), " owns it"));
      if (i >= first_written) CheckWritten(block, written);
    }
  }
}

void OwnershipChecker::OnLoad(const v1::NodeLoad& load) {
  const int64_t sum =
      load.blocks_free() + load.blocks_cached() + load.blocks_used() + load.blocks_quarantined();
  if (sum != load.blocks_total())
    Violate(absl::StrCat("free, cached, used and quarantined blocks are ", sum, " of ",
                         load.blocks_total()));
}

KvTransferStates OwnershipChecker::states() const {
  KvTransferStates states;
  for (const auto& [id, lease] : leases_) {
    if (lease.closed)
      ++states.draining;
    else if (lease.landed)
      ++states.filling;
    else
      ++states.reserved;
  }
  for (const auto& [id, exported] : exports_) {
    if (exported.cancelled)
      ++states.cancelled;
    else if (exported.finished)
      ++states.finished;
    else if (!exported.pushed.empty())
      ++states.pushing;
    else
      ++states.planned;
  }
  return states;
}

}  // namespace tandem::sim
