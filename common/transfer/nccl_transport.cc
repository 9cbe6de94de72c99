#include "common/transfer/nccl_transport.h"

#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/telemetry/log.h"
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
    for (auto& [peer, sender] : senders_)
      sender->End(absl::CancelledError("this process is shutting down"));
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
    if (bytes > 0 && bytes <= context_.channels->slot_bytes()) {
      std::unique_ptr<NcclSender>& sender = senders_[peer];
      if (sender == nullptr) sender = std::make_unique<NcclSender>(context_, peer);
      if (sender->open()) return sender->Send(frame, std::move(payload), std::move(done));
    }
    context_.other->Send(peer, frame, std::move(payload), std::move(done));
  }

  Refusals refusals() const override { return context_.other->refusals(); }
  std::string TransportName(PeerId peer) const override {
    const auto sender = senders_.find(peer);
    const auto receiver = receivers_.find(peer);
    const bool over_channel = (sender != senders_.end() && sender->second->open()) ||
                              (receiver != receivers_.end() && receiver->second->open());
    if (!over_channel) return context_.other->TransportName(peer);
    return absl::StrCat(context_.channels->name(),
                        context_.options.device == nullptr ? "" : "+device");
  }
  PayloadStore* payloads() override { return context_.options.device.get(); }

  bool Progress() override {
    ended_senders_.clear();
    ended_receivers_.clear();
    bool moved = context_.other->Progress();
    // By key: Progress() of one sender may end connections, its own included.
    for (auto it = senders_.begin(); it != senders_.end();) {
      const PeerId peer = it->first;
      moved = it->second->Progress() || moved;
      it = senders_.upper_bound(peer);
    }
    for (auto it = receivers_.begin(); it != receivers_.end();) {
      const PeerId peer = it->first;
      moved = it->second->Progress() || moved;
      it = receivers_.upper_bound(peer);
    }
    return moved;
  }

  // A channel cannot end a wait: while one is busy the wait is short.
  void Wait(absl::Duration timeout) override {
    bool busy = false;
    for (const auto& [peer, sender] : senders_) busy = busy || sender->busy();
    for (const auto& [peer, receiver] : receivers_) busy = busy || receiver->busy();
    context_.other->Wait(busy ? std::min(timeout, kBusyWait) : timeout);
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
      const auto receiver = receivers_.find(from);
      if (receiver != receivers_.end() &&
          receiver->second->number() == frame.via_channel().channel()) {
        receiver->second->OnHeader(frame);
      }
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
      const auto sender = senders_.find(from);
      if (sender != senders_.end()) sender->second->OnFrame(channel);
      return;
    }
    const auto known = receivers_.find(from);
    if (channel.kind() == v1::KvChannel::CLOSED) {
      if (known != receivers_.end() && known->second->number() == channel.number()) {
        known->second->End(absl::UnavailableError("the sender closed the channel"), /*tell=*/false);
      }
      return;
    }
    if (channel.kind() != v1::KvChannel::OFFER) return;
    // A repeat, or older than what is there.
    if (known != receivers_.end() && channel.number() <= known->second->number()) return;
    if (known == receivers_.end() &&
        static_cast<int>(receivers_.size()) >= context_.options.incoming_max) {
      context_.SendChannelFrame(from, channel.number(), v1::KvChannel::CLOSED,
                                /*from_receiver=*/true);
      return;
    }
    EndReceiver(from, absl::UnavailableError("the sender offered another channel"));
    receivers_[from] = std::make_unique<NcclReceiver>(context_, from, channel);
  }

  void EndChannels(PeerId peer, const absl::Status& status) {
    if (const auto it = senders_.find(peer); it != senders_.end()) {
      // Destroyed in the next Progress: the sender itself may be the caller.
      ended_senders_.push_back(std::move(it->second));
      senders_.erase(it);
      NcclSender& sender = *ended_senders_.back();
      sender.End(status);
    }
    EndReceiver(peer, status);
  }
  void EndReceiver(PeerId peer, const absl::Status& status) {
    const auto it = receivers_.find(peer);
    if (it == receivers_.end()) return;
    ended_receivers_.push_back(std::move(it->second));
    receivers_.erase(it);
    NcclReceiver& receiver = *ended_receivers_.back();
    receiver.End(status, /*tell=*/false);
  }

  NcclContext context_;
  // Bound: the connections of the other transport.
  absl::btree_map<PeerId, std::unique_ptr<NcclSender>> senders_;
  // Bound: NcclTransportOptions::incoming_max (64), then offers are declined.
  absl::btree_map<PeerId, std::unique_ptr<NcclReceiver>> receivers_;
  // Bound: what ended since the last Progress.
  std::vector<std::unique_ptr<NcclSender>> ended_senders_;
  std::vector<std::unique_ptr<NcclReceiver>> ended_receivers_;
};

}  // namespace

std::unique_ptr<KvTransport> NewNcclTransport(const NcclTransportOptions& options,
                                              std::unique_ptr<KvTransport> other,
                                              std::unique_ptr<kernels::PairChannels> channels) {
  return std::make_unique<NcclTransport>(options, std::move(other), std::move(channels));
}

}  // namespace tandem::transfer
