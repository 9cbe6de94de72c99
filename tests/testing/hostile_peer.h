// A hostile process on the KV network: it floods nodes with the frames of hostile_frames.h, with or
// without the fleet's secret. It owns no lease's export. Thread safety: none.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/transfer/frame_auth.h"
#include "tests/testing/hostile_frames.h"
#include "tests/testing/kv_transfer_world.h"

namespace tandem::testing {

class HostilePeer final : public transfer::KvTransport::Listener {
 public:
  // `secret`: null for a process that does not know the fleet's.
  HostilePeer(FaultyNetwork& network, std::unique_ptr<Random> random, const char* secret)
      : random_(std::move(random)),
        auth_(secret != nullptr ? secret : "a guess"),
        frames_(*random_, secret != nullptr, static_cast<uint64_t>(KvTransferSide::kCellBytes),
                garbage_.size()),
        transport_(network.NewTransport()) {
    transport_->SetListener(this);
  }
  ~HostilePeer() override { transport_->SetListener(nullptr); }

  // Up to `frames_max` frames to any node of `world`.
  void Attack(KvTransferWorld& world, uint64_t frames_max) {
    for (uint64_t n = random_->Below(frames_max + 1); n > 0; --n) {
      const KvTransferSide& victim = *world.sides()[random_->Below(world.sides().size())];
      const auto peer = transport_->Connect(
          {NodeId("victim"), victim.incarnation, victim.transport->address(), "host"});
      if (!peer.ok()) continue;
      v1::KvFrame frame = frames_.Next(victim.incarnation, world.next_id());
      const size_t bytes = frames_.PayloadOf(frame);
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
    frames_.Heard(frame);
    return std::nullopt;
  }
  void OnPayload(uint64_t, const absl::Status&, const transfer::ReceiveInterval&) override {}
  void OnPeerLost(transfer::PeerId, const absl::Status&) override {}

  const std::unique_ptr<Random> random_;
  const transfer::FrameAuth auth_;
  const std::vector<std::byte> garbage_ = std::vector<std::byte>(2048, std::byte{0x66});
  HostileFrames frames_;
  std::unique_ptr<FaultyNetwork::Transport> transport_;
};

}  // namespace tandem::testing
