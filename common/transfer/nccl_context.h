// What the sending and the receiving half of a NcclTransport share: the options, the transport
// beneath, NCCL's channels, and the listener. Thread safety: none; the transfer thread. Owner: the
// NcclTransport.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/transfer/frame_auth.h"
#include "common/transfer/kv_transport.h"
#include "common/transfer/nccl_transport.h"
#include "kernels/api/pair_channel.h"

namespace tandem::transfer {

// How many payloads a sender may put on a channel before the receiver reports that it took the
// first of them out. More than a channel has slots, so that the sender rarely waits for the report.
inline constexpr uint64_t kChannelWindow = 16;

struct NcclContext {
  NcclContext(const NcclTransportOptions& channel_options,
              std::unique_ptr<KvTransport> other_transport,
              std::unique_ptr<kernels::PairChannels> pair_channels)
      : options(channel_options),
        auth(channel_options.fleet_secret),
        other(std::move(other_transport)),
        channels(std::move(pair_channels)) {}

  absl::Time now() const { return options.clock->Now(); }
  // Signs and sends a frame about channel `number`.
  void SendChannelFrame(PeerId peer, uint64_t number, v1::KvChannel::Kind kind, bool from_receiver,
                        std::string id = "", uint64_t consumed = 0) {
    v1::KvFrame frame;
    v1::KvChannel& channel = *frame.mutable_channel();
    channel.set_number(number);
    channel.set_kind(kind);
    channel.set_from_receiver(from_receiver);
    channel.set_id(std::move(id));
    channel.set_consumed(consumed);
    auth.Sign(frame);
    other->Send(peer, frame, {}, [](const absl::Status&) {});
  }

  const NcclTransportOptions options;
  const FrameAuth auth;
  const std::unique_ptr<KvTransport> other;
  const std::unique_ptr<kernels::PairChannels> channels;
  KvTransport::Listener* listener = nullptr;
  uint64_t next_number = 1;
  // Above the ids that the other transport gives.
  uint64_t next_receive = uint64_t{1} << 63;
};

}  // namespace tandem::transfer
