// A KvTransport that moves payloads between processes of one host with one copy. The sender's arena
// lies in a sealed memfd (common/kv/block_arena.h); the receiver maps it for reading and copies the
// payload straight from the sender's blocks into its own, with the checksum computed on the way.
// Headers, control frames and everything that cannot go this way take another transport (UCX),
// which also carries the messages that set the mapping up:
//
//   owner (sends KV)                         reader (receives KV)
//   OFFER: socket, ticket, size   ────────▶  fetches the descriptor (arena_descriptor.h), maps it
//                                 ◀────────  READY
//   DATA frame naming offsets     ────────▶  copies, or discards
//                                 ◀────────  TAKEN: the payload's blocks are read no more
//
// The owner offers its arena to a peer once the other transport reaches the peer over shared
// memory. Payloads take the other transport until the reader is ready, and for good once a mapping
// failed: it only makes things faster. No process writes into another one. If a dead, hung or
// faulty owner leaves a reader with bytes of another request, the checksum shows it, because the
// reader computes it over its own copy. A reader that never reports a payload as taken is dropped
// by the KV transfer after drain_after, as any hung peer.
//
// What a peer can read: a process of the same user and host that holds the fleet's secret and was
// offered the arena can read all of it, not only the blocks sent to it (docs/KV_TRANSFER.md).
//
// Thread safety: as KvTransport. Owner: TransferService.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/kv/block_arena.h"
#include "common/runtime/clock.h"
#include "common/transfer/kv_transport.h"

namespace tandem::transfer {

struct MappedTransportOptions {
  std::string fleet_secret;  // signs the frames that set mappings up, and the proofs of readers
  // A mapping that is not ready within this time has failed.
  absl::Duration open_within = absl::Seconds(5);
  // Bytes of payloads that a reader may have before it. The owner reads a payload for its checksum
  // and the reader copies it soon after: with no more than this between them, the copy finds much
  // of it in a cache that both share.
  int64_t bytes_ahead_max = 4 << 20;
  // Arenas of others that this process maps: how many, and how many bytes of addresses in all.
  // Further offers are declined.
  int mappings_max = 64;
  uint64_t mapped_bytes_max = uint64_t{1} << 40;
  const Clock* clock = &RealClock();
};

// Payloads leave from `arena`, which outlives the transport, and `other` carries the rest. A
// private arena is offered to no peer; the arenas of others are mapped all the same.
std::unique_ptr<KvTransport> NewMappedTransport(const MappedTransportOptions& options,
                                                const kv::BlockArena& arena,
                                                std::unique_ptr<KvTransport> other);

}  // namespace tandem::transfer
