// A process on the KV network that means no good: frames of every kind, to leases that exist and
// leases that do not, of stale and future epochs, of wrong sizes, in floods, again and again; with
// or without the fleet's secret. It owns no lease's export, and with the secret never sends DATA
// that a lease's rightful sender could have sent: whoever holds the secret can lie about KV itself.
// Thread safety: none.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/transfer/frame_auth.h"
#include "tests/testing/handoff_world.h"

namespace tandem::testing {

class HostilePeer final : public transfer::KvTransport::Listener {
 public:
  // `secret`: null for one who does not know the fleet's.
  HostilePeer(FaultyNetwork& network, std::unique_ptr<Random> random, const char* secret)
      : random_(std::move(random)),
        auth_(secret != nullptr ? secret : "a guess"),
        knows_(secret != nullptr),
        transport_(network.NewTransport()) {
    transport_->SetListener(this);
  }
  ~HostilePeer() override { transport_->SetListener(nullptr); }

  // Up to `frames_max` frames to any node of `world`.
  void Attack(HandoffWorld& world, uint64_t frames_max) {
    for (uint64_t n = random_->Below(frames_max + 1); n > 0; --n) {
      const HandoffSide& victim = *world.sides()[random_->Below(world.sides().size())];
      const auto peer = transport_->Connect(
          {NodeId("victim"), victim.incarnation, victim.transport->address(), "host"});
      if (!peer.ok()) continue;
      v1::KvFrame frame = Frame(victim, world.next_id());
      const size_t bytes = frame.has_data() ? PayloadOf(frame.data()) : random_->Below(16) / 15;
      auth_.Sign(frame);
      if (random_->Below(16) == 0) frame.set_auth_tag(frame.auth_tag() ^ 1);
      transport_->Send(*peer, frame, {absl::MakeConstSpan(garbage_).first(bytes)},
                       [](const absl::Status&) {});
      ++sent;
    }
  }

  int64_t sent = 0, answers = 0;

 private:
  std::optional<transfer::ScatterList> OnFrame(transfer::PeerId, const v1::KvFrame& frame, size_t,
                                               uint64_t) override {
    ++answers;
    // What was said before is said again, under the names that were given away.
    heard_.push_back(frame);
    if (heard_.size() > 16) heard_.pop_front();
    return std::nullopt;
  }
  void OnPayload(uint64_t, const absl::Status&, const transfer::ReceiveInterval&) override {}
  void OnPeerLost(transfer::PeerId, const absl::Status&) override {}

  uint32_t Odd(uint32_t sensible) {
    static constexpr uint32_t kOdd[] = {0, 1, 2, 3, 6, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
    return random_->Below(4) == 0 ? kOdd[random_->Below(std::size(kOdd))] : sensible;
  }
  size_t PayloadOf(const v1::KvData& data) {
    const uint64_t claimed = data.payload_bytes();
    return claimed > 0 && claimed <= garbage_.size() && random_->Below(4) > 0
               ? claimed
               : random_->Below(garbage_.size()) + 1;
  }

  v1::KvFrame Frame(const HandoffSide& victim, uint64_t next_id) {
    v1::KvFrame frame;
    if (!heard_.empty() && random_->Below(8) == 0) frame = heard_[random_->Below(heard_.size())];
    frame.set_sender_incarnation(100 + random_->Below(5));
    frame.set_receiver_incarnation(random_->Below(8) == 0 ? random_->Below(200)
                                                          : victim.incarnation.value());
    frame.set_lease_id(LeaseIdNear(next_id));
    frame.set_epoch(Odd(1 + static_cast<uint32_t>(random_->Below(3))));
    switch (random_->Below(6)) {
      case 0:
        AddData(frame);
        break;
      case 1:
        frame.mutable_fin()->set_data_frames(Odd(static_cast<uint32_t>(random_->Below(20))));
        break;
      case 2:
        AddNack(*frame.mutable_nack());
        break;
      case 3:
        frame.mutable_ack();
        break;
      case 4:
        frame.mutable_abort()->set_reason(std::string(random_->Below(300), '\xff'));
        frame.mutable_abort()->set_from_receiver(random_->Below(2) == 0);
        break;
      default:
        frame.mutable_link()->set_number(random_->Below(4));
        frame.mutable_link()->set_kind(static_cast<v1::KvLink::Kind>(random_->Below(6)));
        frame.mutable_link()->set_id(std::string(random_->Below(64), 'i'));
        break;
    }
    return frame;
  }
  // Most likely one that was opened a moment ago, so that its sender has not spoken yet.
  uint64_t LeaseIdNear(uint64_t next_id) {
    const uint64_t choice = random_->Below(8);
    if (choice == 0) return random_->Next();
    const uint64_t span = choice < 4 ? 40 : 3;
    return (next_id > span ? next_id - span : 0) + random_->Below(span + span / 2 + 1);
  }
  void AddData(v1::KvFrame& frame) {
    v1::KvData& data = *frame.mutable_data();
    data.set_first_ordinal(Odd(static_cast<uint32_t>(random_->Below(10))));
    data.set_ordinal_count(Odd(1 + static_cast<uint32_t>(random_->Below(4))));
    data.set_first_layer(Odd(static_cast<uint32_t>(random_->Below(3))));
    data.set_layer_count(Odd(1 + static_cast<uint32_t>(random_->Below(3))));
    const uint64_t right = uint64_t{data.ordinal_count()} * data.layer_count() *
                           static_cast<uint64_t>(HandoffSide::kCellBytes);
    data.set_payload_bytes(random_->Below(2) == 0 ? right : random_->Below(garbage_.size()));
    data.set_payload_checksum(random_->Next());
    // See above: with the secret, something about it must be wrong.
    if (knows_ && data.payload_bytes() == right) data.set_payload_bytes(right + 1);
  }
  void AddNack(v1::KvNack& nack) {
    for (uint64_t n = random_->Below(200); n > 0; --n) {
      v1::KvRange& range = *nack.add_missing();
      range.set_first_ordinal(Odd(static_cast<uint32_t>(random_->Below(10))));
      range.set_ordinal_count(Odd(1));
      range.set_first_layer(Odd(0));
      range.set_layer_count(Odd(3));
    }
  }

  std::unique_ptr<Random> random_;
  const transfer::FrameAuth auth_;
  const bool knows_;
  std::unique_ptr<FaultyNetwork::Transport> transport_;
  std::deque<v1::KvFrame> heard_;
  const std::vector<std::byte> garbage_ = std::vector<std::byte>(2048, std::byte{0x66});
};

}  // namespace tandem::testing
