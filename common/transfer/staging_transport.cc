#include "common/transfer/staging_transport.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace tandem::transfer {
namespace {

class StagingTransport final : public KvTransport, private KvTransport::Listener {
 public:
  StagingTransport(std::unique_ptr<KvTransport> other, std::shared_ptr<DevicePayloads> payloads)
      : payloads_(std::move(payloads)), other_(std::move(other)) {}

  void SetListener(KvTransport::Listener* listener) override {
    listener_ = listener;
    other_->SetListener(listener == nullptr ? nullptr : this);
  }
  const std::string& address() const override { return other_->address(); }
  absl::StatusOr<PeerId> Connect(const PeerAddress& peer) override { return other_->Connect(peer); }
  void Disconnect(PeerId peer) override { other_->Disconnect(peer); }

  void Send(PeerId peer, const v1::KvFrame& frame, GatherList payload,
            absl::AnyInvocable<void(const absl::Status&)> done) override {
    for (absl::Span<const std::byte>& piece : payload) {
      if (!payloads_->Holds(piece.data())) continue;
      if (absl::Status status = payloads_->CopyToTwin(piece); !status.ok()) {
        // Completions run inside Progress.
        failed_.push_back({std::move(done), std::move(status)});
        return;
      }
      piece = payloads_->Twin(piece);
    }
    other_->Send(peer, frame, std::move(payload), std::move(done));
  }

  Refusals refusals() const override { return other_->refusals(); }
  std::string TransportName(PeerId peer) const override {
    return absl::StrCat(other_->TransportName(peer), "+staged");
  }
  PayloadStore* payloads() override { return payloads_.get(); }

  bool Progress() override {
    const bool failed = !failed_.empty();
    for (Failed& send : std::exchange(failed_, {})) send.done(send.status);
    return other_->Progress() || failed;
  }
  void Wait(absl::Duration timeout) override {
    if (failed_.empty()) other_->Wait(timeout);
  }
  void Wake() override { other_->Wake(); }

 private:
  struct Failed {
    absl::AnyInvocable<void(const absl::Status&)> done;
    absl::Status status;
  };

  std::optional<ScatterList> OnFrame(PeerId from, const v1::KvFrame& frame, size_t payload_bytes,
                                     uint64_t receive_id) override {
    std::optional<ScatterList> place = listener_->OnFrame(from, frame, payload_bytes, receive_id);
    // A place on a device is one slot.
    if (payload_bytes == 0 || !place.has_value() || !payloads_->Holds(place->front().data())) {
      return place;
    }
    landing_[receive_id] = place->front();
    place->front() = payloads_->Twin(place->front());
    return place;
  }
  void OnPayload(uint64_t receive_id, const absl::Status& status,
                 const ReceiveInterval& interval) override {
    const auto landed = landing_.extract(receive_id);
    absl::Status result = status;
    if (!landed.empty() && status.ok()) result = payloads_->CopyFromTwin(landed.mapped());
    listener_->OnPayload(receive_id, result, interval);
  }
  void OnPeerLost(PeerId peer, const absl::Status& status) override {
    listener_->OnPeerLost(peer, status);
  }

  // Goes last: payloads of `other_` lie there.
  const std::shared_ptr<DevicePayloads> payloads_;
  // Bound: the sends in flight, emptied each round.
  std::vector<Failed> failed_;
  // Slots that are being received into. Bound: the slots.
  absl::flat_hash_map<uint64_t, absl::Span<std::byte>> landing_;
  KvTransport::Listener* listener_ = nullptr;
  const std::unique_ptr<KvTransport> other_;
};

}  // namespace

std::unique_ptr<KvTransport> NewStagingTransport(std::unique_ptr<KvTransport> other,
                                                 std::shared_ptr<DevicePayloads> payloads) {
  return std::make_unique<StagingTransport>(std::move(other), std::move(payloads));
}

}  // namespace tandem::transfer
