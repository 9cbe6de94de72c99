#include "common/transfer/kv_transfer_endpoint.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/telemetry/log.h"
#include "common/transfer/kv_receiver.h"
#include "common/transfer/kv_sender.h"
#include "common/transfer/kv_transfer_context.h"

namespace tandem::transfer {
namespace {

// Deadlines are checked at most this often, however often Tick is called: a check visits every
// lease.
constexpr absl::Duration kScanEvery = absl::Milliseconds(5);

class KvTransferEndpointImpl final : public KvTransferEndpoint {
 public:
  KvTransferEndpointImpl(const KvTransferOptions& options, kv::BlockArena& arena,
                         KvTransport& transport)
      : context_(options, arena, transport), receiver_(context_), sender_(context_) {
    transport.SetListener(this);
  }
  ~KvTransferEndpointImpl() override { context_.transport.SetListener(nullptr); }

  void Handle(const TransferCommand& command, absl::Time now) override {
    context_.now = std::max(context_.now, now);
    std::visit([this](const auto& typed) { Dispatch(typed); }, command);
  }

  bool Tick(absl::Time now) override {
    context_.now = std::max(context_.now, now);
    receiver_.TakeEarlyFins();
    if (context_.now >= next_scan_) CheckDeadlines();
    return sender_.Continue();
  }

  bool ExpectsMore() const override { return sender_.WaitsForRoom() || receiver_.more_follows(); }

  std::vector<TransferEvent> TakeEvents() override {
    return std::exchange(context_.events, std::vector<TransferEvent>());
  }
  TransferCounters counters() const override { return context_.counters; }

  std::optional<ScatterList> OnFrame(PeerId from, const v1::KvFrame& frame, size_t payload_bytes,
                                     uint64_t receive_id) override {
    ++context_.counters.frames_received;
    if (!context_.auth.Verify(frame)) {
      context_.Reject(from, frame,
                      absl::PermissionDeniedError("the frame's tag is not of this fleet's secret"));
      return std::nullopt;
    }
    if (frame.receiver_incarnation() != context_.options.incarnation.value()) {
      RejectIncarnation(from, frame);
      return std::nullopt;
    }
    if (frame.kind_case() == v1::KvFrame::kData) {
      return receiver_.OnData(from, frame, payload_bytes, receive_id);
    }
    if (payload_bytes > 0) {
      context_.Reject(
          from, frame,
          absl::InvalidArgumentError("a control frame carries a payload, expected none"));
      return std::nullopt;
    }
    OnControl(from, frame);
    return std::nullopt;
  }

  void OnPayload(uint64_t receive_id, const absl::Status& status,
                 const ReceiveInterval& interval) override {
    receiver_.OnPayload(receive_id, status, interval);
  }

  void OnPeerLost(PeerId peer, const absl::Status& status) override {
    receiver_.OnPeerLost(peer, status);
    sender_.OnPeerLost(peer, status);
  }

 private:
  void CheckDeadlines() {
    next_scan_ = context_.now + kScanEvery;
    context_.ForgetOldProgress();
    std::vector<PeerId> stuck;
    receiver_.Tick(stuck);
    sender_.Tick(stuck);
    std::sort(stuck.begin(), stuck.end());
    stuck.erase(std::unique(stuck.begin(), stuck.end()), stuck.end());
    for (const PeerId peer : stuck) {
      Log(LogLevel::kWarning, "a KV peer hangs; dropping its connection", {{"peer", peer.value()}});
      context_.transport.Disconnect(peer);
      OnPeerLost(peer, absl::UnavailableError("the peer hangs; the connection was dropped"));
    }
  }

  void Dispatch(const OpenLease& command) { receiver_.Handle(command); }
  void Dispatch(const RaiseEpoch& command) { receiver_.Handle(command); }
  void Dispatch(const CloseLease& command) { receiver_.Handle(command); }
  void Dispatch(const OpenExport& command) { sender_.Handle(command); }
  void Dispatch(const PushRange& command) { sender_.Handle(command); }
  void Dispatch(const FinishExport& command) { sender_.Handle(command); }
  void Dispatch(const CancelExport& command) { sender_.Handle(command); }

  void OnControl(PeerId from, const v1::KvFrame& frame) {
    switch (frame.kind_case()) {
      case v1::KvFrame::kFin:
        receiver_.OnFin(from, frame);
        return;
      case v1::KvFrame::kNack:
        sender_.OnNack(from, frame);
        return;
      case v1::KvFrame::kAck:
        sender_.OnAck(from, frame);
        return;
      case v1::KvFrame::kAbort:
        if (frame.abort().from_receiver()) {
          sender_.OnAbort(from, frame);
        } else {
          receiver_.OnAbort(from, frame);
        }
        return;
      case v1::KvFrame::kData:
      case v1::KvFrame::kChannel:    // for transports with channels; this one has none
      case v1::KvFrame::kMapping:    // for transports with mapped arenas, likewise
      case v1::KvFrame::kHandshake:  // for sealed transports, likewise
      case v1::KvFrame::kSealed:
      case v1::KvFrame::KIND_NOT_SET:
        break;
    }
    context_.Reject(from, frame,
                    absl::InvalidArgumentError(
                        absl::StrCat("frame kind ", frame.kind_case(), " is not served here")));
  }

  // The frame is for an earlier process at this address. A sender gets an ABORT, so that it frees
  // its blocks; other frames get no answer.
  void RejectIncarnation(PeerId from, const v1::KvFrame& frame) {
    context_.Reject(from, frame,
                    absl::FailedPreconditionError(
                        absl::StrCat("receiver incarnation ", frame.receiver_incarnation(),
                                     ", this process is ", context_.options.incarnation.value())));
    if (frame.kind_case() != v1::KvFrame::kData && frame.kind_case() != v1::KvFrame::kFin) return;
    context_.SendAbort(from,
                       context_.Header(Incarnation(frame.sender_incarnation()),
                                       LeaseId(frame.lease_id()), Epoch(frame.epoch())),
                       "the receiver is another incarnation", /*from_receiver=*/true);
  }

  KvTransferContext context_;
  KvReceiver receiver_;
  KvSender sender_;
  absl::Time next_scan_ = absl::InfinitePast();
};

}  // namespace

std::unique_ptr<KvTransferEndpoint> KvTransferEndpoint::Create(const KvTransferOptions& options,
                                                               kv::BlockArena& arena,
                                                               KvTransport& transport) {
  TANDEM_CHECK(options.frame_bytes_min > 0 && options.frame_bytes_max >= options.frame_bytes_min);
  return std::make_unique<KvTransferEndpointImpl>(options, arena, transport);
}

}  // namespace tandem::transfer
