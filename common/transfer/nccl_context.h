// What the halves of a NcclTransport share. Thread safety: none; the transfer thread. Owner: the
// transport.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/transfer/frame_auth.h"
#include "common/transfer/kv_transport.h"
#include "common/transfer/nccl_transport.h"
#include "kernels/api/pair_channel.h"

namespace tandem::transfer {

// Payloads that may be on a link and not yet taken out by its receiver: more than the slots, so
// that word of them being taken out need not be waited for each time.
inline constexpr uint64_t kLinkWindow = 16;

struct NcclContext {
  NcclContext(const NcclTransportOptions& link_options,
              std::unique_ptr<KvTransport> other_transport,
              std::unique_ptr<kernels::PairChannels> pair_channels)
      : options(link_options),
        auth(link_options.fleet_secret),
        other(std::move(other_transport)),
        links(std::move(pair_channels)) {}

  absl::Time now() const { return options.clock->Now(); }
  // Signs and sends a frame about link `number`.
  void SendAbout(PeerId peer, uint64_t number, v1::KvLink::Kind kind, bool from_receiver,
                 std::string id = "", uint64_t consumed = 0) {
    v1::KvFrame frame;
    v1::KvLink& link = *frame.mutable_link();
    link.set_number(number);
    link.set_kind(kind);
    link.set_from_receiver(from_receiver);
    link.set_id(std::move(id));
    link.set_consumed(consumed);
    auth.Sign(frame);
    other->Send(peer, frame, {}, [](const absl::Status&) {});
  }

  const NcclTransportOptions options;
  const FrameAuth auth;
  const std::unique_ptr<KvTransport> other;
  const std::unique_ptr<kernels::PairChannels> links;
  KvTransport::Listener* listener = nullptr;
  uint64_t next_number = 1;
  // Above those that the other transport gives.
  uint64_t next_receive = uint64_t{1} << 63;
};

}  // namespace tandem::transfer
