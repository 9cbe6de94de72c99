#include "common/transfer/nccl_transport.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/telemetry/log.h"
#include "common/transfer/ends_by_peer.h"
#include "common/transfer/nccl_context.h"
#include "common/transfer/nccl_receiver.h"
#include "common/transfer/nccl_sender.h"

namespace tandem::transfer {
namespace {

class NcclTransport final : public KvTransport, private KvTransport::Listener {
 public:
  NcclTransport(const NcclTransportOptions& options, std::unique_ptr<KvTransport> other,
                std::unique_ptr<kernels::PairChannels> channels)
      : context_(options, std::move(other), std::move(channels)) {
    TANDEM_CHECK((context_.options.device != nullptr) ==
                     (context_.channels->slot_memory() == kernels::SlotMemory::kDevice),
                 "slots in device memory and payloads there go together");
    context_.other->SetListener(this);
  }
  ~NcclTransport() override {
    senders_.ForEach([](NcclSender& sender) {
      sender.End(absl::CancelledError("this process is shutting down"));
    });
  }

  void SetListener(KvTransport::Listener* listener) override { context_.listener = listener; }
  const std::string& address() const override { return context_.other->address(); }
  absl::StatusOr<PeerId> Connect(const PeerAddress& peer) override {
    return context_.other->Connect(peer);
  }
  void Disconnect(PeerId peer) override {
    EndChannels(peer, absl::CancelledError("this node closed the connection"));
    context_.other->Disconnect(peer);
  }

  void Send(PeerId peer, const v1::KvFrame& frame, GatherList payload,
            absl::AnyInvocable<void(const absl::Status&)> done) override {
    const size_t bytes = Bytes(payload);
    if (bytes > 0 && bytes <= context_.channels->slot_bytes() && ending_ != peer) {
      NcclSender* sender = senders_.Find(peer);
      if (sender == nullptr)
        sender = &senders_.Add(peer, std::make_unique<NcclSender>(context_, peer));
      if (sender->open()) return sender->Send(frame, std::move(payload), std::move(done));
    }
    context_.other->Send(peer, frame, std::move(payload), std::move(done));
  }

  Refusals refusals() const override { return context_.other->refusals(); }
  std::string TransportName(PeerId peer) const override {
    const bool over_channel = senders_.IsOpen(peer) || receivers_.IsOpen(peer);
    if (!over_channel) return context_.other->TransportName(peer);
    return absl::StrCat(context_.channels->name(),
                        context_.options.device == nullptr ? "" : "+device");
  }
  PayloadStore* payloads() override { return context_.options.device.get(); }

  bool Progress() override {
    bool moved = context_.other->Progress();
    moved = senders_.Progress() || moved;
    return receivers_.Progress() || moved;
  }

  // A channel cannot end a wait: while one is busy the wait is short.
  void Wait(absl::Duration timeout) override {
    const auto is_busy = [](const auto& end) { return end.busy(); };
    const int busy = senders_.Count(is_busy) + receivers_.Count(is_busy);
    context_.other->Wait(busy > 0 ? std::min(timeout, kBusyWait) : timeout);
  }
  void Wake() override { context_.other->Wake(); }

 private:
  static constexpr absl::Duration kBusyWait = absl::Microseconds(50);

  std::optional<ScatterList> OnFrame(PeerId from, const v1::KvFrame& frame, size_t payload_bytes,
                                     uint64_t receive_id) override {
    if (frame.has_channel()) {
      OnChannel(from, frame);
      return std::nullopt;
    }
    if (frame.has_via_channel()) {
      NcclReceiver* const receiver = receivers_.Find(from);
      if (receiver != nullptr && receiver->number() == frame.via_channel().channel())
        receiver->OnHeader(frame);
      return std::nullopt;  // its payload comes through the channel
    }
    if (context_.listener == nullptr) return std::nullopt;
    return context_.listener->OnFrame(from, frame, payload_bytes, receive_id);
  }
  void OnPayload(uint64_t receive_id, const absl::Status& status,
                 const ReceiveInterval& interval) override {
    context_.listener->OnPayload(receive_id, status, interval);
  }
  void OnPeerLost(PeerId peer, const absl::Status& status) override {
    EndChannels(peer, status);
    if (context_.listener != nullptr) context_.listener->OnPeerLost(peer, status);
  }

  void OnChannel(PeerId from, const v1::KvFrame& frame) {
    const v1::KvChannel& channel = frame.channel();
    if (!context_.auth.Verify(frame)) {
      Log(LogLevel::kWarning, "rejected a KV channel frame: its tag is not of this fleet's secret",
          {{"peer", from.value()}});
      return;
    }
    if (channel.from_receiver()) {
      NcclSender* const sender = senders_.Find(from);
      if (sender != nullptr) sender->OnFrame(channel);
      return;
    }
    NcclReceiver* const known = receivers_.Find(from);
    if (channel.kind() == v1::KvChannel::CLOSED) {
      if (known != nullptr && known->number() == channel.number())
        known->End(absl::UnavailableError("the sender closed the channel"), /*tell=*/false);
      return;
    }
    if (channel.kind() != v1::KvChannel::OFFER) return;
    // A repeat, or older than what is there.
    if (known != nullptr && channel.number() <= known->number()) return;
    if (known == nullptr && receivers_.size() >= context_.options.incoming_max) {
      context_.SendChannelFrame(from, channel.number(), v1::KvChannel::CLOSED,
                                /*from_receiver=*/true);
      return;
    }
    EndReceiver(from, absl::UnavailableError("the sender offered another channel"));
    receivers_.Add(from, std::make_unique<NcclReceiver>(context_, from, channel));
  }

  void EndChannels(PeerId peer, const absl::Status& status) {
    // Who hears that a send has ended may send again.
    ending_ = peer;
    if (NcclSender* const sender = senders_.Remove(peer); sender != nullptr) sender->End(status);
    ending_.reset();
    EndReceiver(peer, status);
  }
  void EndReceiver(PeerId peer, const absl::Status& status) {
    if (NcclReceiver* const receiver = receivers_.Remove(peer); receiver != nullptr)
      receiver->End(status, /*tell=*/false);
  }

  NcclContext context_;
  std::optional<PeerId> ending_;  // gets no channel: its connection ends
  EndsByPeer<NcclSender> senders_;
  // Bound: NcclTransportOptions::incoming_max (64), then offers are declined.
  EndsByPeer<NcclReceiver> receivers_;
};

}  // namespace

std::unique_ptr<KvTransport> NewNcclTransport(const NcclTransportOptions& options,
                                              std::unique_ptr<KvTransport> other,
                                              std::unique_ptr<kernels::PairChannels> channels) {
  return std::make_unique<NcclTransport>(options, std::move(other), std::move(channels));
}

}  // namespace tandem::transfer
