// Goal: no bytes of a peer crash a node's KV transfer or make it expose memory outside a lease.
// Input: frames, each as one length byte and that many bytes of a serialized KvFrame. The target
// signs them and addresses them to this node, so that they reach the checks behind the tag.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "common/telemetry/log.h"
#include "common/transfer/frame_auth.h"
#include "common/transfer/kv_transfer_endpoint.h"

namespace tandem::transfer {
namespace {

class SilentTransport final : public KvTransport {
 public:
  void SetListener(Listener*) override {}
  const std::string& address() const override { return address_; }
  absl::StatusOr<PeerId> Connect(const PeerAddress&) override { return PeerId(1); }
  void Disconnect(PeerId) override {}
  void Send(PeerId, const v1::KvFrame&, GatherList,
            absl::AnyInvocable<void(const absl::Status&)> done) override {
    dones_.push_back(std::move(done));
  }
  std::string TransportName(PeerId) const override { return "fuzz"; }
  bool Progress() override {
    for (auto& done : std::exchange(dones_, {})) done(absl::OkStatus());
    return true;
  }
  void Wait(absl::Duration) override {}
  void Wake() override {}

 private:
  std::string address_ = "fuzz";
  std::vector<absl::AnyInvocable<void(const absl::Status&)>> dones_;
};

void Run(const uint8_t* data, size_t size) {
  SetLogLevel(LogLevel::kError);  // the input consists of frames to reject
  const auto arena = *kv::BlockArena::Create({2, 16, 16}, 4);
  SilentTransport transport;
  KvTransferOptions options;
  options.incarnation = Incarnation(1);
  const auto endpoint = KvTransferEndpoint::Create(options, *arena, transport);
  const FrameAuth auth("");
  absl::Time now = absl::UnixEpoch();
  const absl::Time deadline = now + absl::Seconds(1);
  endpoint->Handle(OpenLease{LeaseId(1), Epoch(1), 0, {BlockId(3), BlockId(1)}, deadline}, now);
  endpoint->Handle(OpenExport{ExportId(1),
                              PeerAddress{NodeId("p"), Incarnation(2), "", ""},
                              LeaseId(2),
                              Epoch(1),
                              0,
                              {BlockId(0)},
                              deadline},
                   now);
  endpoint->Handle(PushRange{ExportId(1), 0, 1, 0, 2}, now);
  endpoint->Handle(FinishExport{ExportId(1), {}}, now);
  uint64_t receive_id = 1;
  while (size > 1) {
    const size_t frame_bytes = std::min<size_t>(data[0], size - 1);
    v1::KvFrame frame;
    if (frame.ParseFromArray(data + 1, static_cast<int>(frame_bytes))) {
      frame.set_receiver_incarnation(1);
      auth.Sign(frame);
      // Payloads have the size that the header claims, so that frames pass the size checks.
      const size_t payload_bytes = frame.has_data() ? frame.data().payload_bytes() : 0;
      const auto place = endpoint->OnFrame(PeerId(1), frame, payload_bytes, receive_id);
      if (place.has_value()) {
        size_t place_bytes = 0;
        for (const absl::Span<std::byte> piece : *place) {
          std::memset(piece.data(), 7, piece.size());
          place_bytes += piece.size();
        }
        if (place_bytes != payload_bytes) std::abort();
        endpoint->OnPayload(receive_id, absl::OkStatus(), {.began = now, .landed = now});
      }
      ++receive_id;
    }
    data += frame_bytes + 1;
    size -= frame_bytes + 1;
    transport.Progress();
    endpoint->Tick(now += absl::Milliseconds(10));
    endpoint->TakeEvents();
  }
}

}  // namespace
}  // namespace tandem::transfer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::transfer::Run(data, size);
  return 0;
}
