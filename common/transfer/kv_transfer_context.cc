#include "common/transfer/kv_transfer_context.h"

#include <string>
#include <utility>

#include "common/telemetry/log.h"

namespace tandem::transfer {
namespace {

// The most answers to peers' frames in flight, whatever the peers send.
constexpr int64_t kControlSendsInFlightMax = 4096;
constexpr size_t kAbortReasonBytesMax = 200;

}  // namespace

v1::KvFrame KvTransferContext::Header(Incarnation receiver, LeaseId lease, Epoch epoch) const {
  v1::KvFrame frame;
  frame.set_sender_incarnation(options.incarnation.value());
  frame.set_receiver_incarnation(receiver.value());
  frame.set_lease_id(lease.value());
  frame.set_epoch(epoch.value());
  return frame;
}

void KvTransferContext::SendControl(PeerId peer, v1::KvFrame frame,
                                    absl::AnyInvocable<void(const absl::Status&)> done) {
  if (control_sends_in_flight_ >= kControlSendsInFlightMax) return;
  ++control_sends_in_flight_;
  ++counters.frames_sent;
  auth.Sign(frame);
  transport.Send(peer, frame, {},
                 [weak = std::weak_ptr<KvTransferContext*>(alive_),
                  done = std::move(done)](const absl::Status& status) mutable {
                   const auto alive = weak.lock();
                   if (alive == nullptr) return;
                   --(*alive)->control_sends_in_flight_;
                   if (done) done(status);
                 });
}

void KvTransferContext::SendAbort(PeerId peer, v1::KvFrame header, absl::string_view reason,
                                  bool from_receiver) {
  header.mutable_abort()->set_reason(std::string(reason.substr(0, kAbortReasonBytesMax)));
  header.mutable_abort()->set_from_receiver(from_receiver);
  SendControl(peer, std::move(header));
}

void KvTransferContext::SendData(PeerId peer, v1::KvFrame frame, GatherList payload,
                                 absl::AnyInvocable<void(const absl::Status&)> done) {
  ++counters.frames_sent;
  ++counters.sends_in_flight;
  auth.Sign(frame);
  transport.Send(peer, frame, std::move(payload),
                 [weak = std::weak_ptr<KvTransferContext*>(alive_),
                  done = std::move(done)](const absl::Status& status) mutable {
                   const auto alive = weak.lock();
                   if (alive == nullptr) return;
                   --(*alive)->counters.sends_in_flight;
                   done(status);
                 });
}

void KvTransferContext::ForgetOldProgress() {
  absl::erase_if(progress_,
                 [this](const auto& entry) { return entry.second + options.drain_after <= now; });
}

bool KvTransferContext::Hangs(PeerId peer, absl::Time must_end_by) const {
  if (must_end_by > now) return false;
  return !progress_.contains(peer) ||
         now >= must_end_by + (options.drain_max - options.drain_after);
}

void KvTransferContext::Reject(PeerId from, const v1::KvFrame& frame, const absl::Status& why) {
  ++counters.frames_rejected;
  if (now < next_reject_log_) {
    ++rejects_unlogged_;
    return;
  }
  Log(LogLevel::kWarning, "rejected a KV frame",
      {{"peer", from.value()},
       {"lease", frame.lease_id()},
       {"epoch", frame.epoch()},
       {"reason", why.message()},
       {"unlogged_before", rejects_unlogged_}});
  next_reject_log_ = now + absl::Seconds(1);
  rejects_unlogged_ = 0;
}

void KvTransferContext::RejectUntimely(PeerId from, const v1::KvFrame& frame,
                                       const absl::Status& why) {
  ++counters.frames_untimely;
  Log(LogLevel::kDebug, "a KV frame arrived too early or too late",
      {{"peer", from.value()},
       {"lease", frame.lease_id()},
       {"epoch", frame.epoch()},
       {"reason", why.message()}});
}

}  // namespace tandem::transfer
