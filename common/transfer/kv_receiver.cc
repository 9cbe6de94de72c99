#include "common/transfer/kv_receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutation.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "common/transfer/fin_loans.h"

namespace tandem::transfer {
namespace {

// Keeps a NACK's header within the smallest active message header of UCX's transports (8 KiB).
constexpr size_t kNackRangesMax = 128;

// A peer's word: a figure for people, which decides nothing.
absl::Duration ComputedAgo(const v1::KvFin& fin) {
  constexpr uint64_t kMaxUs = uint64_t{3600} * 1000 * 1000;
  return absl::Microseconds(static_cast<int64_t>(std::min(fin.computed_us_ago(), kMaxUs)));
}

int64_t CellKey(int32_t ordinal, int32_t layer) { return (int64_t{ordinal} << 32) | layer; }

}  // namespace

void KvReceiver::Handle(const OpenLease& command) {
  TANDEM_CHECK(!command.blocks.empty(), "lease ", command.lease.value(), " has no blocks");
  TANDEM_CHECK(command.first_ordinal >= 0, "lease ", command.lease.value());
  TANDEM_CHECK(!leases_.contains(command.lease), "lease ", command.lease.value(), " opened twice");
  for (const BlockId block : command.blocks) {
    TANDEM_CHECK(block.value() >= 0 && block.value() < context_.arena.num_blocks(), "lease ",
                 command.lease.value(), ": block ", block.value());
  }
  if (static_cast<int64_t>(leases_.size()) >= context_.options.leases_max) {
    context_.events.push_back(
        LeaseFailed{.lease = command.lease,
                    .epoch = command.epoch,
                    .status = absl::ResourceExhaustedError(absl::StrCat(
                        "lease ", command.lease.value(), ": ", leases_.size(),
                        " leases are open, the limit is ", context_.options.leases_max))});
    return;
  }
  leases_.emplace(command.lease, std::make_unique<Lease>(command, context_.arena.layout()));
  context_.counters.leases_open = static_cast<int64_t>(leases_.size());
}

void KvReceiver::Handle(const RaiseEpoch& command) {
  const auto it = leases_.find(command.lease);
  // The lease was installed or ended meanwhile: the core's events report it.
  if (it == leases_.end()) return;
  Lease& lease = *it->second;
  if (lease.draining || !(lease.epoch < command.epoch)) return;
  if (!lease.failed) AbortSender(lease, "a newer epoch took over");
  StartEpoch(lease, command.epoch);
  lease.deadline = command.deadline;
  int32_t verified = lease.cells.FilledPrefix();
  if (TANDEM_MUTATED(kVerifiedOvercounted)) verified = static_cast<int32_t>(lease.blocks.size());
  context_.events.push_back(
      EpochRaised{.lease = lease.id, .epoch = lease.epoch, .verified_blocks = verified});
}

void KvReceiver::StartEpoch(Lease& lease, Epoch epoch) {
  HurryReceives(lease);
  lease.epoch = epoch;
  lease.failed = false;
  lease.sender.reset();
  lease.data_frames_seen = 0;
  lease.fin.reset();
  lease.nack_at = absl::InfiniteFuture();
  lease.checksum_failures.clear();
}

void KvReceiver::Handle(const CloseLease& command) {
  const auto it = leases_.find(command.lease);
  if (it == leases_.end()) {
    context_.events.push_back(LeaseDrained{.lease = command.lease});
    return;
  }
  Lease& lease = *it->second;
  if (lease.draining) return;  // the first CloseLease is answered when the drain ends
  if (!lease.failed) AbortSender(lease, command.reason);
  lease.draining = true;
  HurryReceives(lease);
  DrainIfIdle(lease);
}

void KvReceiver::HurryReceives(const Lease& lease) {
  if (lease.receives_in_flight == 0) return;
  for (auto& [id, receive] : receives_) {
    if (receive.lease == lease.id) {
      receive.must_end_by =
          std::min(receive.must_end_by, context_.now + context_.options.drain_after);
    }
  }
}

void KvReceiver::AbortSender(const Lease& lease, absl::string_view reason) {
  if (!lease.sender.has_value()) return;
  context_.SendAbort(*lease.sender,
                     context_.Header(lease.sender_incarnation, lease.id, lease.epoch), reason,
                     /*from_receiver=*/true);
}

void KvReceiver::Fail(Lease& lease, const absl::Status& status) {
  if (lease.failed || lease.draining) return;
  lease.failed = true;
  lease.nack_at = absl::InfiniteFuture();
  HurryReceives(lease);
  context_.events.push_back(LeaseFailed{.lease = lease.id, .epoch = lease.epoch, .status = status});
}

void KvReceiver::RejectUnknown(PeerId from, const v1::KvFrame& frame) {
  // The core's OpenLease may still be in the command queue, so DATA for an unknown lease is only
  // dropped. FIN comes last, has waited for the queue, and needs an answer.
  const bool ended = ended_.contains(LeaseId(frame.lease_id()));
  const absl::Status why = absl::NotFoundError(ended ? "the lease has ended" : "no such lease");
  if (ended || !frame.has_fin()) {
    context_.RejectUntimely(from, frame, why);
  } else {
    context_.Reject(from, frame, why);
  }
  if (!frame.has_fin() && !ended) return;
  context_.SendAbort(from,
                     context_.Header(Incarnation(frame.sender_incarnation()),
                                     LeaseId(frame.lease_id()), Epoch(frame.epoch())),
                     "no such lease", /*from_receiver=*/true);
}

KvReceiver::Lease* KvReceiver::Admit(PeerId from, const v1::KvFrame& frame) {
  const auto it = leases_.find(LeaseId(frame.lease_id()));
  if (it == leases_.end()) {
    RejectUnknown(from, frame);
    return nullptr;
  }
  Lease& lease = *it->second;
  if (lease.epoch.value() < frame.epoch()) {
    // The core's RaiseEpoch is still in the command queue; the sender will repeat what is missing.
    context_.RejectUntimely(
        from, frame,
        absl::FailedPreconditionError(absl::StrCat("the frame has epoch ", frame.epoch(),
                                                   ", the lease has epoch ", lease.epoch.value())));
    return nullptr;
  }
  absl::string_view why;
  if (!TANDEM_MUTATED(kEpochCheckDropped) && frame.epoch() != lease.epoch.value()) {
    why = "stale epoch";
  } else if (lease.draining) {
    why = "the lease was closed";
  } else if (lease.failed) {
    why = "the epoch failed";
  } else if (lease.sender.has_value() &&
             (*lease.sender != from ||
              lease.sender_incarnation.value() != frame.sender_incarnation())) {
    why = "another sender fills this epoch";
  }
  if (!why.empty()) {
    context_.RejectUntimely(from, frame,
                            absl::FailedPreconditionError(
                                absl::StrCat(why, ": lease has epoch ", lease.epoch.value())));
    context_.SendAbort(
        from,
        context_.Header(Incarnation(frame.sender_incarnation()), lease.id, Epoch(frame.epoch())),
        why, /*from_receiver=*/true);
    return nullptr;
  }
  return &lease;
}

absl::Status KvReceiver::CheckData(const Lease& lease, const v1::KvData& data,
                                   const std::optional<BlockRange>& range,
                                   size_t payload_bytes) const {
  if (!range.has_value() || !lease.cells.Contains(*range)) {
    return absl::OutOfRangeError(
        absl::StrCat("ordinals ", data.first_ordinal(), "+", data.ordinal_count(), " layers ",
                     data.first_layer(), "+", data.layer_count(),
                     " are not inside the lease's ordinals ", lease.first_ordinal, "+",
                     lease.blocks.size(), " layers 0+", context_.arena.layout().num_layers));
  }
  const uint64_t planned = static_cast<uint64_t>(range->cells() * context_.layer_block_bytes());
  if (data.payload_bytes() != planned || payload_bytes != planned) {
    return absl::InvalidArgumentError(
        absl::StrCat("the payload has ", payload_bytes, " bytes and the header says ",
                     data.payload_bytes(), ", expected ", planned, " for this range"));
  }
  RETURN_IF_ERROR(kv::CheckReorder(context_.options.format, data.block_order()));
  if (!lease.cells.AllAre(*range, CellState::kEmpty)) {
    return absl::AlreadyExistsError(
        "part of the range is filled or in flight, expected an empty range");
  }
  return absl::OkStatus();
}

std::optional<ScatterList> KvReceiver::OnData(PeerId from, const v1::KvFrame& frame,
                                              size_t payload_bytes, uint64_t receive_id) {
  if (WasInstalled(frame)) {
    context_.RejectUntimely(from, frame, absl::AlreadyExistsError("the lease is installed"));
    return std::nullopt;
  }
  Lease* lease = Admit(from, frame);
  if (lease == nullptr) return std::nullopt;
  const v1::KvData& data = frame.data();
  const std::optional<BlockRange> range = ToBlockRange(data.first_ordinal(), data.ordinal_count(),
                                                       data.first_layer(), data.layer_count());
  const absl::Status check = CheckData(*lease, data, range, payload_bytes);
  if (check.ok() || check.code() == absl::StatusCode::kAlreadyExists) ++lease->data_frames_seen;
  if (!check.ok()) {
    // A failover sends ranges again, as the epoch before may have filled them meanwhile.
    if (absl::IsAlreadyExists(check))
      context_.RejectUntimely(from, frame, check);
    else
      context_.Reject(from, frame, check);
    return std::nullopt;
  }
  absl::StatusOr<PayloadStore::Landing> place =
      context_.payloads.Reserve({*range, lease->blocks, lease->first_ordinal});
  if (!place.ok()) {
    context_.Reject(from, frame, place.status());
    return std::nullopt;
  }
  TANDEM_CHECK(!receives_.contains(receive_id), "receive ", receive_id, " twice");
  more_follows_ = data.more_follows();
  lease->sender = from;
  lease->sender_incarnation = Incarnation(frame.sender_incarnation());
  lease->first_frame_at = std::min(lease->first_frame_at, context_.now);
  lease->cells.Set(*range, CellState::kInFlight);
  ++lease->receives_in_flight;
  ++context_.counters.receives_in_flight;
  const ScatterList bytes = place->bytes;
  receives_.emplace(receive_id, Receive{.lease = lease->id,
                                        .epoch = lease->epoch,
                                        .from = from,
                                        .range = *range,
                                        .checksum = data.payload_checksum(),
                                        .order = data.block_order(),
                                        .place = *std::move(place)});
  return bytes;
}

void KvReceiver::OnPayload(uint64_t receive_id, const absl::Status& status,
                           const ReceiveInterval& interval) {
  const auto it = receives_.find(receive_id);
  TANDEM_CHECK(it != receives_.end(), "payload of unknown receive ", receive_id);
  const Receive receive = std::move(it->second);
  receives_.erase(it);
  --context_.counters.receives_in_flight;
  const auto found = leases_.find(receive.lease);
  TANDEM_CHECK(found != leases_.end(), "lease ", receive.lease.value(),
               " was forgotten with a receive in flight");
  Lease& lease = *found->second;
  --lease.receives_in_flight;
  const bool landed = status.ok() || absl::IsDataLoss(status);
  if (landed) context_.NoteProgress(receive.from);
  if (landed && !lease.draining && receive.epoch == lease.epoch) {
    OnLanded(lease, receive, status, interval);
  } else {
    lease.cells.Set(receive.range, CellState::kEmpty);
  }
  if (lease.draining) {
    DrainIfIdle(lease);
  } else {
    NackMissing(lease);
    InstallIfComplete(lease);
  }
}

void KvReceiver::OnLanded(Lease& lease, const Receive& receive, const absl::Status& status,
                          const ReceiveInterval& interval) {
  absl::Status installed = status;
  if (status.ok()) {
    installed =
        context_.payloads.Install({receive.range, lease.blocks, lease.first_ordinal}, receive.place,
                                  receive.checksum, receive.order, interval.checksum);
  }
  if (!installed.ok()) {
    lease.cells.Set(receive.range, CellState::kEmpty);
    if (absl::IsDataLoss(installed)) {
      ++context_.counters.checksum_failures;
      OnChecksumFailure(lease, receive.range);
    } else {
      AbortSender(lease, "the payload could not be installed");
      Fail(lease, installed);
    }
    return;
  }
  // The verified bytes of a failed epoch stay too: the next sender need not send them.
  lease.cells.Set(receive.range, CellState::kFilled);
  const int64_t bytes = receive.range.cells() * context_.layer_block_bytes();
  lease.bytes_received += bytes;
  lease.receiving.Add(interval.began, interval.landed);
  last_landing_ = std::max(last_landing_, interval.landed);
  context_.counters.bytes_received += bytes;
}

void KvReceiver::OnChecksumFailure(Lease& lease, const BlockRange& range) {
  if (lease.failed) return;
  int failures = 0;
  for (int32_t layer = range.first_layer; layer < range.first_layer + range.layer_count; ++layer) {
    for (int32_t i = 0; i < range.ordinal_count; ++i) {
      failures =
          std::max(failures, ++lease.checksum_failures[CellKey(range.first_ordinal + i, layer)]);
    }
  }
  Log(LogLevel::kWarning, "KV payload damaged",
      {{"lease", lease.id.value()},
       {"epoch", lease.epoch.value()},
       {"first_ordinal", range.first_ordinal},
       {"first_layer", range.first_layer},
       {"failures", failures}});
  if (failures <= context_.options.checksum_retries_max) {
    SendNack(lease, {range});
    return;
  }
  AbortSender(lease, "repeated checksum failure");
  Fail(lease, absl::DataLossError(
                  absl::StrCat("lease ", lease.id.value(), ": ordinals ", range.first_ordinal, "+",
                               range.ordinal_count, " layers ", range.first_layer, "+",
                               range.layer_count, " failed their checksum ", failures, " times")));
}

bool KvReceiver::MayBeEarly(const v1::KvFrame& frame) const {
  const LeaseId id(frame.lease_id());
  const auto it = leases_.find(id);
  if (it == leases_.end()) return !ended_.contains(id);
  return it->second->epoch.value() < frame.epoch();
}

void KvReceiver::OnFin(PeerId from, const v1::KvFrame& frame) {
  if (MayBeEarly(frame) &&
      static_cast<int64_t>(early_fins_.size()) < context_.options.early_fins_max) {
    early_fins_.push_back({from, frame});
    return;
  }
  TakeFin(from, frame);
}

void KvReceiver::TakeEarlyFins() {
  for (const EarlyFin& early : std::exchange(early_fins_, {})) TakeFin(early.from, early.frame);
}

void KvReceiver::TakeFin(PeerId from, const v1::KvFrame& frame) {
  if (WasInstalled(frame)) {
    v1::KvFrame ack = context_.Header(Incarnation(frame.sender_incarnation()),
                                      LeaseId(frame.lease_id()), Epoch(frame.epoch()));
    ack.mutable_ack();
    context_.SendControl(from, std::move(ack));
    return;
  }
  Lease* lease = Admit(from, frame);
  if (lease == nullptr) return;
  lease->sender = from;
  lease->sender_incarnation = Incarnation(frame.sender_incarnation());
  lease->first_frame_at = std::min(lease->first_frame_at, context_.now);
  if (!lease->fin.has_value()) {
    lease->fin = frame.fin();
    lease->computed_at = LatestTime() - ComputedAgo(frame.fin());
    lease->nack_at = context_.now + context_.options.nack_after;
    // Every frame has been seen, but something is missing: ask at once.
    if (lease->data_frames_seen >= frame.fin().data_frames()) lease->nack_at = context_.now;
  }
  NackMissing(*lease);
  InstallIfComplete(*lease);
}

void KvReceiver::NackMissing(Lease& lease) {
  if (!lease.fin.has_value() || lease.failed || lease.draining) return;
  if (context_.now < lease.nack_at) return;
  const std::vector<BlockRange> missing = lease.cells.Find(CellState::kEmpty, kNackRangesMax);
  if (!missing.empty()) SendNack(lease, missing);
}

void KvReceiver::SendNack(Lease& lease, absl::Span<const BlockRange> ranges) {
  v1::KvFrame nack = context_.Header(lease.sender_incarnation, lease.id, lease.epoch);
  nack.mutable_nack();
  for (const BlockRange& range : ranges) *nack.mutable_nack()->add_missing() = ToWire(range);
  context_.SendControl(*lease.sender, std::move(nack));
  if (lease.fin.has_value()) lease.nack_at = context_.now + context_.options.nack_after;
}

void KvReceiver::OnAbort(PeerId from, const v1::KvFrame& frame) {
  const auto it = leases_.find(LeaseId(frame.lease_id()));
  if (it == leases_.end()) return;  // it has ended; an ABORT is never answered
  Lease& lease = *it->second;
  if (lease.epoch.value() != frame.epoch()) {
    context_.RejectUntimely(
        from, frame,
        absl::FailedPreconditionError(absl::StrCat("an ABORT came from epoch ", frame.epoch(),
                                                   ", the lease has epoch ", lease.epoch.value())));
    return;
  }
  if (lease.sender.has_value() && *lease.sender != from) {
    context_.Reject(from, frame,
                    absl::FailedPreconditionError("an ABORT came from another sender"));
    return;
  }
  Fail(lease, absl::AbortedError(absl::StrCat("lease ", lease.id.value(),
                                              ": the sender gave up: ", frame.abort().reason())));
}

void KvReceiver::OnPeerLost(PeerId peer, const absl::Status& status) {
  std::erase_if(early_fins_, [peer](const EarlyFin& early) { return early.from == peer; });
  for (auto& [id, lease] : leases_) {
    if (lease->sender != peer) continue;
    Fail(*lease, absl::UnavailableError(absl::StrCat("lease ", id.value(),
                                                     ": the sender was lost: ", status.message())));
  }
}

void KvReceiver::InstallIfComplete(Lease& lease) {
  if (!lease.fin.has_value() || lease.failed || lease.draining || !lease.cells.AllFilled()) return;
  TANDEM_CHECK(lease.receives_in_flight == 0, "lease ", lease.id.value());
  v1::KvFrame ack = context_.Header(lease.sender_incarnation, lease.id, lease.epoch);
  ack.mutable_ack();
  context_.SendControl(*lease.sender, std::move(ack));
  const absl::Time installed_at = LatestTime();
  const absl::Time exposed_from = std::max(lease.computed_at, lease.first_frame_at);
  const absl::Duration exposed = lease.receiving.TotalAfter(exposed_from);
  context_.events.push_back(LeaseInstalled{
      .lease = lease.id,
      .epoch = lease.epoch,
      .first_token = lease.fin->first_token(),
      .tokens = lease.fin->tokens(),
      .bytes_received = lease.bytes_received,
      .transfer_time = installed_at - lease.first_frame_at,
      .receive_time = lease.receiving.total(),
      .hidden_time = lease.receiving.total() - exposed,
      .beyond_time = std::max(absl::ZeroDuration(), installed_at - exposed_from - exposed),
      .transport = context_.transport.TransportName(*lease.sender),
      .loans = LoansOf(*lease.fin)});
  Forget(lease, lease.epoch);
}

void KvReceiver::DrainIfIdle(Lease& lease) {
  if (lease.receives_in_flight > 0) return;
  context_.events.push_back(LeaseDrained{.lease = lease.id});
  Forget(lease, std::nullopt);
}

bool KvReceiver::WasInstalled(const v1::KvFrame& frame) const {
  const auto it = ended_.find(LeaseId(frame.lease_id()));
  return it != ended_.end() && it->second.has_value() && it->second->value() == frame.epoch();
}

void KvReceiver::Forget(const Lease& lease, std::optional<Epoch> installed) {
  const LeaseId id = lease.id;
  if (ended_.insert_or_assign(id, installed).second) ended_order_.push_back(id);
  while (static_cast<int64_t>(ended_order_.size()) > context_.options.remembered_acks_max) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
  leases_.erase(id);
  context_.counters.leases_open = static_cast<int64_t>(leases_.size());
}

void KvReceiver::Tick(std::vector<PeerId>& stuck_peers) {
  more_follows_ = false;
  for (auto& [id, lease] : leases_) {
    if (!lease->failed && !lease->draining && lease->deadline <= context_.now) {
      AbortSender(*lease, "deadline");
      Fail(*lease, absl::DeadlineExceededError(
                       absl::StrCat("lease ", id.value(), ": ", lease->cells.filled_count(), " of ",
                                    lease->blocks.size() * context_.arena.layout().num_layers,
                                    " block layers verified by the deadline")));
    }
    NackMissing(*lease);
  }
  for (auto& [id, receive] : receives_) {
    if (!context_.Hangs(receive.from, receive.must_end_by)) continue;
    stuck_peers.push_back(receive.from);
    receive.must_end_by = absl::InfiniteFuture();
  }
}

}  // namespace tandem::transfer
