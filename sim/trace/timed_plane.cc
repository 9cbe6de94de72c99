#include "sim/trace/timed_plane.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace tandem::sim {

TimedPlane::TimedPlane(TimedNetwork& network, KvPlaneSite site)
    : network_(network),
      site_(std::move(site)),
      address_(absl::StrCat(site_.process.name(), "/", site_.incarnation.value())),
      block_bytes_(site_.engine.spec().layout.block_bytes()) {
  network_.planes_[address_] = this;
}

TimedPlane::~TimedPlane() { network_.planes_.erase(address_); }

TimedPlane* TimedPlane::Find(const std::string& address) const {
  const auto found = network_.planes_.find(address);
  return found == network_.planes_.end() ? nullptr : found->second;
}

void TimedPlane::Emit(transfer::TransferEvent event) { events_.push_back(std::move(event)); }

std::vector<transfer::TransferEvent> TimedPlane::TakeEvents() {
  return std::exchange(events_, std::vector<transfer::TransferEvent>());
}

void TimedPlane::Handle(const transfer::TransferCommand& command, absl::Time now) {
  now_ = now;
  std::visit([this](const auto& typed) { Do(typed); }, command);
  counters_.leases_open = static_cast<int64_t>(leases_.size());
  counters_.exports_open = static_cast<int64_t>(exports_.size());
}

void TimedPlane::Tick(absl::Time now) {
  now_ = now;
  const auto late = [] {
    return absl::DeadlineExceededError("the transfer's deadline has passed");
  };
  for (auto& [id, lease] : leases_)
    if (lease.deadline <= now) FailLease(id, lease.epoch, late());
  std::vector<transfer::ExportId> expired;
  for (const auto& [id, sent] : exports_)
    if (sent.deadline <= now) expired.push_back(id);
  for (const transfer::ExportId id : expired) FailExport(id, late());
}

// ---- receiving side

void TimedPlane::Do(const transfer::OpenLease& command) {
  leases_[command.lease] = {.epoch = command.epoch, .deadline = command.deadline};
}

void TimedPlane::Do(const transfer::RaiseEpoch& command) {
  const auto found = leases_.find(command.lease);
  if (found == leases_.end()) return;  // installed or closed before
  found->second = {.epoch = command.epoch, .deadline = command.deadline};
  Emit(transfer::EpochRaised{.lease = command.lease, .epoch = command.epoch});
}

void TimedPlane::Do(const transfer::CloseLease& command) {
  leases_.erase(command.lease);
  Emit(transfer::LeaseDrained{.lease = command.lease});
}

void TimedPlane::FailLease(LeaseId id, Epoch epoch, const absl::Status& status) {
  const auto found = leases_.find(id);
  if (found == leases_.end() || found->second.epoch != epoch || found->second.failed) return;
  found->second.failed = true;
  Emit(transfer::LeaseFailed{.lease = id, .epoch = epoch, .status = status});
}

bool TimedPlane::Install(const Export& sent, absl::Time now) {
  const auto found = leases_.find(sent.lease);
  if (found == leases_.end() || found->second.epoch != sent.epoch || found->second.failed)
    return false;
  leases_.erase(found);
  counters_.bytes_received += sent.bytes;
  Emit(transfer::LeaseInstalled{
      .lease = sent.lease,
      .epoch = sent.epoch,
      .first_token = sent.finish.first_token,
      .tokens = sent.finish.tokens,
      .bytes_received = sent.bytes,
      .transfer_time = std::max(absl::ZeroDuration(), now - sent.first_push),
      .receive_time = sent.on_wire,
      .transport = "timed",
      .loans = sent.finish.loans});
  return true;
}

// ---- sending side

void TimedPlane::Do(const transfer::OpenExport& command) {
  exports_[command.export_id] = {.receiver = command.peer.transport_address,
                                 .lease = command.lease,
                                 .epoch = command.epoch,
                                 .deadline = command.deadline};
}

void TimedPlane::Do(const transfer::PushRange& command) {
  const auto found = exports_.find(command.export_id);
  if (found == exports_.end()) return;
  Export& sent = found->second;
  TimedPlane* receiver = Find(sent.receiver);
  if (receiver == nullptr)
    return FailExport(found->first, absl::UnavailableError("the receiver is gone"));
  const int64_t bytes = command.ordinal_count * block_bytes_;  // of the engine's one layer
  const absl::Duration wire =
      absl::Seconds(static_cast<double>(bytes) / network_.options_.bytes_per_second);
  const absl::Time start = std::max({now_, sending_until_, receiver->receiving_until_});
  if (sent.through < now_) {
    sent.stretch_began = now_;
    sent.bytes_before_stretch = sent.bytes;
  }
  sending_until_ = receiver->receiving_until_ = sent.through = start + wire;
  sent.first_push = std::min(sent.first_push, now_);
  sent.bytes += bytes;
  sent.on_wire += wire;
}

void TimedPlane::Do(const transfer::FinishExport& command) {
  const auto found = exports_.find(command.export_id);
  if (found == exports_.end() || found->second.finished) return;
  found->second.finish = command;
  found->second.finished = true;
  const absl::Duration rest = std::max(absl::ZeroDuration(), found->second.through - now_);
  site_.process.Post(rest + network_.options_.latency,
                     [this, id = command.export_id] { Deliver(id); });
}

void TimedPlane::Do(const transfer::CancelExport& command) {
  FailExport(command.export_id, absl::CancelledError(command.reason));
}

void TimedPlane::Deliver(transfer::ExportId id) {
  const auto found = exports_.find(id);
  if (found == exports_.end()) return;
  TimedPlane* receiver = Find(found->second.receiver);
  if (receiver == nullptr || !receiver->Install(found->second, site_.process.Now())) {
    FailExport(id, absl::FailedPreconditionError("the receiver does not expect these blocks"));
    return site_.on_activity();
  }
  counters_.bytes_sent += found->second.bytes;
  receiver->site_.on_activity();
  site_.process.Post(network_.options_.latency, [this, id] {
    const auto sent = exports_.find(id);
    if (sent == exports_.end()) return;
    const absl::Duration took = site_.process.Now() - sent->second.first_push;
    Emit(transfer::ExportDone{
        .export_id = id,
        .bytes_sent = sent->second.bytes,
        .transfer_time = std::max(absl::ZeroDuration(), took),
        .last_stretch = site_.process.Now() - sent->second.stretch_began,
        .last_stretch_bytes = sent->second.bytes - sent->second.bytes_before_stretch});
    exports_.erase(sent);
    site_.on_activity();
  });
}

void TimedPlane::FailExport(transfer::ExportId id, const absl::Status& status) {
  const auto found = exports_.find(id);
  if (found == exports_.end()) return;
  site_.process.Post(network_.options_.latency,
                     [this, receiver = found->second.receiver, lease = found->second.lease,
                      epoch = found->second.epoch, status] {
                       TimedPlane* plane = Find(receiver);
                       if (plane == nullptr) return;
                       plane->FailLease(lease, epoch, status);
                       plane->site_.on_activity();
                     });
  exports_.erase(found);
  Emit(transfer::ExportFailed{.export_id = id, .status = status});
}

}  // namespace tandem::sim
