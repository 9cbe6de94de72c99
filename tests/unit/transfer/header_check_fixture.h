// An endpoint with one open lease, and a transport that records what it sends: frames of any header
// can be offered to it. Thread safety: none.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/transfer/frame_auth.h"
#include "common/transfer/kv_transfer_endpoint.h"

namespace tandem::transfer {

inline constexpr int64_t kCellBytes = 32;
inline constexpr int kLayers = 2;
inline const Incarnation kReceiver(7), kSender(8);
inline const LeaseId kLease(3);
inline const PeerId kPeer(1), kOtherPeer(2);

// Records what is sent; completes sends at once, inside the next Deliver.
class RecordingTransport final : public KvTransport {
 public:
  void SetListener(Listener*) override {}
  const std::string& address() const override { return address_; }
  absl::StatusOr<PeerId> Connect(const PeerAddress&) override { return kPeer; }
  void Disconnect(PeerId peer) override { disconnected.push_back(peer); }
  void Send(PeerId, const v1::KvFrame& frame, GatherList,
            absl::AnyInvocable<void(const absl::Status&)> done) override {
    sent.push_back(frame);
    dones.push_back([this, done = std::move(done),
                     is_fin = frame.has_fin()](const absl::Status& status) mutable {
      done(is_fin ? fin_status : status);
    });
  }
  std::string TransportName(PeerId) const override { return "test"; }
  bool Progress() override { return false; }
  void Wait(absl::Duration) override {}
  void Wake() override {}

  void CompleteSends() {
    while (!dones.empty()) {
      auto done = std::move(dones.front());
      dones.erase(dones.begin());
      done(absl::OkStatus());
    }
  }
  absl::Status fin_status;  // how sends of FINs end
  std::vector<v1::KvFrame> sent;
  std::vector<absl::AnyInvocable<void(const absl::Status&)>> dones;
  std::vector<PeerId> disconnected;

 private:
  std::string address_ = "test";
};

class HeaderCheckTest : public ::testing::Test {
 protected:
  HeaderCheckTest() : auth_("secret") {
    arena_ = *kv::BlockArena::Create(
        {.num_layers = kLayers, .block_tokens = 16, .layer_block_bytes = kCellBytes}, 8);
    KvTransferOptions options;
    options.incarnation = kReceiver;
    options.fleet_secret = "secret";
    options.frame_bytes_min = 1;
    endpoint_ = KvTransferEndpoint::Create(options, *arena_, transport_);
    // Ordinals 4, 5 and 6 of the sequence go to blocks 5, 2 and 3.
    endpoint_->Handle(OpenLease{kLease, Epoch(2), 4, {BlockId(5), BlockId(2), BlockId(3)}, Later()},
                      now_);
  }
  absl::Time Later() const { return now_ + absl::Seconds(10); }

  // A DATA frame for all layers of ordinals 4 and 5, right in every field.
  v1::KvFrame Data() const {
    v1::KvFrame frame;
    frame.set_sender_incarnation(kSender.value());
    frame.set_receiver_incarnation(kReceiver.value());
    frame.set_lease_id(kLease.value());
    frame.set_epoch(2);
    frame.mutable_data()->set_first_ordinal(4);
    frame.mutable_data()->set_ordinal_count(2);
    frame.mutable_data()->set_layer_count(kLayers);
    frame.mutable_data()->set_payload_bytes(2 * kLayers * kCellBytes);
    frame.mutable_data()->set_payload_checksum(ChecksumOf(std::byte{1}, 2 * kLayers * kCellBytes));
    return frame;
  }
  static uint64_t ChecksumOf(std::byte value, size_t bytes) {
    const std::vector<std::byte> payload(bytes, value);
    const absl::Span<const std::byte> span(payload);
    return PayloadChecksum({span});
  }
  std::optional<ScatterList> Offer(v1::KvFrame frame, PeerId from = kPeer, int64_t bytes = -1) {
    auth_.Sign(frame);
    return endpoint_->OnFrame(from, frame,
                              bytes < 0 ? static_cast<size_t>(frame.data().payload_bytes()) : bytes,
                              next_receive_++);
  }
  void Land(const ScatterList& place, std::byte value, absl::Time began = absl::UnixEpoch(),
            absl::Time landed = absl::UnixEpoch()) {
    for (const absl::Span<std::byte> piece : place) {
      std::memset(piece.data(), static_cast<int>(value), piece.size());
    }
    endpoint_->OnPayload(next_receive_ - 1, absl::OkStatus(), {.began = began, .landed = landed});
  }
  void ExpectRejected(const std::function<void(v1::KvFrame&)>& change) {
    ExpectDropped(change, /*rejected=*/1, /*untimely=*/0);
  }
  // As races of honest peers do.
  void ExpectUntimely(const std::function<void(v1::KvFrame&)>& change) {
    ExpectDropped(change, /*rejected=*/0, /*untimely=*/1);
  }
  void ExpectDropped(const std::function<void(v1::KvFrame&)>& change, int64_t rejected,
                     int64_t untimely) {
    v1::KvFrame frame = Data();
    change(frame);
    EXPECT_FALSE(Offer(frame).has_value());
    EXPECT_EQ(endpoint_->counters().frames_rejected, rejected);
    EXPECT_EQ(endpoint_->counters().frames_untimely, untimely);
    EXPECT_EQ(endpoint_->counters().receives_in_flight, 0);
    // The frame as it should be is still welcome.
    EXPECT_TRUE(Offer(Data()).has_value());
  }
  std::vector<v1::KvFrame> SentOf(v1::KvFrame::KindCase kind) const {
    std::vector<v1::KvFrame> found;
    for (const v1::KvFrame& frame : transport_.sent) {
      if (frame.kind_case() == kind) found.push_back(frame);
    }
    return found;
  }

  const FrameAuth auth_;
  absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<kv::BlockArena> arena_;
  RecordingTransport transport_;
  std::unique_ptr<KvTransferEndpoint> endpoint_;
  uint64_t next_receive_ = 1;
};

}  // namespace tandem::transfer
