// What the sending and the receiving half of a MappedTransport share: the options, the arena, the
// transport beneath, the server of the arena's descriptor, and the listener.
// Thread safety: none; the transfer thread. Owner: the MappedTransport.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "common/transfer/arena_descriptor.h"
#include "common/transfer/frame_auth.h"
#include "common/transfer/kv_transport.h"
#include "common/transfer/mapped_transport.h"

namespace tandem::transfer {

struct MappedContext {
  MappedContext(const MappedTransportOptions& mapped_options, const kv::BlockArena& own_arena,
                std::unique_ptr<ArenaDescriptorServer> descriptor_server,
                std::unique_ptr<KvTransport> other_transport)
      : options(mapped_options),
        arena(own_arena),
        auth(mapped_options.fleet_secret),
        server(std::move(descriptor_server)),
        other(std::move(other_transport)) {}

  absl::Time now() const { return options.clock->Now(); }
  // Signs and sends a frame about a mapping.
  void SendMappingFrame(PeerId peer, v1::KvMapping mapping) {
    v1::KvFrame frame;
    *frame.mutable_mapping() = std::move(mapping);
    auth.Sign(frame);
    other->Send(peer, frame, {}, [](const absl::Status&) {});
  }

  const MappedTransportOptions options;
  const kv::BlockArena& arena;
  const FrameAuth auth;
  const std::unique_ptr<ArenaDescriptorServer> server;  // null: the arena is not offered
  const std::unique_ptr<KvTransport> other;
  KvTransport::Listener* listener = nullptr;
  uint64_t next_number = 1;
  // Above the ids that the other transport gives.
  uint64_t next_receive = uint64_t{1} << 62;
  uint64_t mapped_bytes = 0;  // of others' arenas, mapped or about to be
};

}  // namespace tandem::transfer
